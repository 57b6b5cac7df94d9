//! The SDK for workers of the Milvaion job scheduler.
//!
//! A *job* is a type with an input, an output and an `async fn`. A *worker* is a process that offers one or more job
//! types under a worker id; any number of instances of it can run at once. Each instance announces its job types to the
//! server together with the JSON Schema of their inputs, from which the dashboard builds a form. Users define in the
//! dashboard when a job runs. The server sends each due occurrence through RabbitMQ to one instance, which runs it and
//! reports its progress and its end.
//!
//! ```no_run
//! use milvaion_worker::{Job, JobContext, JobError, Worker};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! struct Greet;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct GreetInput {
//!     /// Name of the person to greet.
//!     name: String,
//! }
//!
//! impl Job for Greet {
//!     const TYPE: &'static str = "greet";
//!     const DESCRIPTION: &'static str = "Writes a greeting.";
//!     type Input = GreetInput;
//!     type Output = String;
//!
//!     async fn run(&self, ctx: &JobContext, input: GreetInput) -> Result<String, JobError> {
//!         ctx.info(format!("attempt {} of {}", ctx.attempt(), ctx.job_name()));
//!         Ok(format!("Hello, {}!", input.name))
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), milvaion_worker::WorkerError> {
//!     Worker::from_env()?.job(Greet).run().await
//! }
//! ```
//!
//! # Guarantees
//!
//! A job may rely on the following:
//!
//! - **One start per attempt.** Only one process starts an attempt, however often the broker delivers its message and
//!   whenever a process dies. If an attempt may have begun and was lost with its process, another attempt follows,
//!   provided that the job allows one.
//! - **Failures are isolated.** A panic, an error or a timeout ends the attempt and not the worker, and is reported
//!   with its text. The panic hook of the program is called for the panics of jobs too. A program that is built with
//!   `panic = "abort"` does not have this guarantee: a panic then ends the process with all its runs, which are reported as
//!   lost by the next process on the same [`Outbox`], or when their heartbeats are missing.
//! - **Pending retries cost nothing.** A failed attempt is followed by another one as long as the job has retries left.
//!   A pending retry uses no resources of the worker.
//! - **Logs are live.** The dashboard shows the log lines of a run while it runs. Its last lines are sent before its end
//!   and over another queue, so they are usually stored before it, and rarely after it: a stream of the log waits for them
//!   until two seconds after the end, and two seconds after each of them. With a [`CaptureLayer`] in the subscriber, the
//!   log also contains the `tracing` events of the libraries that the job calls.
//! - **Runs are traced.** The code of a job runs within a span that names its occurrence, and
//!   [`JobContext::traceparent`] is for the systems that it calls. With the feature `otel`, and a subscriber that records
//!   spans with `tracing-opentelemetry`, the job's own spans join the trace that began on the server.
//! - **Cancellation comes with a grace period.** When the timeout expires, a user cancels the run or the worker stops,
//!   the job is notified through [`JobContext::cancelled`] and has time to clean up ([`Job::GRACE`]).
//! - **Priorities hold.** When more runs are due than may run at once, the run with the highest priority starts first.
//! - **Outages do not disturb runs.** While RabbitMQ or Redis is unavailable, runs continue. Their reports wait in the
//!   [`Outbox`] on disk, so they survive a worker that is killed in the meantime.
//!
//! Execution of *effects* is at-least-once, not exactly-once, and no scheduler can promise more: a process can die
//! between an effect and the report of it. Make effects idempotent, with [`JobContext::occurrence_id`] as the
//! idempotency key.
//!
//! # Rules and schedules in code
//!
//! A job declares its retries, its limits and its schedules beside its code, with [`Job::options`] or
//! [`WorkerBuilder::job_with`]; see [`JobOptions`]. They are announced with the job type, and the server keeps a job for each
//! schedule. [`WorkerBuilder::job_fn`] registers a function, without a type. A [`Layer`] wraps every run, and [`Events`]
//! observes every end.
//!
//! # Enqueueing
//!
//! [`JobContext::client`] enqueues occurrences of other jobs, now, later and in bulk, with the running occurrence as their
//! parent. Programs that are no workers use the same client: `milvaion-client` has it for the broker and for the REST API.
//!
//! # Singleton loops
//!
//! A worker may also have *singleton loops*, declared with [`WorkerBuilder::singleton`]: functions that exactly one instance
//! of the fleet runs again and again, at intervals down to 10 milliseconds. The instances elect a leader in Redis, and the
//! [`Tick`] of a run has the epoch of its leader, a fencing token. Loops have no input, no retries and no history, and a
//! worker that has only loops needs no RabbitMQ. [`testing::TestLoop`] runs one in a test.
//!
//! # Features
//!
//! | Feature | Default | Contents |
//! |---|---|---|
//! | `client` | yes | [`JobContext::client`] and [`JobContext::enqueue`] |
//! | `cron` | yes | cron expressions of singleton loops, with the time zones of the IANA; schedules of jobs need none |
//! | `native-tls` | yes | TLS with the library of the system, for `amqps://` and `rediss://` |
//! | `rustls` | no | TLS with rustls and ring instead; needs `default-features = false`, because `native-tls` excludes it |
//! | `outbox` | yes | the [`Outbox`] on disk, with a bundled SQLite; without it, unsent reports are lost with their process |
//! | `otel` | no | spans of runs continue the trace of the server |
//!
//! A program can link one version of SQLite only. Without it:
//! `default-features = false, features = ["client", "native-tls"]`. A program with the SDK alone then takes 58 s to compile, and
//! 74 s with the default features (two cores, from nothing, in the profile `dev`, without the download).
//!
//! # Requirements
//!
//! The SDK runs on Unix only: the shutdown uses its signals, and the outbox its file permissions. A worker connects to RabbitMQ
//! and to Redis.
//!
//! # Architecture
//!
//! ```text
//!  jobs queue ─► consumer ─► permits ─► claim batcher ─► executor ─► your job
//!                   ▲                          │  reports, log lines
//!                   │ ack when confirmed       ▼
//!   ── your runtime ┴────────────────────── reporter, heartbeat ── control thread ─► status, logs, registration
//! ```
//!
//! Each folder is a module that opens with a short essay on its contents. The recommended reading order:
//!
//! 1. `api`: [`Job`], [`JobContext`] and [`JobError`], which users implement, receive and return, and `worker`, which
//!    assembles all parts.
//! 2. `run`: `executor` runs one attempt.
//! 3. `delivery`: `consumer`, `admission`, `claim` and `run_table` ensure that an attempt starts at most once.
//!    `permits` decides which delivery runs next. `claim_batcher` and `acks` combine the round trips of many
//!    deliveries.
//! 4. `reporting`: `reporter` and `log_buffer` send reports and log lines in batches. `outbox` stores on disk what the
//!    broker has not confirmed.
//! 5. `control`: `control_thread` and `heartbeat` keep the worker registered, `cancel` receives cancel requests,
//!    `metrics` serves health checks and metrics, and `shutdown` drains the worker.
//! 6. `net`: `connection`, `topology` and `publisher` manage the AMQP connections, and `redis` the one to Redis.
//! 7. `singleton`: `pace` and `term` decide when a loop runs and when a run must end, `loop_runner` is one loop, and `loop_thread`
//!    runs all of them beside the runtime of the program.
//!
//! `faults` defines the points at which a test can end the process. [`testing`] runs a job or a loop in a test without any
//! service.

#[cfg(all(feature = "native-tls", feature = "rustls"))]
compile_error!(
    "the features `native-tls` and `rustls` exclude each other, because the Redis client finds no certificates with both; \
     for rustls, set `default-features = false` and name the other features that you need"
);

/// The client with which a job, or another program, enqueues occurrences.
#[cfg(feature = "client")]
pub mod client {
    pub use milvaion_client::{
        BrokerClient, Enqueue, EnqueueClient, EnqueueError, EnqueueTransport, Enqueued, IngestOutcome, IngestResult,
        NewOccurrence, RecordingClient,
        enqueue::{EnqueueFuture, Unanswered},
    };
    pub use milvaion_protocol::trace::Traceparent;
}

mod api;
mod control;
mod delivery;
mod net;
mod reporting;
mod run;
mod singleton;

mod clock;
mod faults;

pub mod testing;

pub use api::{
    builder::WorkerBuilder,
    config::WorkerConfig,
    context::JobContext,
    error::{ConfigErrors, ConfigFileError, OutboxError, WorkerError},
    events::{Events, RunEnd},
    job::Job,
    layer::{JobOutput, Layer, Next},
    options::{JobOptions, ScheduleOptions, Unique},
    outcome::JobError,
    rules::{Misfire, OnLost, Overlap},
    timing::{Cron, Timing},
    worker::Worker,
};
pub use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::LogLevel,
    status::OccurrenceStatus,
};
/// The crate of the registry that [`WorkerBuilder::register_metrics`] takes.
pub use prometheus_client;
pub use reporting::outbox::Outbox;
pub use run::{capture::CaptureLayer, stop_signal::StopReason};
/// The crate of the JSON Schemas of inputs, whose derive macro each input type needs.
pub use schemars;
#[cfg(feature = "cron")]
pub use singleton::{builder::CronRhythm, pace::LoopMisfire};
pub use singleton::{
    builder::{LoopBuilder, NewLoop, PeriodicRhythm},
    options::LoopOverrides,
    tick::Tick,
};
pub use tokio_util::sync::CancellationToken;
