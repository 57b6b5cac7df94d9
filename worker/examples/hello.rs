//! The smallest worker: `cargo run -p milvaion-worker --example hello`.
use milvaion_worker::{JobContext, JobError, Worker, WorkerError};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Whom {
    /// Name of the person to greet.
    name: String,
}

async fn hello(ctx: JobContext, input: Whom) -> Result<String, JobError> {
    ctx.info(format!("greeting {}", input.name));
    Ok(format!("Hello, {}!", input.name))
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    Worker::from_env()?.job_fn("hello", hello).run().await
}
