//! The input of the detectors: heartbeats, and queues that were deleted.

use std::{sync::Arc, time::Duration};

use milvaion_protocol::{message::InstanceHeartbeat, status::OccurrenceStatus};
use milvaion_server::{
    background::lost_messages::LostMessageDetector,
    broker::{Broker, echo::Echo, queue_probe::QueueProbe},
    engine::{Service, leadership::Leadership},
};
use milvaion_test_support::{jobs, messages, runs, server_env, services, wait, worker_env};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::harness::LostRunHarness;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_not_measured_without_a_consumer() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let mut other_config = config.clone();
    other_config.broker.prefix = services::unique("other");
    let harness = LostRunHarness::new().await;
    // Nothing consumes the queues with this prefix, so missing heartbeats prove nothing.
    let mut detector = harness.detector;
    let (echo, keep_open) = Echo::new(&Broker::new(&other_config.broker).expect("a valid URL"));
    detector.echo = echo;
    let stop = CancellationToken::new();
    let connection = tokio::spawn(keep_open(stop.clone()));
    detector.tick().await.expect("the tick succeeds");
    assert_eq!(detector.memory.tracker.observed_for(), Duration::ZERO);
    stop.cancel();
    connection.await.expect("it ends");
    // The server's own detector runs and declares no run lost.
    wait::eventually("a worker's run", || async {
        let worker = worker_env::start(&config);
        let id = server.jobs.save(&jobs::admin(), &jobs::form("alive")).await.ok()?;
        let id = server.jobs.run_now(&jobs::admin(), id, Default::default()).await.ok()?;
        let view = runs::ended(&server, id).await;
        worker.stop().await;
        (view.row.status == OccurrenceStatus::Completed && view.row.attempt == 1).then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn echo_returns_while_a_server_stores_messages() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let (echo, keep_open) = Echo::new(&Broker::new(&config.broker).expect("a valid URL"));
    let stop = CancellationToken::new();
    let connection = tokio::spawn(keep_open(stop.clone()));
    wait::eventually("an echo", || async { echo.returns().await.then_some(()) }).await;
    server.stop().await;
    assert!(!echo.returns().await, "no server consumes");
    stop.cancel();
    connection.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queue_loses_no_occurrence() {
    let mut config = server_env::config().await;
    // Nothing is republished because of its age during this test.
    config.background.republish = Duration::from_secs(3_600);
    let server = server_env::start(&config).await;
    let job = server.jobs.save(&jobs::admin(), &jobs::form("lost")).await.expect("saved");
    let id = server.jobs.run_now(&jobs::admin(), job, Default::default()).await.expect("triggered");
    let published = || async {
        let view = server.store.occurrence(id, 1, server.clock.now()).await.ok()??;
        view.published_at
    };
    wait::eventually("the first message", published).await;

    let broker = Broker::new(&config.broker).expect("a valid URL");
    let queue = broker.topology().job_queue("w", "echo");
    let connection = broker.connect("test").await.expect("the broker responds");
    let channel = connection.create_channel().await.expect("a channel");
    let deleted = channel.queue_delete(queue.as_str().into(), Default::default()).await.expect("deleted");
    assert_eq!(deleted, 1, "the message was in it");

    let republish = Arc::new(Notify::new());
    let (_leads, leadership) = watch::channel(Leadership::Leaderless);
    let mut detector = LostMessageDetector {
        store: server.store.clone(),
        broker: broker.clone(),
        probe: QueueProbe::new(broker.clone()),
        clock: server.clock.clone(),
        leadership,
        requeue_after: Duration::ZERO,
        activate_republisher: republish.clone(),
        earlier: None,
    };
    let report = detector.tick().await.expect("the tick succeeds");
    assert_eq!((report.waiting, report.lost), (1, 1));
    republish.notified().await;
    server.jobs.publisher.note_unsent([id]);
    wait::eventually("the second message", async || {
        // Returned as unroutable the first time: the publisher has declared the queue before, and does not know that it is
        // deleted.
        server.jobs.sender.activate_republisher.notify_one();
        published().await
    })
    .await;
    let report = detector.tick().await.expect("the tick succeeds");
    assert_eq!((report.waiting, report.lost), (1, 0), "the message is in the queue");

    let worker = worker_env::start(&config);
    assert_eq!(runs::ended(&server, id).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [id]);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn notice_is_shown_until_a_heartbeat_without_it() {
    let harness = LostRunHarness::new().await;
    let id = harness.running("requeue", "w-1").await;
    let heartbeat = async |instance: &str, notice: Option<String>| {
        let heartbeat = InstanceHeartbeat { notice, ..messages::heartbeat(instance, &[id], harness.clock.now()) };
        let stored =
            harness.store.store_heartbeats(&[heartbeat], harness.clock.now()).await.expect("the query succeeds");
        stored.get(instance).copied()
    };
    let shown = async || harness.instance().await.notice;
    let full = || Some("The disk is full.".to_owned());
    assert_eq!(heartbeat("w-1", None).await, Some(false));
    assert_eq!(heartbeat("w-1", full()).await, Some(true));
    assert_eq!(heartbeat("w-1", full()).await, Some(false), "unchanged, so no page is notified");
    assert_eq!(shown().await, full());
    assert_eq!(heartbeat("w-1", Some(format!("Too long:\0{}", "ü".repeat(1_000)))).await, Some(true));
    let cut = shown().await.expect("a notice");
    assert!(cut.starts_with("Too long:") && cut.len() <= 500, "{cut}");
    assert_eq!(heartbeat("w-1", Some(" ".into())).await, Some(true));
    assert_eq!(shown().await, None);
    assert_eq!(heartbeat("w-2", full()).await, None, "it has not registered");
}
