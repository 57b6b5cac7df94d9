//! Runs that were lost because a message was.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{broker::Broker, clock::Clock};

use super::harness::{insert, rows};
use milvaion_test_support::{self as common, stack};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv01_what_is_due_while_the_broker_is_away_is_no_failure_and_runs_once_when_it_is_back() {
    let config = stack::config().await;
    let mut without = config.clone();
    // Nothing listens there.
    without.broker.url = "amqp://127.0.0.1:1/%2f".into();
    let server = stack::server(&without).await;
    let clock = Clock::system();
    let now = clock.now();
    let once = insert(&server.store, &clock, common::job(Schedule::Once { at: now }), now).await;
    insert(&server.store, &clock, common::job(Schedule::every(1)), now).await;
    server.dispatcher.activate_dispatcher.notify_one();
    let recorded = stack::eventually("what was due", || async {
        let rows = stack::all(&server, None).await;
        (rows.len() >= 4 && rows.iter().any(|row| row.job_id == once)).then_some(rows)
    })
    .await;
    assert!(recorded.iter().all(|row| row.status == OccurrenceStatus::Queued), "{recorded:?}");
    server.stop().await;

    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    for row in recorded {
        assert_eq!(stack::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
        assert_eq!(worker.started().iter().filter(|id| **id == row.id).count(), 1);
    }
    assert_eq!(rows(&server, once).await.len(), 1);
    assert!(stack::all(&server, Some(OccurrenceStatus::Failed)).await.is_empty());
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv03_a_message_that_no_queue_takes_is_sent_again_to_one_that_does() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let me = stack::admin();
    let job = server.jobs.save(&me, &stack::form("Unroutable")).await.expect("saved");
    let first = server.jobs.run_now(&me, job, Default::default()).await.expect("triggered");
    let published = async |id| {
        stack::eventually("the confirm of the broker", || async {
            server.store.occurrence(id, 1, server.clock.now() - Duration::minutes(1)).await.ok()??.published_at
        })
        .await
    };
    published(first).await;

    // The server believes that the queue is there, and the broker confirms whatever it throws away.
    let broker = Broker::new(&config.broker).expect("a URL");
    let connection = broker.connect("test").await.expect("the broker answers");
    let channel = connection.create_channel().await.expect("a channel");
    let queue = broker.topology().job_queue("w", "echo");
    channel.queue_delete(queue.as_str().into(), Default::default()).await.expect("deleted");

    let second = server.jobs.run_now(&me, job, Default::default()).await.expect("triggered");
    published(second).await;
    let worker = stack::worker(&config);
    assert_eq!(stack::ended(&server, second).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [second]);
    worker.stop().await;
    server.stop().await;
}
