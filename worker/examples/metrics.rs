//! A worker whose metrics join those of the program: `cargo run -p milvaion-worker --example metrics`.
//!
//! The program counts greetings itself, and writes its metrics and those of the worker when it ends. A real one would serve
//! the registry with its own HTTP server.
use milvaion_worker::{
    Job, JobContext, JobError, Worker, WorkerConfig,
    prometheus_client::{encoding::text::encode, metrics::counter::Counter, registry::Registry},
};

struct Greet {
    greetings: Counter,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct GreetInput {
    /// Name of the person to greet.
    name: String,
}

impl Job for Greet {
    const TYPE: &'static str = "greet";
    const DESCRIPTION: &'static str = "Writes a greeting.";
    type Input = GreetInput;
    type Output = String;
    async fn run(&self, _: &JobContext, input: GreetInput) -> Result<String, JobError> {
        self.greetings.inc();
        Ok(format!("Hello, {}!", input.name))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut registry, greetings) = (Registry::default(), Counter::default());
    registry.register("greetings", "Greetings written", greetings.clone());
    let builder = Worker::builder().config(WorkerConfig::from_env()?).job(Greet { greetings });
    builder.register_metrics(&mut registry).build()?.run().await?;
    let mut text = String::new();
    encode(&mut text, &registry)?;
    println!("{text}");
    Ok(())
}
