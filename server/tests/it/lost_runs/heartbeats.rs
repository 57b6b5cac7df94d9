//! What the detectors hear: from workers, and of queues that are gone.

use std::{sync::Arc, time::Duration};

use milvaion_protocol::{message::InstanceHeartbeat, status::OccurrenceStatus};
use milvaion_server::{
    background::{BackgroundTask, lease::Leadership, lost_messages::LostMessageDetector, lost_runs::HeartbeatFeed},
    broker::{Broker, queue_probe::QueueProbe},
};
use tokio::sync::{Notify, watch};

use super::harness::LostRunHarness;
use milvaion_test_support::{self as common, stack};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ears_hear_only_while_the_broker_delivers() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let mut config_elsewhere = config.clone();
    config_elsewhere.broker.prefix = common::unique("elsewhere");
    let harness = LostRunHarness::new().await;
    // Nobody consumes what this broker's names stand for: whatever is silent there, nobody is blamed.
    let mut deaf = harness.zombies;
    deaf.heartbeat_feed = HeartbeatFeed::new(Broker::new(&config_elsewhere.broker).expect("a URL"));
    deaf.tick().await.expect("answered");
    assert_eq!(deaf.watch.observed_for(), Duration::ZERO);
    // The server's own detector does its rounds and finds nobody missing.
    stack::eventually("a worker's run", || async {
        let worker = stack::worker(&config);
        let id = server.jobs.save(&stack::admin(), &stack::form("alive")).await.ok()?;
        let id = server.jobs.run_now(&stack::admin(), id, Default::default()).await.ok()?;
        let view = stack::ended(&server, id).await;
        worker.stop().await;
        (view.row.status == OccurrenceStatus::Completed && view.row.attempt == 1).then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_was_deleted_takes_no_occurrence_with_it() {
    let mut config = stack::config().await;
    // By its age nothing is sent again while this goes on.
    config.background.republish = Duration::from_secs(3_600);
    let server = stack::server(&config).await;
    let job = server.jobs.save(&stack::admin(), &stack::form("lost")).await.expect("saved");
    let id = server.jobs.run_now(&stack::admin(), job, Default::default()).await.expect("asked for");
    let published = || async {
        let view = server.store.occurrence(id, 1, server.clock.now()).await.ok()??;
        view.published_at
    };
    stack::eventually("the first message", published).await;

    let broker = Broker::new(&config.broker).expect("a URL");
    let queue = broker.topology().job_queue("w", "echo");
    let connection = broker.connect("test").await.expect("the broker answers");
    let channel = connection.create_channel().await.expect("a channel");
    let gone = channel.queue_delete(queue.as_str().into(), Default::default()).await.expect("deleted");
    assert_eq!(gone, 1, "the message was in it");

    let again = Arc::new(Notify::new());
    let (_leads, leadership) = watch::channel(Leadership::Leaderless);
    let mut lost = LostMessageDetector {
        store: server.store.clone(),
        broker: broker.clone(),
        probe: QueueProbe::new(broker.clone()),
        clock: server.clock.clone(),
        leadership,
        requeue_after: Duration::ZERO,
        activate_republisher: again.clone(),
    };
    let missed = lost.tick().await.expect("answered");
    assert_eq!((missed.waiting, missed.lost), (1, 1));
    again.notified().await;
    server.jobs.publisher.note_unsent([id]);
    stack::eventually("the second message", async || {
        // Refused the first time: who sends does not know that the queue is gone.
        server.jobs.activate_republisher.notify_one();
        published().await
    })
    .await;
    let missed = lost.tick().await.expect("answered");
    assert_eq!((missed.waiting, missed.lost), (1, 0), "it is there, so it is left alone");

    let worker = stack::worker(&config);
    assert_eq!(stack::ended(&server, id).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [id]);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn what_an_instance_warns_of_is_shown_until_a_heartbeat_comes_without_it() {
    let harness = LostRunHarness::new().await;
    let id = harness.running("requeue", "w-1").await;
    let beat = async |instance: &str, notice: Option<String>| {
        let beat = InstanceHeartbeat {
            worker_id: "w".into(),
            instance_id: instance.into(),
            running: vec![id],
            notice,
            timestamp: harness.clock.now(),
        };
        harness.store.heartbeat(&beat, harness.clock.now()).await.expect("answered")
    };
    let shown = async || {
        let now = harness.clock.now();
        let workers = harness.store.workers(now - chrono::Duration::days(1), now).await.expect("answered");
        workers[0].instances[0].notice.clone()
    };
    let full = || Some("The disk is full.".to_owned());
    assert_eq!(beat("w-1", None).await, Some(false));
    assert_eq!(beat("w-1", full()).await, Some(true));
    assert_eq!(beat("w-1", full()).await, Some(false), "nobody need look again");
    assert_eq!(shown().await, full());
    assert_eq!(beat("w-1", Some(format!("Too long:\0{}", "ü".repeat(1_000)))).await, Some(true));
    let cut = shown().await.expect("shown");
    assert!(cut.starts_with("Too long:") && cut.len() <= 500, "{cut}");
    assert_eq!(beat("w-1", Some(" ".into())).await, Some(true));
    assert_eq!(shown().await, None);
    assert_eq!(beat("w-2", full()).await, None, "it has not said hello");
}
