// From a delivery to its last report.

import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { performance } from 'node:perf_hooks'
import { Worker as Thread } from 'node:worker_threads'
import { ClaimChecker, Publisher, REPLY_TO, Reporter, connect, declareQueue, declareShared } from './broker.js'
import { Claims } from './claims.js'
import {
  Backoff,
  CLOCK_DIFFERENCE_MS,
  HEARTBEAT_MS,
  MAX_BUFFERED_LINES,
  MAX_LINE,
  MAX_LINES,
  MAX_TEXT,
  Status,
  VERSION,
  cut,
  now,
  readCancelRequest,
  readJobMessage,
  sleep,
} from './protocol.js'

const PERMIT_WAIT_MS = 2_000 // for which a delivery waits for a permit before it is handed back
const STOP_GRACE_MS = 2_000 // for which a run may clean up before its thread is stopped
const MAX_ENDED = 10_000 // ended attempts in the table
const DEFAULT_TIMEOUT_SECONDS = 3600

/** An attempt that waits for a permit, runs, or waits for the confirmation of its last report. */
class Run {
  started = false
  over = false
  acked = false
  revoked = false // the server gave the run to another instance
  reason = null // { status, text } once the run has to end
  stopped = new Promise((resolve) => (this.resolveStopped = resolve))
  lineCount = 0

  constructor(job, message, delivery, mayBeDuplicate, instanceId) {
    Object.assign(this, { job, message, delivery, mayBeDuplicate, instanceId })
    this.id = message.occurrenceId
    this.attempt = message.attempt
    this.key = `${this.id}:${this.attempt}`
    this.timeoutMs = 1000 * (message.timeoutSeconds || job.timeoutSeconds || DEFAULT_TIMEOUT_SECONDS)
  }

  report(status, more = {}) {
    const report = { occurrenceId: this.id, attempt: this.attempt, instanceId: this.instanceId, status, timestamp: now() }
    // This worker records no spans, so it repeats that of the message.
    if (!more.progress && this.message.traceparent) report.traceparent = this.message.traceparent
    if (this.checkpoint !== undefined && status !== Status.completed) report.checkpoint = this.checkpoint
    return { ...report, ...more }
  }

  /** Requests the end of the run. The first reason is kept. */
  end(status, text) {
    this.reason ??= { status, text }
    this.resolveStopped()
  }
}

/** The consumer of all job types, with its runs and permits. */
export class Worker {
  runs = new Map() // key -> Run
  ended = new Set() // keys of the attempts that ended last
  isStopping = false

  /** `jobs` maps job types to { description, schema, concurrency, timeoutSeconds }; `module` is the file that has their code. */
  constructor(settings, jobs, module) {
    Object.assign(this, { settings, module })
    this.jobs = Object.entries(jobs).map(([type, job]) => ({ type, concurrency: 10, ...job }))
    this.permits = new Map(this.jobs.map((job) => [job, job.concurrency]))
    this.waiting = new Map(this.jobs.map((job) => [job, []]))
    this.reporter = new Reporter(settings)
    this.checker = new ClaimChecker(settings)
    this.registration = new Publisher(settings, 'heartbeats', (channel) =>
      channel.consume(REPLY_TO, (reply) => reply && this.logAnswer(reply.content), { noAck: true }),
    )
    this.registered = 0 // the connection on which hello was sent
    const onCancel = (text) => this.cancel(readCancelRequest(text))
    this.claims = new Claims(settings, onCancel, () => this.readRequests())
  }

  // --- Consuming. ---

  async work() {
    for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => this.stop())
    this.reporter.run()
    await this.claims.ready()
    this.heartbeats = setInterval(() => this.heartbeat(), HEARTBEAT_MS)
    this.heartbeat()
    let backoff = new Backoff()
    while (!this.isStopping) {
      try {
        this.connection = await connect(this.settings, 'consume')
        const closed = new Promise((resolve) => this.connection.once('close', resolve))
        await this.consume(this.connection)
        backoff = new Backoff()
        await Promise.race([closed, this.stopRequested()])
      } catch (error) {
        console.error(`the broker cannot be consumed: ${error.message}`)
        this.connection?.close().catch(() => {})
      }
      if (!this.isStopping) await sleep(backoff.next())
    }
    await this.drain()
  }

  stopRequested() {
    return new Promise((resolve) => {
      this.resolveStop = resolve
      if (this.isStopping) resolve()
    })
  }

  stop() {
    this.isStopping = true
    this.resolveStop?.()
  }

  /** Opens a channel for each job type, each with its own prefetch, so that a slow type delays no other. */
  async consume(connection) {
    // Waiting runs came over the previous connection, and are redelivered.
    for (const queue of this.waiting.values()) for (const run of queue.splice(0)) this.runs.delete(run.key)
    this.consumers = []
    for (const job of this.jobs) {
      const channel = await connection.createChannel()
      channel.on('error', () => {})
      channel.on('close', () => {
        channel.isClosed = true
        connection.close().catch(() => {})
      })
      await declareShared(channel, this.settings)
      const queue = await declareQueue(channel, this.settings, job.type)
      await channel.prefetch(job.concurrency)
      const take = (message) => (message ? this.take(job, { channel, message }) : connection.close().catch(() => {}))
      const { consumerTag } = await channel.consume(queue, take)
      this.consumers.push({ channel, consumerTag })
    }
  }

  take(job, delivery) {
    let message
    try {
      message = readJobMessage(delivery.message.content, job.type)
    } catch (error) {
      console.error(`a message of job type ${job.type} is dead-lettered: ${error.message}`)
      return this.answer(delivery, 'reject')
    }
    const { fields, properties } = delivery.message
    const mayBeDuplicate = fields.redelivered || 'x-republish' in (properties.headers ?? {})
    const run = new Run(job, message, delivery, mayBeDuplicate, this.settings.instanceId)
    const known = this.runs.get(run.key)
    if (!known && !this.ended.has(run.key)) {
      this.runs.set(run.key, run)
      this.waiting.get(job).push(run)
      run.expiry = setTimeout(() => this.returnWaiting(run), PERMIT_WAIT_MS)
      return this.startWaiting(job)
    }
    // The local table: the claim in Redis has our own value and would be granted again.
    if (known && !known.acked && known.delivery.channel.isClosed) known.delivery = delivery
    else this.answer(delivery, 'ack')
  }

  startWaiting(job) {
    const queue = this.waiting.get(job)
    while (queue.length > 0 && this.permits.get(job) > 0 && !this.isStopping) {
      const run = queue.shift()
      clearTimeout(run.expiry)
      this.permits.set(job, this.permits.get(job) - 1)
      this.handle(run)
        .catch((error) => this.fail(run, error))
        .finally(() => {
          this.permits.set(job, this.permits.get(job) + 1)
          this.startWaiting(job)
        })
    }
  }

  /** Hands a delivery back that got no permit, because another instance may have one. */
  returnWaiting(run) {
    const queue = this.waiting.get(run.job)
    const index = queue.indexOf(run)
    if (index < 0) return
    queue.splice(index, 1)
    this.leave(run, 'return')
  }

  /** Answers a delivery. If its channel is closed, the broker redelivers the message. */
  answer({ channel, message }, answer) {
    try {
      if (channel.isClosed) return
      if (answer === 'ack') channel.ack(message)
      else if (answer === 'reject') channel.reject(message, false)
      else channel.nack(message, false, true)
    } catch {
      // The channel closes at this moment.
    }
  }

  leave(run, answer) {
    clearTimeout(run.expiry)
    this.runs.delete(run.key)
    this.answer(run.delivery, answer)
  }

  /** Reports a run that could not be handled. It would stay in the heartbeats for ever otherwise. */
  async fail(run, error) {
    console.error(`${run.key} could not be handled:`, error)
    if (run.over) return
    if (run.started) {
      return this.finish(run, Status.failed, { exception: cut(`the worker could not run it: ${error?.stack ?? error}`, MAX_TEXT) })
    }
    await this.claims.giveBack(run)
    await sleep(1_000)
    if (this.runs.get(run.key) === run) this.leave(run, 'return')
  }

  // --- Admission. ---

  async handle(run) {
    const decision = await this.admit(run)
    if (decision === 'start' || decision === 'start after confirm') await this.execute(run, decision)
    else if (decision === 'drop') this.leave(run, 'ack')
    else if (decision === 'return') this.leave(run, 'return')
  }

  /** Decides to start, drop or return a message. Returns 'reported' if its end is reported already. */
  async admit(run) {
    let [mayBeDuplicate, lastLease] = [run.mayBeDuplicate, null]
    for (;;) {
      if (mayBeDuplicate) {
        const reply = await this.checker.ask(run)
        if (!reply) return this.returnLater()
        if (!reply.granted) return 'drop'
      }
      if (this.isStopping) return 'return'
      let claim
      try {
        claim = await this.claims.claim(run, mayBeDuplicate)
      } catch {
        if (mayBeDuplicate) {
          await this.claims.giveBack(run) // It may have been granted although no answer arrived.
          return this.returnLater()
        }
        // Redis would have the claim and a cancellation. Without it the server records the start.
        const reply = await this.checker.ask(run, 1_000, true)
        if (reply) return reply.granted ? 'start' : 'drop'
        return 'start after confirm'
      }
      if (claim.wait > 0) {
        // Redis has just lost its data: a living holder renews its claim within the lease.
        await sleep(1_000)
        continue
      }
      if (!claim.holder) return this.admitClaimed(run, claim, mayBeDuplicate)
      if (claim.holder === 'done' && claim.lease !== null) return 'drop'
      if (claim.lease === null) {
        if (!mayBeDuplicate) {
          mayBeDuplicate = true // The holder is gone, and it is unknown whether it has started the run: ask.
          continue
        }
        const ofDead = { instanceId: claim.holder, exception: `lost: the lease of ${claim.holder} expired before it reported the start` }
        const ofEnded = { exception: 'lost: it ended, and its end was never reported' }
        this.finish(run, Status.unknown, claim.holder === 'done' ? ofEnded : ofDead)
        return 'reported'
      }
      // Only a renewed lease shows that the holder lives.
      if (!mayBeDuplicate || (lastLease !== null && claim.lease > lastLease)) return 'drop'
      lastLease = claim.lease
      await sleep(1_000)
    }
  }

  async admitClaimed(run, claim, mayBeDuplicate) {
    const request = readCancelRequest(claim.request)
    if (request && run.attempt <= request.attempt) {
      this.finish(run, Status.cancelled, { exception: request.reason })
      return 'reported'
    }
    if (mayBeDuplicate || Date.parse(run.message.timestamp) > claim.since + CLOCK_DIFFERENCE_MS) return 'start'
    // Redis has lost its data since, and with them the end or the cancellation of what the message is about.
    const reply = await this.checker.ask(run)
    if (reply?.granted) return 'start'
    await this.claims.giveBack(run)
    return reply ? 'drop' : this.returnLater()
  }

  async returnLater() {
    await sleep(1_000)
    return 'return'
  }

  // --- Execution. ---

  async execute(run, decision) {
    if (this.isStopping) {
      await this.claims.giveBack(run)
      return this.leave(run, 'return')
    }
    // From now on the claim protects the run, and the message is acknowledged once its start is reported.
    run.started = true
    const confirmed = new Promise((resolve) => {
      this.reporter.report(run.report(Status.running), () => {
        this.acknowledge(run)
        resolve()
      })
    })
    // Without a claim and without an answer of the server, only the report has the start.
    if (decision === 'start after confirm') {
      await Promise.race([confirmed, run.stopped])
      if (run.reason) return this.finish(run, run.reason.status, { exception: run.reason.text })
    }
    const began = performance.now()
    const timer = setTimeout(() => run.end(Status.timedOut, `timed out after ${run.timeoutMs / 1000} s`), run.timeoutMs)
    const { status, ...fields } = await this.runInThread(run).finally(() => clearTimeout(timer))
    // The occurrence keeps the exception of its latest attempt only; its log keeps those of all attempts.
    if (status === Status.failed || status === Status.timedOut) this.log(run, 'error', fields.exception)
    await this.finish(run, status, { durationMs: Math.round(performance.now() - began), ...fields })
  }

  /** Runs the code of a job in a thread, so that it can block, and be stopped, without the rest of the worker. */
  runInThread(run) {
    return new Promise((resolve) => {
      const { occurrenceId, attempt, jobData, scheduledFor, checkpoint } = run.message
      const workerData = { module: this.module, type: run.job.type, occurrenceId, attempt, jobData, scheduledFor, checkpoint }
      const thread = new Thread(new URL('./run-thread.js', import.meta.url), { workerData })
      const settle = (end) => {
        resolve(end)
        thread.terminate()
      }
      // A run that ends with an error after it had to end reports the reason; a success counts.
      const ended = (end) => {
        const interrupted = run.reason && end.status !== Status.completed
        settle(interrupted ? { status: run.reason.status, exception: run.reason.text } : end)
      }
      thread.on('message', ({ log, progress, checkpoint, end }) => {
        if (checkpoint !== undefined) run.checkpoint = checkpoint
        if (log) this.log(run, log.level, log.message, log.data)
        if (progress) this.reporter.report(run.report(Status.running, { progress }))
        if (end) ended(end)
      })
      thread.on('error', (error) => ended({ status: Status.failed, exception: cut(String(error?.stack ?? error), MAX_TEXT) }))
      thread.on('exit', () => ended({ status: Status.failed, exception: 'the thread of the run ended without a result' }))
      run.stopped.then(() => {
        thread.postMessage('stop')
        setTimeout(() => ended({}), STOP_GRACE_MS).unref()
      })
    })
  }

  log(run, level, message, data) {
    if (run.lineCount > MAX_LINES) return
    if (run.lineCount === MAX_LINES) {
      ;[level, message, data] = ['warn', `after ${MAX_LINES} lines, the log of this attempt ends here`, undefined]
    }
    const line = { seq: run.attempt * 1_000_000 + run.lineCount, at: now(), level, message: cut(String(message), MAX_LINE) }
    run.lineCount += 1
    this.reporter.log(run.id, data === undefined ? line : { ...line, data }, MAX_BUFFERED_LINES)
  }

  async finish(run, status, fields) {
    if (run.over) return
    run.over = true
    if (run.revoked && status === Status.queued) await this.claims.giveBack(run) // The server waits for this.
    // Another instance has claimed the run, and reports its end.
    if (status === null) return this.settled(run)
    this.reporter.report(run.report(status, fields), () => this.settled(run))
  }

  acknowledge(run) {
    if (run.acked) return
    run.acked = true
    this.answer(run.delivery, 'ack')
  }

  /** Completes a run after the broker has confirmed its last report. */
  async settled(run) {
    await this.claims.end(run).catch((error) => console.error(`the end of ${run.key} is not in Redis: ${error.message}`))
    this.runs.delete(run.key)
    this.ended.add(run.key)
    if (this.ended.size > MAX_ENDED) this.ended.delete(this.ended.values().next().value)
    this.acknowledge(run)
  }

  // --- Heartbeats and requests. ---

  /** The started runs whose end is not confirmed. The server treats runs in no heartbeat as lost. */
  unsettled() {
    return [...this.runs.values()].filter((run) => run.started)
  }

  async heartbeat() {
    await Promise.all([this.heartbeatToRedis(), this.heartbeatToServer()])
  }

  async heartbeatToServer() {
    if (this.isSendingHeartbeat) return
    this.isSendingHeartbeat = true
    const { workerId, instanceId } = this.settings
    try {
      await this.registration.open()
      const { generation } = this.registration
      let message = { kind: 'heartbeat', running: this.unsettled().map((run) => run.id), stopping: this.isStopping }
      let properties = {}
      // The broker and the server at the other end of a new connection may not know this instance.
      if (this.registered !== generation) {
        message = this.hello()
        properties = { replyTo: REPLY_TO, correlationId: randomUUID() }
      }
      await this.registration.send('registration', { ...message, workerId, instanceId, timestamp: now() }, properties)
      this.registered = generation
    } catch (error) {
      console.error(`the heartbeat could not be sent to the server: ${error.message}`)
      this.registration.close()
    } finally {
      this.isSendingHeartbeat = false
    }
  }

  hello() {
    const jobTypes = this.jobs.map(({ type, description, schema, concurrency, timeoutSeconds }) => {
      return { jobType: type, description, schema, concurrency, timeoutSeconds }
    })
    const capacity = this.jobs.reduce((sum, job) => sum + job.concurrency, 0)
    return { kind: 'hello', host: hostname(), pid: process.pid, version: VERSION, capacity, jobTypes, protocol: 1, features: ['checkpoint', 'claims'] }
  }

  /** Logs the answer of the server to hello: what it refused. A worker without an answer runs all the same. */
  logAnswer(content) {
    try {
      const { accepted, problems } = JSON.parse(content.toString('utf8'))
      for (const { jobType, schedule, text } of problems ?? []) {
        const part = [jobType, schedule].filter(Boolean).join(' ') || 'the worker'
        console.error(`the server refused a part of the registration: ${part}: ${text}`)
      }
      if (!accepted) console.error(`the server refused the registration of ${this.settings.instanceId}`)
    } catch (error) {
      console.error(`the answer of the server to the registration cannot be read: ${error.message}`)
    }
  }

  async heartbeatToRedis() {
    if (this.isRenewing) return // Redis is slow.
    this.isRenewing = true
    try {
      await this.claims.heartbeat()
      // Not those that were given back because the server revoked them.
      const claimed = this.unsettled().filter((run) => !(run.revoked && run.over))
      // A run that has ended meanwhile may have recorded its end.
      for (const run of await this.claims.renew(claimed)) if (!run.over) run.end(null, 'claimed by another instance')
      await this.readRequests()
    } catch (error) {
      console.error(`the heartbeat could not be sent to Redis: ${error.message}`)
    } finally {
      this.isRenewing = false
    }
  }

  async readRequests() {
    for (const { run, request, first } of await this.claims.requests(this.unsettled())) {
      if (request) this.cancel(readCancelRequest(request))
      if (run.attempt < first) {
        run.revoked = true
        run.end(Status.queued, 'revoked: the server receives no messages of this worker')
      }
    }
  }

  /** Ends an attempt and earlier ones. */
  cancel(request) {
    if (!request) return
    for (const run of this.runs.values()) {
      if (run.id === request.id && run.attempt <= request.attempt) run.end(Status.cancelled, request.reason)
    }
  }

  // --- Shutdown. ---

  async drain() {
    const until = async (isDone, ms) => {
      const end = performance.now() + ms
      while (!isDone() && performance.now() < end) await sleep(20)
    }
    for (const { channel, consumerTag } of this.consumers ?? []) await channel.cancel(consumerTag).catch(() => {})
    for (const queue of this.waiting.values()) for (const run of queue.splice(0)) this.leave(run, 'return')
    await until(() => this.runs.size === 0, this.settings.graceMs)
    for (const run of this.runs.values()) run.end(Status.queued, 'interrupted: its worker is stopping')
    await until(() => this.runs.size === 0, STOP_GRACE_MS + 10_000)
    for (const run of this.runs.values()) if (!run.started) this.leave(run, 'return')
    clearInterval(this.heartbeats)
    const goodbye = { kind: 'goodbye', instanceId: this.settings.instanceId }
    await this.registration.send('registration', goodbye).catch(() => {})
    await this.claims.leave()
    // Last, because its end returns what is not acknowledged.
    await Promise.all([this.reporter.publisher.close(), this.checker.publisher.close(), this.registration.close()])
    await this.connection?.close().catch(() => {})
    process.exit(0)
  }
}
