// BullMQ on Redis. Modes: clean, remove, burst N, pace N, work (see ../README.md for the choice of settings).

import { Queue, Worker } from 'bullmq';
import { Redis } from 'ioredis';

import { chunks, paced, record, stopSignal } from './record.mjs';

const QUEUE = 'bench';
// A separate database, because its content is deleted. Milvaion's own figures use another one.
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
  // BullMQ requires this of a worker, which waits for jobs with a blocking call.
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
  const stopped = stopSignal();
  const worker = new Worker(QUEUE, async (job) => record(job.data.reference), {
    connection,
    concurrency: CONCURRENCY,
    // Finished jobs are deleted. The default keeps them, which is slower.
    removeOnComplete: { count: 0 },
  });
  worker.on('error', (error) => console.error(error.message));
  await stopped;
  await worker.close();
}

const [mode, jobs] = process.argv.slice(2);
const modes = { clean, remove: clean, burst, pace, work };
if (!(mode in modes)) throw new Error(`unknown mode ${mode}: use one of ${Object.keys(modes).join(', ')}`);
await modes[mode](Number(jobs));
