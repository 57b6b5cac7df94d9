// The errors by which a job decides what follows. Every other error leads to a retry, if the job has retries left.

/** A permanent failure: no attempt can succeed. */
export class Permanent extends Error {}

/** A failure whose next attempt starts after `ms` milliseconds instead of the job's backoff. */
export class Retry extends Error {
  constructor(message, ms) {
    super(message)
    this.ms = ms
  }
}

/** The job cannot run now. This is no failure; the next attempt starts after `ms` milliseconds. */
export class Snooze extends Error {
  constructor(message, ms) {
    super(message)
    this.ms = ms
  }
}
