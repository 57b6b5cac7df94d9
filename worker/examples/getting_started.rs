//! The worker of `docs/getting-started.md`: `cargo run -p milvaion-worker --example getting_started`.
use std::time::Duration;

use milvaion_worker::{Job, JobContext, JobError, JobOptions, Worker, WorkerError};

struct Hello;

#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct HelloInput {
    /// Name of the person to greet.
    name: String,
}

impl Job for Hello {
    const TYPE: &'static str = "hello";
    const DESCRIPTION: &'static str = "Writes a greeting.";
    type Input = HelloInput;
    type Output = String;

    fn options(&self, options: JobOptions<HelloInput>) -> JobOptions<HelloInput> {
        let input = HelloInput { name: "Ada".to_owned() };
        options.retries(3).backoff(Duration::from_secs(5)).schedule("often", Duration::from_secs(10), input)
    }

    async fn run(&self, ctx: &JobContext, input: HelloInput) -> Result<String, JobError> {
        if input.name.len() < 2 {
            return Err(JobError::permanent("The name is too short."));
        }
        if ctx.attempt() == 1 && input.name == "Bob" {
            return Err("Bob is not at home yet.".into());
        }
        ctx.info(format!("greeting {}", input.name));
        ctx.enqueue(ctx.occurrence_of_type("count-letters", &input.name)).await?;
        Ok(format!("Hello, {}!", input.name))
    }
}

/// A function is a job too.
async fn count_letters(_: JobContext, name: String) -> Result<usize, JobError> {
    Ok(name.chars().count())
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    let worker = Worker::from_env()?.version(env!("CARGO_PKG_VERSION"));
    worker.job(Hello).job_fn("count-letters", count_letters).run().await
}

#[cfg(test)]
mod tests {
    use milvaion_worker::{
        client::RecordingClient,
        testing::{TestContext, TestRun},
    };

    use super::*;

    #[tokio::test]
    async fn greets_by_name_and_counts_the_letters() {
        let recording = RecordingClient::new();
        let context = TestContext::new().client(&recording);
        let report = TestRun::typed(Hello, HelloInput { name: "Ada".to_owned() }).context(context).run().await;
        assert_eq!(report.output::<String>(), "Hello, Ada!");
        recording.assert_enqueued_type("test", "count-letters");
    }
}
