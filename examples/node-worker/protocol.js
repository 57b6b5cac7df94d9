// Names, numbers and small helpers of docs/protocol.

export const VERSION = '1.0.0'
export const MAX_MESSAGE = 1024 * 1024
export const MAX_TEXT = 64 * 1024
export const MAX_LINE = 8 * 1024
export const MAX_CHECKPOINT = 32 * 1024
export const MAX_DEPTH = 100 // levels of a checkpoint or of a line's data; the server reads messages of at most 127
export const MAX_DELAY_MS = 30 * 24 * 3600 * 1000 // until the next attempt
export const MAX_LINES = 10_000 // log lines of one attempt
export const MAX_BUFFERED_LINES = 10_000 // log lines of all runs that wait for the broker
export const HEARTBEAT_MS = 5_000
export const LEASE_MS = 15_000
export const CLAIM_RETENTION_MS = 24 * 3600 * 1000
export const CLOCK_DIFFERENCE_MS = 2_000 // between the clocks of the server, which dates messages, and of Redis

export const Status = { queued: 0, running: 1, completed: 2, failed: 3, cancelled: 4, timedOut: 5, unknown: 6 }

const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
const INSTANT = /^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/

export const now = () => new Date().toISOString()
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** Returns a name as one word of a routing key: lower case, without the dot that separates words. */
export const word = (name) => name.toLowerCase().replaceAll('_', '__').replaceAll('.', '_d')

/**
 * Cuts a text to `most` bytes, with a mark. Replaces NUL characters, which the database cannot store, and halves of surrogate
 * pairs, for which the server would refuse the message.
 */
export function cut(text, most) {
  const clean = text.replace(/\0|\p{Surrogate}/gu, '\ufffd')
  const bytes = Buffer.from(clean)
  if (bytes.length <= most) return clean
  const end = most - 40
  return `${new TextDecoder().decode(bytes.subarray(0, end)).replace(/\ufffd+$/, '')}… [${bytes.length - end} bytes cut]`
}

/**
 * Returns a copy of a value as JSON has it, or undefined for undefined. Throws if JSON cannot represent it, and if the JSON has
 * more than `most` bytes or MAX_DEPTH levels: the server could not read a message with it.
 */
export function plain(value, most) {
  const json = JSON.stringify(value)
  if (json === undefined) return undefined
  // Halves of surrogate pairs are escaped in it. An escaped backslash is passed over as a whole.
  const text = json.replace(/\\(ud[89a-f][0-9a-f]{2}|.)/g, (escape, code) => (code.length > 1 ? '\ufffd' : escape))
  const size = Buffer.byteLength(text)
  if (size > most) throw new Error(`it has ${size} bytes, and the maximum is ${most}`)
  const copy = JSON.parse(text)
  if (depth(copy) > MAX_DEPTH) throw new Error(`it has more than ${MAX_DEPTH} levels`)
  return copy
}

function depth(value) {
  if (value === null || typeof value !== 'object') return 0
  return 1 + Object.values(value).reduce((most, inner) => Math.max(most, depth(inner)), 0)
}

/** A growing pause with jitter between two attempts to connect. */
export class Backoff {
  #ms = 200

  next() {
    const pause = this.#ms * (0.8 + 0.4 * Math.random())
    this.#ms = Math.min(this.#ms * 2, 10_000)
    return pause
  }
}

export function settings(env) {
  const read = (name, fallback) => env[name] || fallback
  const workerId = read('MILVAION_WORKER_ID', 'node')
  const digits = Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, '0')
  const [prefix, keyPrefix] = [read('MILVAION_PREFIX', 'milvaion'), read('MILVAION_KEY_PREFIX', 'Milvaion:JobScheduler:')]
  return {
    workerId,
    instanceId: `${workerId}-${digits}`,
    amqpUrl: read('AMQP_URL', 'amqp://127.0.0.1:5672/%2f'),
    redisUrl: read('REDIS_URL', 'redis://127.0.0.1:6379/0'),
    graceMs: 1000 * Number(read('MILVAION_SHUTDOWN_GRACE_SECONDS', '20')),
    name: (what) => `${prefix}.${what}`,
    key: (what) => `${keyPrefix}${what}`,
  }
}

const MAX_NUMBER = 2 ** 32 - 1
/** The numbers of a job message: name, default and smallest value. */
const NUMBERS = [
  ['attempt', 1, 1],
  ['retryCount', 0, 0],
  ['maxRetries', 0, 0],
  ['priority', 3, 0],
  ['timeoutSeconds', null, 0],
]

/** Reads a job message. Throws if it is invalid or for another job type. */
export function readJobMessage(content, jobType) {
  if (content.length > MAX_MESSAGE) throw new Error(`it has ${content.length} bytes, more than ${MAX_MESSAGE}`)
  const message = JSON.parse(content.toString('utf8'))
  for (const name of ['occurrenceId', 'jobId', 'correlationId']) {
    if (!UUID.test(message[name])) throw new Error(`its ${name} is ${message[name]}, and must be a UUID`)
    message[name] = message[name].toLowerCase()
  }
  for (const name of ['scheduledFor', 'timestamp']) {
    const isInstant = INSTANT.test(message[name]) && !Number.isNaN(Date.parse(message[name]))
    if (!isInstant) throw new Error(`its ${name} is ${message[name]}, and must be an instant with a zone`)
  }
  for (const [name, value, least] of NUMBERS) {
    message[name] ??= value
    const isWhole = message[name] === null || (Number.isInteger(message[name]) && message[name] >= least && message[name] <= MAX_NUMBER)
    if (!isWhole) throw new Error(`its ${name} is ${message[name]}, and must be a whole number from ${least}`)
  }
  if (String(message.jobType).toLowerCase() !== jobType.toLowerCase()) {
    throw new Error(`its job type is ${message.jobType}, and that of this queue is ${jobType}`)
  }
  // A malformed traceparent counts as missing.
  if (!TRACEPARENT.test(message.traceparent)) delete message.traceparent
  return message
}

/** Reads a cancel message, from its key or from the channel. Without an attempt, it is about all attempts. */
export function readCancelRequest(text) {
  try {
    const request = JSON.parse(text)
    return { id: String(request.occurrenceId).toLowerCase(), attempt: request.attempt ?? Infinity, reason: request.reason || 'cancelled on request' }
  } catch {
    return null
  }
}
