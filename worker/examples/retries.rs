//! Retries, delays and permanent failures: `cargo run -p milvaion-worker --example retries`.
use std::time::Duration;

use milvaion_worker::{JobContext, JobError, Worker, WorkerError};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Payment {
    /// Amount in cents.
    amount: i64,
    /// The account to charge.
    account: String,
}

async fn charge(ctx: JobContext, payment: Payment) -> Result<String, JobError> {
    if payment.amount <= 0 {
        return Err(JobError::permanent("The amount must be positive."));
    }
    match payment.account.as_str() {
        // The bank says when to come back. This counts as a failure.
        "busy" => Err(JobError::retry_after(Duration::from_secs(30), "the bank is busy")),
        // Nothing has failed: the shop opens later.
        "closed" => Err(JobError::snooze(Duration::from_secs(3_600), "the shop is closed")),
        // Errors of libraries and texts are retried after the backoff.
        "flaky" if !ctx.is_last_attempt() => {
            Err(format!("attempt {} of {} failed", ctx.attempt(), ctx.max_retries() + 1))?
        }
        account => Ok(format!("charged {account} with key {}", ctx.occurrence_id())),
    }
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    Worker::from_env()?
        .job_fn_with("charge", charge, |options| {
            options.retries(5).backoff(Duration::from_secs(10)).retry_jitter(20).timeout(Duration::from_secs(60))
        })
        .run()
        .await
}
