//! Signals to the worker's process.

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_test_support::{broker_env::WorkerTestEnv, wait::until};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

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
