// Example jobs. A job has a JSON Schema, from which the dashboard builds a form, and a function.

import { Permanent, Retry } from './outcomes.js'

/** Returns a check that an input has these fields: an object of a field's name and the type that `typeof` returns. */
export const fields = (expected) => (input) => {
  for (const [name, type] of Object.entries(expected)) {
    if (typeof input?.[name] !== type) return `the input's ${name} must be a ${type}, not ${JSON.stringify(input?.[name])}`
  }
}

export const jobs = {
  greet: {
    description: 'Greets a person, with one log line per greeting.',
    schema: {
      type: 'object',
      properties: {
        name: { type: 'string', description: 'Name of the person to greet.' },
        times: { type: 'integer', minimum: 1, maximum: 100, default: 1, description: 'Number of greetings; 1 by default.' },
      },
      required: ['name'],
    },
    check: fields({ name: 'string' }),
    run: async (ctx, { name, times = 1 }) => {
      for (let n = 1; n <= times; n++) {
        ctx.info(`Hello, ${name}!`, { time: n })
        ctx.progress((100 * n) / times, `${n} of ${times}`)
      }
      return { greeted: name, times }
    },
  },
  fetch: {
    description: 'Fetches a page, and returns its status and length.',
    schema: { type: 'object', properties: { url: { type: 'string', format: 'uri' } }, required: ['url'] },
    check: fields({ url: 'string' }),
    concurrency: 5,
    timeoutSeconds: 30,
    run: async (ctx, { url }) => {
      const response = await fetch(url, { signal: ctx.signal })
      if (response.status === 429) throw new Retry('429 Too Many Requests', 60_000)
      if (response.status === 404) throw new Permanent(`${url} does not exist`)
      if (!response.ok) throw new Error(`${url} answers ${response.status}`)
      return { status: response.status, length: (await response.text()).length }
    },
  },
}
