// The thread of one run: it calls the function of the job, and sends what the job reports to the main thread.

import { parentPort, workerData } from 'node:worker_threads'
import { MAX_CHECKPOINT, MAX_TEXT, Status, cut } from './protocol.js'
import { Permanent, Retry, Snooze } from './outcomes.js'

const stop = new AbortController()
parentPort.on('message', () => stop.abort())

const log = (level) => (message, data) => parentPort.postMessage({ log: { level, message: String(message), data: plain(data) } })

/** Converts data into what JSON can represent. */
function plain(data) {
  try {
    return data === undefined ? undefined : JSON.parse(JSON.stringify(data))
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
  /** Reports the progress in percent, from 0 to 100. */
  progress(percent, message = '') {
    const whole = Math.max(0, Math.min(100, Math.trunc(percent)))
    parentPort.postMessage({ progress: { percent: whole, message: cut(String(message), 200) } })
  },
  /** Keeps a value from which the next attempt can continue. It is sent with the next progress report and with the end. */
  checkpoint(value) {
    const text = JSON.stringify(value)
    if (Buffer.byteLength(text) > MAX_CHECKPOINT) {
      throw new Permanent(`the checkpoint has ${Buffer.byteLength(text)} bytes, and the maximum is ${MAX_CHECKPOINT}`)
    }
    parentPort.postMessage({ checkpoint: JSON.parse(text) })
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
  const text = cut(error instanceof Error ? (error.stack ?? String(error)) : String(error), MAX_TEXT)
  if (error instanceof Permanent) return { status: Status.failed, exception: error.message, permanent: true }
  const retryAfterMs = Math.round(error?.ms ?? 0)
  if (error instanceof Retry) return { status: Status.failed, exception: error.message, retryAfterMs }
  if (error instanceof Snooze) return { status: Status.queued, exception: error.message, retryAfterMs }
  return { status: Status.failed, exception: text }
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
