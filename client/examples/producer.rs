//! A program that enqueues an occurrence and waits for its result: `cargo run -p milvaion-client --example producer`.
use std::{error::Error, process::ExitCode, time::Duration};

use milvaion_client::{Client, Enqueue, EnqueueClient, Enqueued};

#[derive(serde::Serialize)]
struct HelloInput {
    name: String,
}

async fn greeting() -> Result<String, Box<dyn Error>> {
    let client = Client::from_env()?;
    let occurrence = Enqueue::job_type("hello", "hello")
        .input(HelloInput { name: "Grace".to_owned() })
        .after(Duration::from_secs(5))
        .unique("greeting-for-grace");
    let enqueued = EnqueueClient::new(client.clone()).enqueue(occurrence).await?;
    let id = enqueued.id();
    match enqueued {
        Enqueued::Duplicate(_) => println!("waiting for {id}, which has the same uniqueness key"),
        _ => println!("enqueued {id}"),
    }
    let result = tokio::time::timeout(Duration::from_secs(60), client.wait_for_result(id));
    Ok(result.await.map_err(|_| format!("{id} has not ended within a minute."))??)
}

#[tokio::main]
async fn main() -> ExitCode {
    match greeting().await {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
