// Graphile Worker on PostgreSQL. Modes: clean, gone, burst N, pace N, work (see ../README.md for the settings).

import pg from 'pg';

import { chunks, farewell, paced, record } from './record.mjs';

// Read when the package is loaded, which is therefore loaded after it: otherwise each job is a line on the console.
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

async function gone() {
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
  const asked = farewell();
  const worker = {
    connectionString: url(DATABASE),
    logger,
    concurrentJobs: 24,
    maxPoolSize: 25,
    // Jobs are fetched, and locked, up to this many at a time;
    localQueue: { size: 500 },
    // and the jobs that finish in one turn of the event loop are deleted by one statement.
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  };
  const runner = await run({
    preset: { worker },
    taskList: { noop: async (payload) => record(payload.reference) },
    noHandleSignals: true,
  });
  await asked;
  await runner.stop();
}

const [mode, jobs] = process.argv.slice(2);
const modes = { clean, gone, burst, pace, work };
if (!(mode in modes)) throw new Error(`say one of: ${Object.keys(modes).join(', ')}`);
await modes[mode](Number(jobs));
