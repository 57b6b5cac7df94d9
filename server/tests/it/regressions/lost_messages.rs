//! Occurrences whose message was lost.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_server::broker::Broker;
use milvaion_test_support::{jobs, runs, server_env, wait, worker_env};

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
