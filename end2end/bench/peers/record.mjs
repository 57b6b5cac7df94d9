// Shared by both Node peers: the clock, the references, the records and the pace. record.py is the same for Python and
// describes the format.

import fs from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const PACE_MS = 10;
const WARM_UP_JOBS = 50;
const WORKER_READY_TIMEOUT_MS = 60_000;

const folder = process.env.BENCH_RECORDS;
// `performance.timeOrigin` differs by up to a millisecond from the clock that other processes read, which is half of
// what is measured here. So the offset is measured at a tick of the clock. Any delay of this process between the tick
// and the read of the counter makes the offset smaller, so the largest of several is the most accurate.
const offset = Math.max(...Array.from({ length: 8 }, offsetAtTick));

function offsetAtTick() {
  const before = Date.now();
  let tick;
  do tick = Date.now();
  while (tick === before);
  return tick - performance.now();
}

/** Returns the time in Unix seconds, to the microsecond. */
function now() {
  return (offset + performance.now()) / 1000;
}

let file;
const bytes = Buffer.alloc(16);

/** Records that the job with this reference starts now. */
export function record(reference) {
  const started = now();
  file ??= fs.openSync(path.join(folder, `${process.pid}.records`), 'a');
  bytes.writeDoubleLE(reference, 0);
  bytes.writeDoubleLE(started, 8);
  fs.writeSync(file, bytes);
}

/** Yields lists of references for `jobs` jobs, `size` at a time. References are times and all differ. */
export function* chunks(jobs, size) {
  let last = 0;
  for (let left = jobs; left > 0; left -= size) {
    yield Array.from({ length: Math.min(size, left) }, () => (last = Math.max(now(), last + 1e-6)));
  }
}

/** Yields the warm-up references and then `jobs` measured ones, each when it is time to send it, one every 10 ms. */
export async function* paced(jobs) {
  yield -1;
  const deadline = performance.now() + WORKER_READY_TIMEOUT_MS;
  while (!recorded()) {
    if (performance.now() > deadline) throw new Error("no worker ran the first job: see the worker's output");
    await sleep(10);
  }

  const begin = performance.now();
  for (let number = 1; number < WARM_UP_JOBS + jobs; number++) {
    const pause = begin + number * PACE_MS - performance.now();
    if (pause > 0) await sleep(pause);
    yield number < WARM_UP_JOBS ? -1 - number : now();
  }
}

/** Returns a promise that resolves on SIGTERM or SIGINT. */
export function stopSignal() {
  return new Promise((resolve) => {
    process.once('SIGTERM', resolve);
    process.once('SIGINT', resolve);
  });
}

function recorded() {
  return fs.readdirSync(folder).some((name) => fs.statSync(path.join(folder, name)).size > 0);
}
