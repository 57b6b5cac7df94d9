//! A singleton loop. Start it in several terminals: `cargo run -p milvaion-worker --example singleton`.
use std::time::Duration;

use milvaion_worker::{JobError, Tick, Worker, WorkerConfig, WorkerError};

async fn refresh(tick: Tick) -> Result<(), JobError> {
    // Ten runs a second, and one line.
    if tick.number() % 10 == 1 {
        println!("run {} with epoch {} in process {}", tick.number(), tick.epoch(), std::process::id());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    tracing_subscriber::fmt().init();
    let worker = Worker::builder().config(WorkerConfig::from_env()?);
    worker.singleton("price-feed").every(Duration::from_millis(100)).run(refresh).build()?.run().await
}
