//! The smallest job: `cargo run -p milvaion-worker --example hello`.
use milvaion_worker::{Job, JobContext, JobError, Worker, WorkerConfig, WorkerError};

struct Hello;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Whom {
    /// Who is greeted.
    name: String,
}

impl Job for Hello {
    const TYPE: &'static str = "hello";
    const DESCRIPTION: &'static str = "Greets somebody.";
    type Input = Whom;
    type Output = String;
    async fn run(&self, _: &JobContext, input: Whom) -> Result<String, JobError> {
        Ok(format!("Hello, {}!", input.name))
    }
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    Worker::builder().config(WorkerConfig::from_env()?).job(Hello).build()?.run().await
}
