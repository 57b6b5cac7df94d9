// The job types of docs/conformance.md. Each run writes a line to the ledger as it begins, so that the conformance kit sees a
// run that starts twice or is never reported.

import { appendFileSync } from 'node:fs'
import { fields } from './jobs.js'
import { Permanent, Retry, Snooze } from './outcomes.js'

function testJob(expected, run, options = {}) {
  const types = { number: 'integer', boolean: 'boolean' }
  const properties = Object.fromEntries(Object.entries(expected).map(([name, type]) => [name, { type: types[type] }]))
  return {
    description: 'A job type of the conformance kit.',
    schema: { type: 'object', properties, required: Object.keys(expected) },
    check: fields(expected),
    run: async (ctx, input) => {
      appendFileSync(process.env.MILVAION_CONFORMANCE_LEDGER, `${ctx.occurrenceId} ${ctx.attempt}\n`)
      return run(ctx, input)
    },
    ...options,
  }
}

export const jobs = {
  'conformance-echo': testJob({}, async (_, input) => JSON.stringify(input)),
  'conformance-sleep': testJob({ ms: 'number' }, async (ctx, { ms }) => ctx.sleep(ms), { concurrency: 4 }),
  'conformance-fail': testJob({ times: 'number' }, async (ctx, { times, permanent, retryAfterMs }) => {
    if (ctx.attempt > times) return
    const reason = `failure ${ctx.attempt}`
    if (permanent) throw new Permanent(reason)
    if (retryAfterMs) throw new Retry(reason, retryAfterMs)
    throw new Error(reason)
  }),
  'conformance-snooze': testJob({ times: 'number', ms: 'number' }, async (ctx, { times, ms }) => {
    if (ctx.attempt <= times) throw new Snooze('not yet', ms)
  }),
  'conformance-log': testJob({ lines: 'number' }, async (ctx, { lines }) => {
    for (let n = 0; n < lines; n++) ctx.info(`line ${n}`)
  }),
  'conformance-progress': testJob({ steps: 'number' }, async (ctx, { steps }) => {
    for (let step = 1; step <= steps; step++) {
      ctx.progress((100 * step) / steps, `step ${step}`)
      await ctx.sleep(100)
    }
  }),
  'conformance-checkpoint': testJob({}, async (ctx, { value }) => {
    if (ctx.lastCheckpoint !== undefined) return JSON.stringify(ctx.lastCheckpoint)
    ctx.checkpoint(value)
    throw new Error('the next attempt continues')
  }),
  'conformance-block': testJob({ ms: 'number' }, async (_, { ms }) => {
    const end = performance.now() + ms
    while (performance.now() < end);
  }),
}
