// Starts the worker: `node main.js`, or `node main.js FILE` with another file of jobs.

import { pathToFileURL } from 'node:url'
import { settings } from './protocol.js'
import { Worker } from './worker.js'

const module = process.argv[2] ? pathToFileURL(process.argv[2]).href : new URL('./jobs.js', import.meta.url).href
const { jobs } = await import(module)
await new Worker(settings(process.env), jobs, module).work()
