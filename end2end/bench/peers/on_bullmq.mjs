// BullMQ on Redis. Modes: clean, gone, burst N, pace N, work (see ../README.md for the choice of settings).

import { Queue, Worker } from 'bullmq';
import { Redis } from 'ioredis';

import { chunks, farewell, paced, record } from './record.mjs';

const QUEUE = 'bench';
// A database of its own, because what is in it is deleted. The product's own figures use another.
const DATABASE = 9;
const CHUNK = 1000;
const CONCURRENCY = 50;

const url = new URL(process.env.REDIS_URL);
const connection = {
  host: url.hostname,
  port: Number(url.port),
  username: decodeURIComponent(url.username) || undefined,
  password: decodeURIComponent(url.password) || undefined,
  db: DATABASE,
  // BullMQ wants this of a worker, which waits for jobs with a call that blocks.
  maxRetriesPerRequest: null,
};

async function clean() {
  const redis = new Redis(connection);
  await redis.flushdb();
  await redis.quit();
}

async function burst(jobs) {
  const queue = new Queue(QUEUE, { connection });
  for (const references of chunks(jobs, CHUNK)) {
    await queue.addBulk(references.map((reference) => ({ name: 'noop', data: { reference } })));
  }
  await queue.close();
}

async function pace(jobs) {
  const queue = new Queue(QUEUE, { connection });
  for await (const reference of paced(jobs)) await queue.add('noop', { reference });
  await queue.close();
}

async function work() {
  const asked = farewell();
  const worker = new Worker(QUEUE, async (job) => record(job.data.reference), {
    connection,
    concurrency: CONCURRENCY,
    // Finished jobs are deleted; keeping them is the default and slower.
    removeOnComplete: { count: 0 },
  });
  worker.on('error', (error) => console.error(error.message));
  await asked;
  await worker.close();
}

const [mode, jobs] = process.argv.slice(2);
const modes = { clean, gone: clean, burst, pace, work };
if (!(mode in modes)) throw new Error(`say one of: ${Object.keys(modes).join(', ')}`);
await modes[mode](Number(jobs));
