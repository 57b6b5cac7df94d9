//! Occurrences whose message was lost.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{broker::Broker, clock::Clock};
use milvaion_test_support::{jobs, runs, server_env, wait, worker_env};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn due_jobs_survive_a_broker_outage() {
    let config = server_env::config().await;
    let mut without = config.clone();
    // No broker listens on this port.
    without.broker.url = "amqp://127.0.0.1:1/%2f".into();
    let server = server_env::start(&without).await;
    let clock = Clock::system();
    let now = clock.now();
    let once = jobs::insert(&server.store, &clock, Schedule::once(now), Some(now)).await;
    jobs::insert(&server.store, &clock, Schedule::every(1), Some(now)).await;
    server.dispatcher.activate_dispatcher.notify_one();
    let recorded = wait::eventually("the occurrences", || async {
        let rows = runs::all(&server, None).await;
        (rows.len() >= 4 && rows.iter().any(|row| row.job_id == once)).then_some(rows)
    })
    .await;
    assert!(recorded.iter().all(|row| row.status == OccurrenceStatus::Queued), "{recorded:?}");
    server.stop().await;

    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    for row in recorded {
        assert_eq!(runs::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
        assert_eq!(worker.started().iter().filter(|id| **id == row.id).count(), 1);
    }
    assert_eq!(runs::of_job(&server, once).await.len(), 1);
    assert!(runs::all(&server, Some(OccurrenceStatus::Failed)).await.is_empty());
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unroutable_message_is_sent_again() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let me = jobs::admin();
    let job = server.jobs.save(&me, &jobs::form("Unroutable")).await.expect("saved");
    let first = server.jobs.run_now(&me, job, Default::default()).await.expect("triggered");
    let published = async |id| {
        wait::eventually("the broker's confirm", || async {
            server.store.occurrence(id, 1, server.clock.now() - Duration::minutes(1)).await.ok()??.published_at
        })
        .await
    };
    published(first).await;

    // The server has declared the queue before, and the broker also confirms messages that it drops as unroutable.
    let broker = Broker::new(&config.broker).expect("a valid URL");
    let connection = broker.connect("test").await.expect("the broker responds");
    let channel = connection.create_channel().await.expect("a channel");
    let queue = broker.topology().job_queue("w", "echo");
    channel.queue_delete(queue.as_str().into(), Default::default()).await.expect("deleted");

    let second = server.jobs.run_now(&me, job, Default::default()).await.expect("triggered");
    published(second).await;
    let worker = worker_env::start(&config);
    assert_eq!(runs::ended(&server, second).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [second]);
    worker.stop().await;
    server.stop().await;
}
