// The broker: topology, publishing with confirms, and claim checks.

import { randomUUID } from 'node:crypto'
import amqp from 'amqplib'
import { Backoff, now, sleep, word } from './protocol.js'

const CONFIRM_TIMEOUT_MS = 10_000
const CLASSIC = { 'x-queue-type': 'classic' }
export const REPLY_TO = 'amq.rabbitmq.reply-to'

/** Opens a connection whose errors end it, and are otherwise ignored: the caller notices the end. */
export async function connect(settings, purpose) {
  const url = new URL(settings.amqpUrl)
  url.searchParams.set('heartbeat', '10')
  const clientProperties = { connection_name: `${settings.instanceId} ${purpose}` }
  const connection = await amqp.connect(url.href, { timeout: 10_000, noDelay: true, clientProperties })
  connection.on('error', () => {})
  return connection
}

/** Declares the exchanges and queues that workers and the server share. All of them must declare the same. */
export async function declareShared(channel, settings) {
  await channel.assertExchange(settings.name('jobs'), 'topic', { durable: true })
  await channel.assertExchange(settings.name('dlx'), 'fanout', { durable: true })
  await channel.assertQueue(settings.name('dlq'), { durable: true, arguments: CLASSIC })
  await channel.bindQueue(settings.name('dlq'), settings.name('dlx'), '')
  for (const name of ['status', 'logs', 'registration', 'claims'].map(settings.name)) {
    await channel.assertExchange(name, 'direct', { durable: true })
    await channel.assertQueue(name, { durable: true, arguments: CLASSIC })
    await channel.bindQueue(name, name, name)
  }
}

/** Declares the queue of a job type, and returns its name. */
export async function declareQueue(channel, settings, jobType) {
  const [worker, type] = [word(settings.workerId), word(jobType)]
  const queue = settings.name(`jobs.${worker}.${type}`)
  const options = {
    // amqplib would choose a smaller type for this number.
    'x-max-priority': { '!': 'int', value: 5 },
    'x-dead-letter-exchange': settings.name('dlx'),
    ...CLASSIC,
  }
  await channel.assertQueue(queue, { durable: true, arguments: options })
  await channel.bindQueue(queue, settings.name('jobs'), `${worker}.${type}.*`)
  return queue
}

/** A connection for publishing. It is opened with the first message, and again after an error. */
export class Publisher {
  #opening = null
  #connection = null
  #pending = new Map() // message id -> { resolve, reject }

  constructor(settings, purpose, onOpen = async () => {}) {
    Object.assign(this, { settings, purpose, onOpen, generation: 0 })
  }

  /** Opens a connection if none is open. */
  open() {
    this.#opening ??= this.#open().catch((error) => {
      this.close()
      throw error
    })
    return this.#opening
  }

  async #open() {
    const connection = await connect(this.settings, this.purpose)
    this.#connection = connection
    connection.on('close', () => this.#connection === connection && this.#lose())
    const channel = await connection.createConfirmChannel()
    channel.on('error', () => {})
    channel.on('close', () => this.#connection === connection && this.close())
    // The broker confirms a returned message too; its return comes first.
    channel.on('return', (message) => this.#settle(message.properties.messageId, new Error('the broker returned it')))
    await declareShared(channel, this.settings)
    await this.onOpen(channel)
    this.generation += 1
    return channel
  }

  /** Publishes a message. Resolves once the broker has confirmed it and has not returned it. */
  async send(exchange, message, properties = {}) {
    const channel = await this.open()
    const [name, messageId] = [this.settings.name(exchange), randomUUID()]
    const timestamp = Math.floor(Date.now() / 1000)
    const envelope = { contentType: 'application/json', timestamp, appId: this.settings.instanceId, ...properties }
    const confirmed = new Promise((resolve, reject) => this.#pending.set(messageId, { resolve, reject }))
    const timer = setTimeout(() => {
      this.#settle(messageId, new Error('the broker has not confirmed it within 10 s'))
      this.close()
    }, CONFIRM_TIMEOUT_MS)
    try {
      const options = { ...envelope, messageId, persistent: true, mandatory: true }
      channel.publish(name, name, Buffer.from(JSON.stringify(message)), options, (error) => this.#settle(messageId, error))
      await confirmed
    } finally {
      clearTimeout(timer)
      this.#pending.delete(messageId)
    }
  }

  #settle(messageId, error) {
    const pending = this.#pending.get(messageId)
    this.#pending.delete(messageId)
    if (error) pending?.reject(error)
    else pending?.resolve()
  }

  #lose() {
    this.#opening = this.#connection = null
    for (const messageId of [...this.#pending.keys()]) this.#settle(messageId, new Error('the connection was lost'))
  }

  close() {
    const connection = this.#connection
    this.#lose()
    return connection?.close().catch(() => {})
  }
}

/** Asks the server whether an attempt may start. */
export class ClaimChecker {
  #replies = new Map() // correlation id -> callback

  constructor(settings) {
    this.settings = settings
    this.publisher = new Publisher(settings, 'claims', (channel) =>
      channel.consume(REPLY_TO, (reply) => reply && this.#replies.get(reply.properties.correlationId)?.(reply), { noAck: true }),
    )
  }

  /** Returns the server's reply, or null without one. With `starts` the server records the start, which follows if granted. */
  async ask(run, timeoutMs = 10_000, starts = false) {
    const correlationId = randomUUID()
    const request = { occurrenceId: run.id, attempt: run.attempt, instanceId: this.settings.instanceId }
    if (starts) request.startsAt = now()
    const replied = new Promise((resolve) => this.#replies.set(correlationId, resolve))
    let timer
    const expired = new Promise((resolve) => (timer = setTimeout(resolve, timeoutMs, null)))
    try {
      const sent = this.publisher.send('claims', request, { replyTo: REPLY_TO, correlationId })
      const failed = new Promise((resolve) => sent.catch(() => resolve(null)))
      const reply = await Promise.race([replied, expired, failed])
      return reply && JSON.parse(reply.content.toString('utf8'))
    } catch {
      return null
    } finally {
      clearTimeout(timer)
      this.#replies.delete(correlationId)
    }
  }
}

/** Sends reports and log lines in order, and keeps each until the broker has confirmed it. */
export class Reporter {
  reports = [] // { report, confirmed }
  lines = new Map() // occurrence id -> lines
  #count = 0
  #wake = () => {}
  #isSending = false

  constructor(settings) {
    this.publisher = new Publisher(settings, 'reports')
  }

  report(report, confirmed = () => {}) {
    if (report.progress) {
      // A newer progress report replaces one that is not sent yet.
      const isSame = ({ report: one }) =>
        one.progress && one.occurrenceId === report.occurrenceId && one.attempt === report.attempt
      const known = this.reports.findIndex(isSame)
      if (known >= 0) return void (this.reports[known] = { report, confirmed })
    }
    this.reports.push({ report, confirmed })
    this.#wake()
  }

  log(id, line, most) {
    if (this.#count >= most) return // Lines may be dropped while the broker is away.
    if (!this.lines.has(id)) this.lines.set(id, [])
    this.lines.get(id).push(line)
    this.#count += 1
    this.#wake()
  }

  isIdle() {
    return this.reports.length === 0 && this.lines.size === 0 && !this.#isSending
  }

  async run() {
    let backoff = new Backoff()
    for (;;) {
      if (this.isIdle()) await new Promise((resolve) => (this.#wake = resolve))
      if (this.reports.length === 0) await sleep(20) // More lines follow soon.
      this.#isSending = true
      const reports = take(this.reports, ({ report }) => report)
      // Lines are sent first: a run that is shown as ended has its whole log.
      const lines = this.lines
      this.lines = new Map()
      try {
        for (const [id, waiting] of lines) await this.#sendLines(id, waiting, lines)
        if (reports.length > 0) {
          await this.publisher.send('status', { reports: reports.map(({ report }) => report) })
          for (const { confirmed } of reports.splice(0)) confirmed()
        }
        backoff = new Backoff()
      } catch (error) {
        console.error(`reports could not be sent and are kept: ${error.message}`)
        this.reports.unshift(...reports)
        for (const [id, later] of this.lines) lines.set(id, [...(lines.get(id) ?? []), ...later])
        this.lines = lines
        this.publisher.close()
        await sleep(backoff.next())
      }
      this.#isSending = false
    }
  }

  async #sendLines(id, waiting, lines) {
    while (waiting.length > 0) {
      const some = take(waiting, (line) => line, 500)
      try {
        await this.publisher.send('logs', { occurrenceId: id, lines: some })
      } catch (error) {
        waiting.unshift(...some)
        throw error
      }
      this.#count -= some.length
    }
    lines.delete(id)
  }
}

/** Takes the first things, as many as fit into one message. */
function take(things, content, most = 200) {
  let [size, count] = [0, 0]
  while (count < Math.min(things.length, most)) {
    size += Buffer.byteLength(JSON.stringify(content(things[count])))
    if (count > 0 && size > 512 * 1024) break
    count += 1
  }
  return things.splice(0, count)
}
