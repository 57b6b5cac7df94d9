//! The health of a worker: heartbeats, health endpoints, metrics, and the recovery of a lost consumer.

use std::time::Duration;

use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
use milvaion_protocol::message::{InstanceHeartbeat, PriorityLoad, RegistrationMessage};
use milvaion_worker::{
    Job, JobContext, JobError,
    prometheus_client::{encoding::text::encode, metrics::counter::Counter, registry::Registry},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use milvaion_test_support::{
    broker_env::{
        ConfirmHold, ConsumerDropProxy, CountingJob, SnoozingJob, WorkerTestEnv, is_one_completed_run, no_input, now,
    },
    http,
    net::free_address,
    services,
    wait::{eventually, until},
};

/// A job that blocks its thread, which a job must not do.
struct BlockingJob;

#[derive(Deserialize, JsonSchema)]
struct BlockingInput {
    seconds: u64,
}

impl Job for BlockingJob {
    const TYPE: &'static str = "block";
    const DESCRIPTION: &'static str = "Blocks its thread.";
    type Input = BlockingInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: BlockingInput) -> Result<(), JobError> {
        ctx.info("before the block");
        std::thread::sleep(Duration::from_secs(input.seconds));
        Ok(())
    }
}

// The test has a single thread, so the job blocks the test as well.
#[tokio::test]
async fn blocking_job_does_not_stop_heartbeats() {
    let env = WorkerTestEnv::new().await;
    let worker = env.start(env.worker().job(BlockingJob), "block").await;
    let published_at = now();
    let message = env.message("block", json!({"seconds": 6}));
    env.publish(&message).await;
    let reports = env.ended(message.occurrence_id).await;
    assert!(
        reports[0].timestamp - published_at < chrono::TimeDelta::seconds(1),
        "the start was reported late: {reports:?}"
    );
    let ended_at = reports.last().expect("a final report").timestamp;
    let heartbeats = env.registrations().await.into_iter().filter(|registration| {
        let RegistrationMessage::Heartbeat(heartbeat) = registration else { return false };
        heartbeat.timestamp < ended_at && heartbeat.running.contains(&message.occurrence_id)
    });
    assert!(heartbeats.count() >= 1, "no heartbeat while the thread was blocked");
    let logs = env.logs().await;
    assert_eq!(
        logs.iter().flat_map(|message| &message.lines).map(|line| line.message.as_str()).collect::<Vec<_>>(),
        ["before the block"]
    );
    worker.stop().await;
    env.clean(&["block"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_serves_liveness_readiness_and_metrics() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let address = free_address();
    let worker = env.start(env.worker().job(counter.clone()).health(address), "count").await;
    let port = address.port();
    until("the worker is ready", async || http::is_ready(port).await).await;
    assert_eq!(http::get(port, "/health/live").await.expect("the worker responds").1, "alive\n");
    let message = env.message("count", no_input());
    env.publish(&message).await;
    env.ended(message.occurrence_id).await;
    let (_, metrics) = http::get(port, "/metrics").await.expect("the worker responds");
    let counted = r#"milvaion_worker_runs_total{job_type="count",outcome="completed"} 1"#;
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");

    // An address in use is reported at startup.
    let second = env.worker().job(counter).health(address).build().expect("a valid configuration");
    let refused = second.run_until(milvaion_worker::CancellationToken::new()).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("MILVAION_HEALTH 127.0.0.1")));
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_join_the_registry_of_the_program() {
    let env = WorkerTestEnv::new().await;
    let (mut registry, own) = (Registry::default(), Counter::<u64>::default());
    registry.register("own", "A metric of the program", own.clone());
    own.inc();
    let builder = env.worker().job(CountingJob::new(true)).register_metrics(&mut registry);
    let worker = env.start(builder, "count").await;
    let message = env.message("count", no_input());
    env.publish(&message).await;
    env.ended(message.occurrence_id).await;
    let mut text = String::new();
    encode(&mut text, &registry).expect("formatted");
    for line in ["own_total 1", r#"milvaion_worker_runs_total{job_type="count",outcome="completed"} 1"#] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    worker.stop().await;
    env.clean(&["count"]).await;
}

/// Returns the heartbeats since the last call.
async fn heartbeats(env: &WorkerTestEnv) -> Vec<InstanceHeartbeat> {
    let beats = env.registrations().await.into_iter().filter_map(|message| match message {
        RegistrationMessage::Heartbeat(beat) => Some(beat),
        _ => None,
    });
    beats.collect()
}

/// Ends a run while the broker confirms nothing: heartbeats list it. With `until_confirmed`, waits for a heartbeat without it.
async fn list_unconfirmed_end(until_confirmed: bool) {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let message = env.message("count", no_input());
    env.publish(&message).await;
    // The broker has confirmed its start.
    env.wait_for_running_entries(1).await;
    hold.set(true);
    counter.open();
    let ended_at = env.ended(message.occurrence_id).await.last().expect("a final report").timestamp;
    let later = eventually("a heartbeat after the end", || async {
        heartbeats(&env).await.into_iter().find(|beat| beat.timestamp > ended_at)
    })
    .await;
    assert_eq!(later.running, [message.occurrence_id], "the server may never receive the end");
    // The outbox has the end by now, so it survives this process.
    let ended = Some("done:1".to_owned());
    until("the mark of its end", async || env.claimed(message.occurrence_id).await == ended).await;
    hold.set(false);
    if until_confirmed {
        let is_unlisted = async || heartbeats(&env).await.iter().any(|beat| beat.running.is_empty());
        until("a heartbeat without the run", is_unlisted).await;
    }
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_run_is_listed_while_its_end_is_unconfirmed() {
    list_unconfirmed_end(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_is_announced_at_once() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let message = env.message("count", no_input());
    env.publish(&message).await;
    until("the start of the run", async || counter.runs() == 1).await;
    assert!(heartbeats(&env).await.iter().all(|beat| !beat.stopping));
    let requested_at = now();
    worker.request_stop();
    let announcement =
        eventually("the announcement", || async { heartbeats(&env).await.into_iter().find(|beat| beat.stopping) })
            .await;
    assert_eq!(announcement.running, [message.occurrence_id], "it still runs");
    assert_eq!(announcement.priorities, [PriorityLoad { priority: message.priority, running: 1, waiting: 0 }]);
    let delay = announcement.timestamp - requested_at;
    assert!(delay < chrono::TimeDelta::seconds(2), "announced after {delay}");
    counter.open();
    worker.stop().await;
    env.clean(&["count"]).await;
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn consumer_lost_at_a_reconnect_is_restored() {
        let mut env = WorkerTestEnv::new().await;
        let queue = env.topology.job_queue("w", "count");
        let proxy = ConsumerDropProxy::start(&mut env, &queue).await;
        let worker = env.start(env.worker().job(CountingJob::new(true)), "count").await;
        proxy.drop_at_reconnect();
        until("the reconnect without a consumer", async || proxy.dropped() == 1).await;
        let message = env.message("count", no_input());
        env.publish(&message).await;
        assert_eq!(env.queue(&queue).await, Some((1, 0)), "the broker must have no consumer");
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
        assert_eq!(proxy.dropped(), 1);
        worker.stop().await;
        env.clean(&["count"]).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn refused_queue_stops_only_its_own_type() {
        let env = WorkerTestEnv::new().await;
        let (counter, snoozing) = (CountingJob::new(true), SnoozingJob::default());
        // Declared with other arguments, as by another program.
        let queue = env.topology.job_queue("w", "snooze");
        let connection =
            Connection::connect(&services::amqp_url(), ConnectionProperties::default()).await.expect("a broker");
        let channel = connection.create_channel().await.expect("a channel");
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await.expect("declared");

        let worker = env.start(env.worker().job(counter.clone()).job(snoozing.clone()), "count").await;
        let message = env.message("count", no_input());
        env.publish(&message).await;
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
        let notice = eventually("a heartbeat with a notice", || async {
            heartbeats(&env).await.into_iter().find_map(|beat| beat.notice)
        })
        .await;
        assert!(notice.contains("Job type snooze") && notice.contains(&queue), "{notice}");
        assert_eq!(env.queue(&queue).await, Some((0, 0)));

        channel.queue_delete(queue.as_str().into(), Default::default()).await.expect("deleted");
        env.wait_for_consumer("snooze").await;
        until("a heartbeat without a notice", async || heartbeats(&env).await.iter().any(|beat| beat.notice.is_none()))
            .await;
        let message = env.message("snooze", no_input());
        env.publish(&message).await;
        until("a run of the other type", async || snoozing.runs() == 1).await;
        worker.stop().await;
        env.clean(&["count", "snooze"]).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn ended_run_is_listed_until_its_end_is_confirmed() {
        list_unconfirmed_end(true).await;
    }
}
