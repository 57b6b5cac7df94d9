//! Signals to the worker's process.

use std::time::{Duration, Instant};

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_test_support::{broker_env::WorkerTestEnv, wait::until};
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use tokio::net::TcpListener;

use crate::worker_process::{pid, worker_process};

#[tokio::test]
async fn second_sigterm_ends_the_shutdown_grace() {
    let env = WorkerTestEnv::new().await;
    let mut worker = worker_process(&env).env("MILVAION_SHUTDOWN_GRACE_SECONDS", "600").spawn().expect("started");
    let queue = env.topology.job_queue(&env.worker_id, "shell-command");
    let consumers = async || env.queue(&queue).await.map(|(_, consumers)| consumers);
    env.wait_for_consumer("shell-command").await;
    let message = env.message("shell-command", json!({"argv": ["sleep", "600"]}));
    env.publish(&message).await;
    until("the start of the run", async || !env.reports().await.is_empty()).await;
    kill(pid(&worker), Signal::SIGTERM).expect("the signal is sent");
    until("the end of its consumers", async || consumers().await == Some(0)).await;
    assert!(worker.try_wait().expect("its status can be read").is_none(), "the run may continue during the grace");
    kill(pid(&worker), Signal::SIGTERM).expect("the signal is sent");
    assert_eq!(env.ended(message.occurrence_id).await.last().map(|end| end.status), Some(OccurrenceStatus::Queued));
    assert!(worker.wait().await.expect("an exit status").success());
    env.clean(&["http-request", "shell-command"]).await;
}

#[tokio::test]
async fn sigterm_ends_a_worker_that_is_not_connected_within_a_second() {
    let env = WorkerTestEnv::new().await;
    let mut durations = Vec::new();
    // The machine may be busy, so the shortest of three counts.
    for _ in 0..3 {
        // It accepts connections and never answers. A new one for each worker, so that no connection of another waits.
        let service = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = service.local_addr().expect("an address").port();
        let mut worker = worker_process(&env)
            .env("AMQP_URL", format!("amqp://milvaion@127.0.0.1:{port}/%2f"))
            .env("REDIS_URL", format!("redis://127.0.0.1:{port}"))
            .spawn()
            .expect("started");
        let _open = service.accept().await.expect("it connects");
        let since = Instant::now();
        kill(pid(&worker), Signal::SIGTERM).expect("the signal is sent");
        assert!(worker.wait().await.expect("an exit status").success());
        durations.push(since.elapsed());
    }
    assert!(durations.iter().min() < Some(&Duration::from_secs(1)), "{durations:?}");
}

#[tokio::test]
async fn killed_worker_leaves_no_program_running() {
    let env = WorkerTestEnv::new().await;
    let mut worker = worker_process(&env).spawn().expect("started");
    env.wait_for_consumer("shell-command").await;
    std::fs::create_dir_all(&env.outbox).expect("created");
    let started = env.outbox.join("started");
    // A child of the script, which no signal to its parent would reach.
    let script =
        format!("trap '' TERM; sh -c 'echo $$ > {0}.new; mv {0}.new {0}; sleep 600; :' & wait", started.display());
    let message = env.message("shell-command", json!({ "script": script }));
    env.publish(&message).await;
    until("the start of the program", async || started.exists()).await;
    let child = std::fs::read_to_string(&started).expect("a number").trim().to_owned();
    let is_running = || {
        let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z")
    };
    assert!(is_running());
    kill(pid(&worker), Signal::SIGKILL).expect("the signal is sent");
    worker.wait().await.expect("an exit status");
    until("the end of the program", async || !is_running()).await;
    env.clean(&["http-request", "shell-command"]).await;
}
