// Redis: claims, heartbeats of the instance, and cancel requests.

import { Redis } from 'ioredis'
import { CLAIM_RETENTION_MS, LEASE_MS } from './protocol.js'

const UNREPORTED_MS = 600_000 // after which an end that is recorded in Redis should have been reported

// KEYS: running:{occurrence}, cancel:{occurrence}, claims_since. ARGV: instance, attempt, lifetime of the key, lease, and 1 if
// the message may be a duplicate. Also returns the time since when Redis has held claims, and sets it if there is none. Within
// a lease after it, a possible duplicate is not claimed, and the time left is returned without a holder.
const CLAIM = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[3], string.format('%d', now), 'NX')
local since = redis.call('GET', KEYS[3])
local age, lease = now - (tonumber(since) or 0), tonumber(ARGV[4])
if ARGV[5] == '1' and age >= 0 and age < lease then return {'', lease - age, '', since} end
local held, mark = redis.call('GET', KEYS[1]), ARGV[1] .. ':' .. ARGV[2]
local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
if other and other >= tonumber(ARGV[2]) then return {held, redis.call('PTTL', KEYS[1]), '', since} end
redis.call('SET', KEYS[1], mark, 'PX', ARGV[3])
return {'', 0, redis.call('GET', KEYS[2]) or '', since}
`
// KEYS: running:{occurrence}. ARGV: instance, attempt, lifetime of the key. Keeps the claim of a later attempt.
const END = `
local held = redis.call('GET', KEYS[1])
local other = held and held ~= ARGV[1] .. ':' .. ARGV[2] and tonumber(string.match(held, ':(%d+)$'))
if other and other >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], 'done:' .. ARGV[2], 'PX', ARGV[3])
return 1
`
// KEYS: running:{occurrence} of each run. ARGV: lifetime of the keys, then the value of each claim. Returns the positions and the
// values of the keys in which another instance has claimed this attempt or a later one, in turns.
const RENEW = `
local lost = {}
for i, key in ipairs(KEYS) do
    local mark, held = ARGV[i + 1], redis.call('GET', key)
    local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
    if other and other >= tonumber(string.match(mark, ':(%d+)$')) then
        lost[#lost + 1], lost[#lost + 2] = i, held
    else
        redis.call('SET', key, mark, 'PX', ARGV[1])
    end
end
return lost
`
// KEYS: running:{occurrence}. ARGV: value of the claim.
const GIVE_BACK = `if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end`

export class Claims {
  constructor(settings, onCancel, onSubscribed) {
    this.settings = settings
    const retryStrategy = (times) => Math.min(200 * 2 ** times, 2_000) * (0.8 + 0.4 * Math.random())
    const options = { enableOfflineQueue: false, maxRetriesPerRequest: 0, connectTimeout: 2_000, retryStrategy }
    this.redis = new Redis(settings.redisUrl, { ...options, commandTimeout: 1_000 })
    // A connection that subscribes accepts no other commands.
    this.subscriber = new Redis(settings.redisUrl, { ...options, autoResubscribe: false, keepAlive: 10_000 })
    for (const client of [this.redis, this.subscriber]) client.on('error', () => {})
    this.subscriber.on('message', (_, text) => onCancel(text))
    this.subscriber.on('ready', async () => {
      try {
        await this.subscriber.subscribe(settings.key('cancellation_channel'))
        await onSubscribed()
      } catch {
        this.subscriber.disconnect(true)
      }
    })
  }

  /** Waits until Redis answers, for two seconds at most. */
  async ready() {
    if (this.redis.status === 'ready') return
    await new Promise((resolve) => {
      this.redis.once('ready', resolve)
      setTimeout(resolve, 2_000).unref()
    })
  }

  #key(run) {
    return this.settings.key(`running:${run.id}`)
  }

  #value(run) {
    return `${this.settings.instanceId}:${run.attempt}`
  }

  /**
   * Claims a run. Without a holder the claim is ours, unless there is a wait. The lease is null if it has expired, or
   * if the attempt has ended and its end should have been reported long ago.
   */
  async claim(run, mayBeDuplicate) {
    const keys = [this.#key(run), this.settings.key(`cancel:${run.id}`), this.settings.key('claims_since')]
    const times = [LEASE_MS + CLAIM_RETENTION_MS, LEASE_MS]
    const values = [this.settings.instanceId, run.attempt, ...times, mayBeDuplicate ? 1 : 0]
    const [held, left, request, since] = await this.redis.eval(CLAIM, 3, ...keys, ...values)
    const end = held.lastIndexOf(':')
    const [name, attempt] = [held.slice(0, Math.max(end, 0)), Number(held.slice(end + 1))]
    const answer = { request, since: Number(since), holder: name, lease: null, wait: held ? 0 : left }
    if (name === 'done' || (held && attempt > run.attempt)) {
      answer.holder = 'done'
      // The end of this attempt should have been reported within minutes.
      answer.lease = attempt === run.attempt && left < CLAIM_RETENTION_MS - UNREPORTED_MS ? null : 0
    }
    // Some workers keep the key for the lease only; then no more than a lease is left.
    else if (left <= LEASE_MS) answer.lease = left
    else if (left > CLAIM_RETENTION_MS) answer.lease = left - CLAIM_RETENTION_MS
    return answer
  }

  /** Renews the claims of runs. Returns those of which another instance has claimed this attempt or a later one. */
  async renew(runs) {
    if (runs.length === 0) return []
    const [keys, values] = [runs.map((run) => this.#key(run)), runs.map((run) => this.#value(run))]
    const lost = await this.redis.eval(RENEW, runs.length, ...keys, LEASE_MS + CLAIM_RETENTION_MS, ...values)
    return lost.filter((_, n) => n % 2 === 0).map((position) => runs[position - 1])
  }

  /** Records the end of a run. */
  async end(run) {
    await this.redis.eval(END, 1, this.#key(run), this.settings.instanceId, run.attempt, CLAIM_RETENTION_MS)
  }

  /** Deletes the claim of a message that does not run here. */
  async giveBack(run) {
    await this.redis.eval(GIVE_BACK, 1, this.#key(run), this.#value(run)).catch(() => {})
  }

  async heartbeat() {
    await this.redis.set(this.settings.key(`heartbeat:${this.settings.instanceId}`), Date.now(), 'PX', LEASE_MS)
  }

  /** Returns the cancel request and the first attempt that may run, for each run. */
  async requests(runs) {
    if (runs.length === 0) return []
    const cancelled = await this.redis.mget(runs.map((run) => this.settings.key(`cancel:${run.id}`)))
    const revoked = await this.redis.mget(runs.map((run) => this.settings.key(`revoke:${run.id}`)))
    return runs.map((run, n) => ({ run, request: cancelled[n], first: Number(revoked[n] ?? 0) }))
  }

  async leave() {
    await this.redis.del(this.settings.key(`heartbeat:${this.settings.instanceId}`)).catch(() => {})
    this.redis.disconnect()
    this.subscriber.disconnect()
  }
}
