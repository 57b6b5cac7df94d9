//! The smallest worker: `cargo run -p milvaion-worker --example hello`.
use milvaion_worker::{Job, JobContext, JobError, Worker, WorkerConfig, WorkerError};

struct Hello;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct HelloInput {
    /// Name of the person to greet.
    name: String,
}

impl Job for Hello {
    const TYPE: &'static str = "hello";
    const DESCRIPTION: &'static str = "Writes a greeting.";
    type Input = HelloInput;
    type Output = String;
    async fn run(&self, _: &JobContext, input: HelloInput) -> Result<String, JobError> {
        Ok(format!("Hello, {}!", input.name))
    }
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    Worker::builder().config(WorkerConfig::from_env()?).job(Hello).build()?.run().await
}
