//! Schedules and rules beside the job: `cargo run -p milvaion-worker --example schedule`.
use std::time::Duration;

use milvaion_worker::{Cron, Job, JobContext, JobError, JobOptions, Misfire, Overlap, Worker, WorkerError};

struct Report;

#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct ReportInput {
    /// The customers to report on.
    customers: String,
}

impl Job for Report {
    const TYPE: &'static str = "report";
    const DESCRIPTION: &'static str = "Writes a report.";
    type Input = ReportInput;
    type Output = String;

    fn options(&self, options: JobOptions<ReportInput>) -> JobOptions<ReportInput> {
        options
            .retries(3)
            .overlap(Overlap::Skip)
            .tag("reports")
            .schedule(
                "nightly",
                Cron::new("0 2 * * *").zone("Europe/Berlin"),
                ReportInput { customers: "all".to_owned() },
            )
            .schedule_with(
                "new-customers",
                Duration::from_secs(60),
                ReportInput { customers: "new".to_owned() },
                // The next one reports on the same customers, so one that is late or fails is not made up for.
                |schedule| schedule.display_name("Report on new customers").misfire(Misfire::Skip).retries(0),
            )
    }

    async fn run(&self, ctx: &JobContext, input: ReportInput) -> Result<String, JobError> {
        Ok(format!("report on {} customers, due {}", input.customers, ctx.scheduled_for()))
    }
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    Worker::from_env()?.version(env!("CARGO_PKG_VERSION")).job(Report).run().await
}
