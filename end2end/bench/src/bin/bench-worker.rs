//! The worker that `make bench` measures with. Its only job type does nothing, and only the worker's capacity limits
//! its concurrency.
//!
//! When it stops, it prints the number of runs it started as `runs 12345`. If every occurrence is completed and there
//! are as many runs as occurrences, none ran twice. `MILVAION_CAPACITY` sets its concurrency; its other settings are
//! those of any worker.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use milvaion_worker::{Job, JobContext, JobError, Worker, WorkerConfig, WorkerError};

#[derive(Clone, Default)]
struct NoopJob {
    runs: Arc<AtomicU64>,
}

/// An input without fields.
#[derive(serde::Deserialize, schemars::JsonSchema)]
struct EmptyInput {}

impl Job for NoopJob {
    const TYPE: &'static str = "noop";
    const DESCRIPTION: &'static str = "Does nothing.";
    // The maximum, so that the worker's capacity is the limit.
    const CONCURRENCY: u16 = 1000;
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, _: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,lapin=error,redis=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    let noop = NoopJob::default();
    let worker = Worker::builder().config(WorkerConfig::from_env()?).job(noop.clone()).build()?;
    worker.run().await?;
    println!("runs {}", noop.runs.load(Ordering::Relaxed));
    Ok(())
}
