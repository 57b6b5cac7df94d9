// The thread of one run: it calls the function of the job, and sends what the job reports to the main thread.

import { parentPort, workerData } from 'node:worker_threads'
import { MAX_CHECKPOINT, MAX_DELAY_MS, MAX_LINE, MAX_LINES, MAX_TEXT, Status, cut, plain } from './protocol.js'
import { Permanent, Retry, Snooze } from './outcomes.js'

const stop = new AbortController()
parentPort.on('message', () => stop.abort())

const PROGRESS_INTERVAL_MS = 250 // At most four reports a second.

// Lines and progress are limited here, because a job that never waits could fill the memory with messages to the main thread.
let [lineCount, nextProgress] = [0, 0]

const log = (level) => (message, data) => {
  if (lineCount > MAX_LINES) return // The main thread has replaced the last one by a line that says so.
  lineCount += 1
  parentPort.postMessage({ log: { level, message: cut(String(message), MAX_LINE), data: lineData(data) } })
}

/** Data of more than 8 KiB is left out, as the server would do, and so is what JSON cannot represent. */
function lineData(data) {
  try {
    return plain(data, MAX_LINE)
  } catch {
    return undefined
  }
}

/** The context of a run: its identity, its log, its progress and its checkpoint. */
const context = {
  occurrenceId: workerData.occurrenceId,
  attempt: workerData.attempt,
  scheduledFor: workerData.scheduledFor,
  /** The last checkpoint of an earlier attempt, or undefined. */
  lastCheckpoint: workerData.checkpoint,
  /** Aborted when the run has to end: cancelled, timed out, or interrupted by a shutdown. */
  signal: stop.signal,
  debug: log('debug'),
  info: log('info'),
  warn: log('warn'),
  error: log('error'),
  /** Reports the progress in percent, from 0 to 100. At most four reports a second are sent; others are left out. */
  progress(percent, message = '') {
    if (performance.now() < nextProgress) return
    nextProgress = performance.now() + PROGRESS_INTERVAL_MS
    const whole = Math.max(0, Math.min(100, Math.trunc(percent) || 0))
    parentPort.postMessage({ progress: { percent: whole, message: cut(String(message), 200) } })
  },
  /** Keeps a value from which the next attempt can continue. It is sent with the next progress report and with the end. */
  checkpoint(value) {
    try {
      parentPort.postMessage({ checkpoint: plain(value, MAX_CHECKPOINT) })
    } catch (error) {
      throw new Permanent(`the checkpoint cannot be kept: ${error.message}`)
    }
  },
  /** Sleeps; throws if the run has to end. */
  sleep(ms) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, ms)
      const end = () => {
        clearTimeout(timer)
        reject(new Error('the run has to end'))
      }
      if (stop.signal.aborted) end()
      else stop.signal.addEventListener('abort', end, { once: true })
    })
  },
}

function failure(error) {
  const isDecision = [Permanent, Retry, Snooze].some((kind) => error instanceof kind)
  const text = isDecision ? error.message : error instanceof Error ? (error.stack ?? error) : error
  const exception = cut(String(text), MAX_TEXT)
  if (error instanceof Permanent) return { status: Status.failed, exception, permanent: true }
  const retryAfterMs = Math.min(Math.max(Math.round(Number(error?.ms)), 0) || 0, MAX_DELAY_MS)
  if (error instanceof Retry) return { status: Status.failed, exception, retryAfterMs }
  if (error instanceof Snooze) return { status: Status.queued, exception, retryAfterMs }
  return { status: Status.failed, exception }
}

async function run() {
  const { jobs } = await import(workerData.module)
  const job = jobs[workerData.type]
  const input = workerData.jobData
  const problem = job.check?.(input)
  if (problem) throw new Permanent(problem)
  const result = await job.run(context, input)
  if (result === undefined) return { status: Status.completed }
  return { status: Status.completed, result: cut(typeof result === 'string' ? result : JSON.stringify(result), MAX_TEXT) }
}

parentPort.postMessage({ end: await run().catch(failure) })
