// Graphile Worker on PostgreSQL. Modes: clean, remove, burst N, pace N, work (see ../README.md for the settings).

import pg from 'pg';

import { chunks, paced, record, stopSignal } from './record.mjs';

// Graphile Worker reads this variable when it is loaded, so it is imported afterwards. Otherwise it logs every job.
process.env.NO_LOG_SUCCESS = '1';
const { Logger, makeWorkerUtils, run } = await import('graphile-worker');

const DATABASE = 'bench_graphile';
const CHUNK = 1000;

const logger = new Logger(() => (level, message) => {
  if (level === 'error' || level === 'warning') console.error(message);
});

function url(database) {
  const it = new URL(process.env.DATABASE_URL);
  it.pathname = `/${database}`;
  return it.href;
}

async function administer(...statements) {
  const client = new pg.Client({ connectionString: url('postgres') });
  await client.connect();
  for (const statement of statements) await client.query(statement);
  await client.end();
}

const drop = `DROP DATABASE IF EXISTS ${DATABASE} WITH (FORCE)`;

async function clean() {
  await administer(drop, `CREATE DATABASE ${DATABASE}`);
  await withUtils((utils) => utils.migrate());
}

async function remove() {
  await administer(drop);
}

async function withUtils(use) {
  const utils = await makeWorkerUtils({ connectionString: url(DATABASE), logger });
  await use(utils);
  await utils.release();
}

async function burst(jobs) {
  await withUtils(async (utils) => {
    for (const references of chunks(jobs, CHUNK)) {
      await utils.addJobs(references.map((reference) => ({ identifier: 'noop', payload: { reference } })));
    }
  });
}

async function pace(jobs) {
  await withUtils(async (utils) => {
    for await (const reference of paced(jobs)) await utils.addJob('noop', { reference });
  });
}

async function work() {
  const stopped = stopSignal();
  const worker = {
    connectionString: url(DATABASE),
    logger,
    concurrentJobs: 24,
    maxPoolSize: 25,
    // Jobs are fetched and locked in batches of up to this size.
    localQueue: { size: 500 },
    // Jobs that finish in one turn of the event loop are deleted with one statement.
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  };
  const runner = await run({
    preset: { worker },
    taskList: { noop: async (payload) => record(payload.reference) },
    noHandleSignals: true,
  });
  await stopped;
  await runner.stop();
}

const [mode, jobs] = process.argv.slice(2);
const modes = { clean, remove, burst, pace, work };
if (!(mode in modes)) throw new Error(`unknown mode ${mode}: use one of ${Object.keys(modes).join(', ')}`);
await modes[mode](Number(jobs));
