//! Write a job in Rust, and let it run whenever the schedule says.
//!
//! A job is a type with an input, an output and an `async fn`. A worker is a process that offers some job types under a
//! worker id; start as many as you like. The server learns from them what can be run and draws a form for each input;
//! people define in the dashboard when it runs.
//!
//! ```no_run
//! use milvaion_worker::{Job, JobContext, JobError, Worker, WorkerConfig};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! struct Greet;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Whom {
//!     /// Who is greeted.
//!     name: String,
//! }
//!
//! impl Job for Greet {
//!     const TYPE: &'static str = "greet";
//!     const DESCRIPTION: &'static str = "Writes a greeting into the log.";
//!     type Input = Whom;
//!     type Output = String;
//!
//!     async fn run(&self, ctx: &JobContext, input: Whom) -> Result<String, JobError> {
//!         ctx.info(format!("attempt {} of {}", ctx.attempt(), ctx.job_name()));
//!         Ok(format!("Hello, {}!", input.name))
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), milvaion_worker::WorkerError> {
//!     Worker::builder().config(WorkerConfig::from_env()?).job(Greet).build()?.run().await
//! }
//! ```
//!
//! # What a job may rely on
//!
//! - An attempt of an occurrence is started by one process only, however often the broker delivers its message, and
//!   whenever a process dies: what may have begun is followed by another attempt, if the job allows one.
//! - A panic, an error, a timeout end the attempt and not the worker, and are reported with their text.
//! - A failed attempt is followed by another as long as the job has retries left; waiting for it takes nothing here.
//! - What libraries say with `tracing` while it runs stands in its log, with a [`CaptureLayer`] in the subscriber.
//! - What it writes to its log is seen live, and is stored before its end is.
//! - It is told when its time is up, somebody cancels it or the worker stops, and has a moment to tidy up
//!   ([`Job::GRACE`]).
//! - When more runs are due than may run at once, the highest priority runs first.
//! - A broker or a Redis that is away disturbs no run: what is to be reported waits, on disk, so that it outlives a
//!   worker that is killed meanwhile.
//!
//! That an *effect* happens exactly once is not promised, because nobody can: a process may die between the effect and
//! its report. Key effects by [`JobContext::occurrence_id`].
//!
//! # How it is made
//!
//! ```text
//!  jobs queue ─► consumer ─► permits ─► claim batcher ─► executor ─► your job
//!                   ▲                          │  reports, log lines
//!                   │ ack when confirmed       ▼
//!   ── your runtime ┴────────────────────── reporter, heartbeat ── control thread ─► status, logs, registration
//! ```
//!
//! The reading order, folder by folder:
//!
//! - `api`: [`Job`] and [`outcome`] are what users write; `worker` puts all parts together.
//! - `run`: `executor` runs one attempt.
//! - `delivery`: `consumer`, `admission`, `claim` and `run_table` see to it that it is one; `permits` decides which
//!   delivery runs next; `claim_batcher` and `acks` make one round trip of many.
//! - `reporting`: `reporter` and `log_buffer` send reports and log lines in batches, `outbox` keeps what the broker has
//!   not confirmed.
//! - `control`: `control_thread` and `heartbeat` keep the worker registered, `cancel` receives requests to cancel,
//!   `metrics` answers health checks, `shutdown` ends the worker.
//! - `net`: `connection`, `topology` and `publisher` hold the AMQP connections.
//! - `faults` names the points at which a test may end the process. To test a job without any service, see [`testing`].

mod api;
mod control;
mod delivery;
mod net;
mod reporting;
mod run;

mod clock;
mod faults;

pub mod testing;

pub use api::{
    config::WorkerConfig,
    error::{ConfigErrors, WorkerError},
    job::{Job, JobContext},
    outcome,
    outcome::JobError,
    worker::{Worker, WorkerBuilder},
};
pub use milvaion_protocol::message::LogLevel;
pub use reporting::outbox::Outbox;
pub use run::capture::CaptureLayer;
pub use tokio_util::sync::CancellationToken;
