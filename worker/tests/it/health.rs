//! What can be seen of a worker from outside, and that it looks after itself.

use std::time::Duration;

use milvaion_protocol::message::RegistrationMessage;
use milvaion_worker::{Job, JobContext, JobError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use milvaion_test_support::{
    broker_env::{ConsumerDropProxy, CountingJob, WorkerTestEnv, is_one_completed_run, no_input, now},
    http,
    net::free_address,
    wait::until,
};

/// Holds up its thread, as a job must not.
struct BlockingJob;

#[derive(Deserialize, JsonSchema)]
struct BlockingInput {
    seconds: u64,
}

impl Job for BlockingJob {
    const TYPE: &'static str = "block";
    const DESCRIPTION: &'static str = "Holds up its thread.";
    type Input = BlockingInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: BlockingInput) -> Result<(), JobError> {
        ctx.info("now");
        std::thread::sleep(Duration::from_secs(input.seconds));
        Ok(())
    }
}

// One thread for everything, so that the job holds up the test as well.
#[tokio::test]
async fn a_job_that_blocks_the_runtime_does_not_silence_the_worker() {
    let env = WorkerTestEnv::new().await;
    let worker = env.start(env.worker().job(BlockingJob), "block").await;
    let began = now();
    let message = env.message("block", json!({"seconds": 6}));
    env.publish(&message).await;
    let reports = env.ended(message.occurrence_id).await;
    assert!(
        reports[0].timestamp - began < chrono::TimeDelta::seconds(1),
        "the start was not seen at once: {reports:?}"
    );
    let ended = reports.last().expect("an end").timestamp;
    let beats = env.registrations().await.into_iter().filter(
        |said| matches!(said, RegistrationMessage::Heartbeat(beat) if beat.timestamp < ended && beat.running.contains(&message.occurrence_id)),
    );
    assert!(beats.count() >= 1, "no heartbeat while the thread was held up");
    let logs = env.logs().await;
    assert_eq!(
        logs.iter().flat_map(|message| &message.lines).map(|line| line.message.as_str()).collect::<Vec<_>>(),
        ["now"]
    );
    worker.stop().await;
    env.clean(&["block"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_says_that_it_lives_whether_it_takes_work_and_how_much_it_did() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let address = free_address();
    let worker = env.start(env.worker().job(counter.clone()).health(address), "count").await;
    let port = address.port();
    until("it is ready", async || http::is_ready(port).await).await;
    assert_eq!(http::get(port, "/health/live").await.expect("the worker responds").1, "alive\n");
    let message = env.message("count", no_input());
    env.publish(&message).await;
    env.ended(message.occurrence_id).await;
    let (_, metrics) = http::get(port, "/metrics").await.expect("the worker responds");
    let counted = r#"milvaion_worker_runs_total{job_type="count",outcome="completed"} 1"#;
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");

    // An address that is taken is told at the start.
    let second = env.worker().job(counter).health(address).build().expect("a valid configuration");
    let refused = second.run_until(milvaion_worker::CancellationToken::new()).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("MILVAION_HEALTH 127.0.0.1")));
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_the_broker_forgot_at_a_reconnect_is_revived() {
    let mut env = WorkerTestEnv::new().await;
    let queue = env.topology.job_queue("w", "count");
    let proxy = ConsumerDropProxy::start(&mut env, &queue).await;
    let worker = env.start(env.worker().job(CountingJob::new(true)), "count").await;
    proxy.drop_at_reconnect();
    until("the worker believes that it consumes", async || proxy.dropped() == 1).await;
    let message = env.message("count", no_input());
    env.publish(&message).await;
    assert_eq!(env.queue(&queue).await, Some((1, 0)), "the broker knows of no consumer");
    assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
    assert_eq!(proxy.dropped(), 1);
    worker.stop().await;
    env.clean(&["count"]).await;
}
