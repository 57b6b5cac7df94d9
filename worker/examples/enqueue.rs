//! A job that enqueues others, now, later and in bulk: `cargo run -p milvaion-worker --example enqueue`.
use std::time::Duration;

use milvaion_worker::{Job, JobContext, JobError, JobOptions, Unique, Worker, WorkerError, client::IngestOutcome};

struct SendMail;

impl Job for SendMail {
    const TYPE: &'static str = "send-mail";
    const DESCRIPTION: &'static str = "Sends a mail.";
    type Input = String;
    type Output = ();

    fn options(&self, options: JobOptions<String>) -> JobOptions<String> {
        // A second mail to the same address within an hour creates nothing.
        options.retries(3).unique(Unique::by_input().within(Duration::from_secs(3_600)))
    }

    async fn run(&self, ctx: &JobContext, address: String) -> Result<(), JobError> {
        ctx.info(format!("mail to {address}, enqueued by {:?}", ctx.parent_id()));
        Ok(())
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Newsletter {
    /// The addresses.
    addresses: Vec<String>,
}

async fn newsletter(ctx: JobContext, input: Newsletter) -> Result<String, JobError> {
    let report = ctx.occurrence_of::<SendMail>("editor@example.com".to_owned());
    ctx.enqueue(report.after(Duration::from_secs(60)).priority(5)).await?;
    let mails = input.addresses.into_iter().map(|address| ctx.occurrence_of::<SendMail>(address));
    // One result for each, in their order. The server's reason for a rejected one is in `reason`.
    let results = ctx.client().enqueue_all(mails).await?;
    let count = |outcome| results.iter().filter(|result| result.outcome == outcome).count();
    let (new, known) = (count(IngestOutcome::Accepted), count(IngestOutcome::Duplicate));
    Ok(format!("new mails: {new}; enqueued before: {known}; rejected: {}", results.len() - new - known))
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    Worker::from_env()?.job(SendMail).job_fn("newsletter", newsletter).run().await
}
