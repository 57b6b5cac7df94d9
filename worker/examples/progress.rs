//! Progress, a checkpoint and the end of a run from outside: `cargo run -p milvaion-worker --example progress`.
use std::time::Duration;

use milvaion_worker::{JobContext, JobError, StopReason, Worker, WorkerError};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct File {
    /// Number of rows in the file.
    rows: u32,
}

async fn import(ctx: JobContext, file: File) -> Result<u32, JobError> {
    // An attempt after a failure or a deployment continues behind the last row of the one before it.
    let first = ctx.last_checkpoint::<u32>()?.unwrap_or(0);
    for row in first..file.rows {
        match ctx.stop_reason() {
            None => {}
            Some(StopReason::Cancelled { reason }) => return Err(JobError::cancelled(reason)),
            Some(reason) => return Err(JobError::new(format!("stopped at row {row}: {reason}"))),
        }
        load(&ctx, row).await?;
        ctx.checkpoint(&(row + 1))?;
        ctx.progress((u64::from(row) * 100 / u64::from(file.rows)) as u8, format!("{row} of {}", file.rows));
    }
    Ok(file.rows)
}

async fn load(ctx: &JobContext, row: u32) -> Result<(), JobError> {
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Code that blocks its thread runs on a thread of its own.
    let checksum = ctx.blocking(move || Ok(row.wrapping_mul(31))).await?;
    ctx.debug(format!("row {row} has the checksum {checksum}"));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    Worker::from_env()?.job_fn_with("import-file", import, |options| options.retries(3)).run().await
}
