//! A worker with the job types of `docs/conformance.md`, for the conformance kit:
//! `milvaion conformance -- target/debug/examples/conformance`.
//!
//! Each run writes a line to the ledger as it begins, so that the kit sees a run that starts twice or is never reported.
use std::{
    fs::OpenOptions,
    io::Write,
    time::{Duration, Instant},
};

use milvaion_worker::{Job, JobContext, JobError, Worker, WorkerConfig, WorkerError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Writes the start of a run to the ledger.
fn begin(ctx: &JobContext) -> Result<(), JobError> {
    let ledger = std::env::var("MILVAION_CONFORMANCE_LEDGER")?;
    let line = format!("{} {}\n", ctx.occurrence_id(), ctx.attempt());
    OpenOptions::new().append(true).create(true).open(ledger)?.write_all(line.as_bytes())?;
    Ok(())
}

/// Any object.
#[derive(Deserialize, Serialize, JsonSchema)]
struct EchoInput {
    #[serde(flatten)]
    fields: Map<String, Value>,
}

#[derive(Deserialize, JsonSchema)]
struct DurationInput {
    /// Duration in milliseconds.
    ms: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FailInput {
    /// Number of attempts that fail.
    times: u32,
    #[serde(default)]
    permanent: bool,
    /// Delay before the next attempt in milliseconds.
    #[serde(default)]
    retry_after_ms: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct SnoozeInput {
    /// Number of attempts that are snoozed.
    times: u32,
    /// Delay before the next attempt in milliseconds.
    ms: u64,
}

#[derive(Deserialize, JsonSchema)]
struct LogInput {
    lines: u32,
}

#[derive(Deserialize, JsonSchema)]
struct CheckpointInput {
    /// The checkpoint.
    value: Value,
}

#[derive(Deserialize, JsonSchema)]
struct ProgressInput {
    steps: u32,
}

struct Echo;

impl Job for Echo {
    const TYPE: &'static str = "conformance-echo";
    const DESCRIPTION: &'static str = "Returns its input.";
    type Input = EchoInput;
    type Output = EchoInput;

    async fn run(&self, ctx: &JobContext, input: EchoInput) -> Result<EchoInput, JobError> {
        begin(ctx)?;
        Ok(input)
    }
}

struct Sleep;

impl Job for Sleep {
    const TYPE: &'static str = "conformance-sleep";
    const DESCRIPTION: &'static str = "Sleeps, and ends early if it has to.";
    const CONCURRENCY: u16 = 4;
    type Input = DurationInput;
    type Output = u64;

    async fn run(&self, ctx: &JobContext, input: DurationInput) -> Result<u64, JobError> {
        begin(ctx)?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(input.ms)) => Ok(input.ms),
            () = ctx.cancelled().cancelled() => Err(JobError::new("interrupted")),
        }
    }
}

struct Fail;

impl Job for Fail {
    const TYPE: &'static str = "conformance-fail";
    const DESCRIPTION: &'static str = "Fails in its first attempts.";
    type Input = FailInput;
    type Output = u32;

    async fn run(&self, ctx: &JobContext, input: FailInput) -> Result<u32, JobError> {
        begin(ctx)?;
        let reason = format!("failure {}", ctx.attempt());
        match (ctx.attempt() <= input.times, input.permanent, input.retry_after_ms) {
            (false, _, _) => Ok(ctx.attempt()),
            (true, true, _) => Err(JobError::permanent(reason)),
            (true, false, Some(ms)) => Err(JobError::retry_after(Duration::from_millis(ms), reason)),
            (true, false, None) => Err(JobError::new(reason)),
        }
    }
}

struct Snooze;

impl Job for Snooze {
    const TYPE: &'static str = "conformance-snooze";
    const DESCRIPTION: &'static str = "Asks for a later attempt in its first attempts.";
    type Input = SnoozeInput;
    type Output = u32;

    async fn run(&self, ctx: &JobContext, input: SnoozeInput) -> Result<u32, JobError> {
        begin(ctx)?;
        if ctx.attempt() <= input.times {
            return Err(JobError::snooze(Duration::from_millis(input.ms), "not yet"));
        }
        Ok(ctx.attempt())
    }
}

struct Log;

impl Job for Log {
    const TYPE: &'static str = "conformance-log";
    const DESCRIPTION: &'static str = "Writes log lines.";
    type Input = LogInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: LogInput) -> Result<(), JobError> {
        begin(ctx)?;
        (0..input.lines).for_each(|number| ctx.info(format!("line {number}")));
        Ok(())
    }
}

struct Progress;

impl Job for Progress {
    const TYPE: &'static str = "conformance-progress";
    const DESCRIPTION: &'static str = "Reports its progress, ten times a second.";
    type Input = ProgressInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: ProgressInput) -> Result<(), JobError> {
        begin(ctx)?;
        for step in 1..=input.steps {
            ctx.progress(u8::try_from(100 * step / input.steps)?, format!("step {step}"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

struct Checkpoint;

impl Job for Checkpoint {
    const TYPE: &'static str = "conformance-checkpoint";
    const DESCRIPTION: &'static str = "Sets a checkpoint and fails, and returns the checkpoint in its next attempt.";
    type Input = CheckpointInput;
    type Output = Value;

    async fn run(&self, ctx: &JobContext, input: CheckpointInput) -> Result<Value, JobError> {
        begin(ctx)?;
        match ctx.last_checkpoint()? {
            Some(checkpoint) => Ok(checkpoint),
            None => {
                ctx.checkpoint(&input.value)?;
                Err(JobError::new("the next attempt continues"))
            }
        }
    }
}

struct Block;

impl Job for Block {
    const TYPE: &'static str = "conformance-block";
    const DESCRIPTION: &'static str = "Blocks its thread.";
    type Input = DurationInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: DurationInput) -> Result<(), JobError> {
        begin(ctx)?;
        let end = Instant::now() + Duration::from_millis(input.ms);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let worker = Worker::builder().config(WorkerConfig::from_env()?);
    let worker = worker.job(Echo).job(Sleep).job(Fail).job(Snooze).job(Log).job(Progress).job(Block).job(Checkpoint);
    worker.build()?.run().await
}
