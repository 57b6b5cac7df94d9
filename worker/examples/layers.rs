//! A layer around every run, an observer of every end, and a log in which each line names its run:
//! `cargo run -p milvaion-worker --example layers`.
use std::time::Duration;

use milvaion_worker::{CaptureLayer, Events, JobContext, JobError, Next, RunEnd, Worker};
use tracing_subscriber::{filter::LevelFilter, prelude::*};

/// Runs the job with a limit that is stricter than its timeout, and logs how long it took.
async fn measured(ctx: JobContext, next: Next) -> Result<milvaion_worker::JobOutput, JobError> {
    let started = std::time::Instant::now();
    let result = tokio::time::timeout(Duration::from_secs(30), next.run(ctx.clone())).await;
    tracing::info!(duration_ms = started.elapsed().as_millis() as u64, "{} has returned", ctx.job_type());
    result.unwrap_or_else(|_| Err(JobError::new("slower than 30 s")))
}

struct FailureCounter;

impl Events for FailureCounter {
    fn ended(&self, ctx: &JobContext, end: &RunEnd<'_>) {
        if let Some(error) = end.error {
            eprintln!("{} of {} ended as {}: {error}", ctx.occurrence_id(), ctx.job_name(), end.status);
        }
    }
}

async fn greet(_: JobContext, name: String) -> Result<String, JobError> {
    // The span of the run is around this line, and the CaptureLayer copies it into the log of the occurrence.
    tracing::info!("greeting {name}");
    Ok(format!("Hello, {name}!"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lines = tracing_subscriber::fmt::layer().with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(lines).with(CaptureLayer::new()).init();
    Worker::from_env()?.job_fn("greet", greet).layer(measured).events(FailureCounter).run().await?;
    Ok(())
}
