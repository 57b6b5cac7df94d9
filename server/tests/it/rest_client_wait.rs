//! Programs that enqueue with the client of the REST API and wait for the results.

use std::{
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use http::StatusCode;
use milvaion_api::rest::StatusName;
use milvaion_client::{Client, Enqueue, EnqueueClient};
use milvaion_protocol::id::OccurrenceId;
use milvaion_test_support::{wait, worker_env};
use milvaion_worker::{CancellationToken, JobContext, JobError};
use tokio::process::Command;

use crate::rest::harness::ApiHarness;

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Letters {
    count: usize,
}

async fn count_letters(_: JobContext, name: String) -> Result<Letters, JobError> {
    if name.is_empty() {
        return Err(JobError::permanent("The name is empty."));
    }
    Ok(Letters { count: name.chars().count() })
}

fn address(harness: &ApiHarness) -> String {
    format!("http://127.0.0.1:{}", harness.server.address.port())
}

/// Waits until a worker has registered.
async fn registered(harness: &ApiHarness, worker: &str) {
    wait::until("the registration", async || {
        let now = harness.server.clock.now();
        let workers = harness.server.store.workers(now - chrono::Duration::hours(1), now).await.expect("read");
        workers.iter().any(|registered| registered.id == worker)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_waits_for_a_result() {
    let harness = ApiHarness::new().await;
    let token = harness.token(&harness.admin).await;
    let client = Client::new(&address(&harness), &token).expect("a valid address");
    let producer = EnqueueClient::new(client.clone());
    let stop = CancellationToken::new();
    let worker = worker_env::start_with(&harness.config, &stop, |worker| worker.job_fn("letters", count_letters));
    registered(&harness, "w").await;
    let enqueue = async |name: &str| {
        let occurrence = Enqueue::job_type("w", "letters").input(name).after(Duration::from_secs(1));
        producer.enqueue(occurrence).await.expect("accepted").id()
    };
    // Both begin while the program waits.
    let (completed, failed) = (enqueue("Grace").await, enqueue("").await);
    let waits = async {
        let letters: Letters = client.wait_for_result(completed).await.expect("a result");
        assert_eq!(letters, Letters { count: 5 });
        let error = client.wait_for_result::<bool>(completed).await.expect_err("another type");
        let text = format!("The result of occurrence {completed} is not JSON of the type bool: it begins with");
        assert!(error.to_string().starts_with(&text), "{error}");

        let ended = client.wait(failed).await.expect("an end is no error");
        assert_eq!((ended.summary.status, ended.result), (StatusName::Failed, None));
        let error = client.wait_for_result::<Letters>(failed).await.expect_err("it failed");
        assert!(error.to_string().ends_with("because it ended as failed: The name is empty."), "{error}");

        let missing = OccurrenceId::from_parts(harness.server.clock.now(), [7; 10]);
        let error = client.wait(missing).await.expect_err("it does not exist");
        assert_eq!(error.status(), Some(StatusCode::NOT_FOUND), "{error}");
    };
    tokio::time::timeout(wait::WAIT_TIMEOUT, waits).await.expect("in time");
    stop.cancel();
    worker.await.expect("the worker stops");
    harness.server.stop().await;
}

/// Returns a built example.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("the folder of the profile");
    let program = profile.join("examples").join(name);
    assert!(program.exists(), "build it: cargo build --workspace --examples");
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_of_getting_started_work_together() {
    let harness = ApiHarness::new().await;
    let token = harness.token(&harness.admin).await;
    let mut worker = example("getting_started")
        .env("AMQP_URL", &harness.config.broker.url)
        .env("REDIS_URL", &harness.config.cache.url)
        .env("MILVAION_PREFIX", &harness.config.broker.prefix)
        .env("MILVAION_KEY_PREFIX", &harness.config.cache.key_prefix)
        .env("MILVAION_WORKER_ID", "hello")
        .env("MILVAION_OUTBOX", "off")
        .spawn()
        .expect("it starts");
    registered(&harness, "hello").await;
    let mut producer = example("producer");
    producer.env("MILVAION_URL", address(&harness)).env("MILVAION_TOKEN", &token);
    let Output { status, stdout, stderr } = producer.output().await.expect("it runs");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let printed = String::from_utf8(stdout).expect("UTF-8");
    assert!(printed.starts_with("enqueued ") && printed.ends_with("\nHello, Grace!\n"), "{printed}");
    worker.kill().await.expect("it is stopped");
    harness.server.stop().await;
}
