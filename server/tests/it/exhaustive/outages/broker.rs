//! Outages of RabbitMQ while nothing consumes from it: its disk keeps reports, and lost messages are sent again.

use std::time::Duration;

use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus, topology::RedisKeys};
use milvaion_server::lifecycle::Server;
use milvaion_test_support::{jobs, private_service::PrivateService, runs, server_env, services, wait, worker_env};

const JOB_COUNT: usize = 20;

/// Reports wait in the broker while there is no server, and must be on its disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_survive_a_broker_crash() {
    let mut rabbitmq = PrivateService::rabbitmq().await.expect("RabbitMQ starts");
    let mut config = server_env::config().await;
    config.broker.url = rabbitmq.url().to_owned();
    let server = server_env::start(&config).await;
    let mut ids = start_runs(&server).await;
    server.stop().await;
    services::keep_claims(&RedisKeys::new(config.cache.key_prefix.clone())).await;
    let worker = worker_env::start(&config);
    wait::eventually("every run", || async { (worker.started().len() >= JOB_COUNT).then_some(()) }).await;
    let started = worker.started_sorted();
    // It stops after the broker has confirmed all its reports.
    worker.stop().await;
    rabbitmq.kill().await.expect("RabbitMQ is killed");
    rabbitmq.start().await.expect("RabbitMQ starts");
    let server = server_env::start(&config).await;
    for id in &ids {
        assert_eq!(runs::ended(&server, *id).await.row.status, OccurrenceStatus::Completed);
    }
    ids.sort();
    assert_eq!(started, ids, "each started once");
    server.stop().await;
    rabbitmq.close().await.expect("RabbitMQ is stopped");
}

/// Starts manual runs. Returns when the broker has confirmed their messages; there is no worker yet.
async fn start_runs(server: &Server) -> Vec<OccurrenceId> {
    // Before that, the republisher would send them, marked as possible duplicates, which start only after a claim check
    // with a server.
    server.jobs.publisher.wait_until_up().await;
    let mut ids = Vec::new();
    for n in 0..JOB_COUNT {
        let id = server.jobs.save(&jobs::admin(), &jobs::form(&format!("Queued {n}"))).await.expect("saved");
        ids.push(server.jobs.run_now(&jobs::admin(), id, Default::default()).await.expect("triggered"));
    }
    for id in &ids {
        wait::eventually("the broker's confirm", || async {
            server.store.occurrence(*id, 1, server.clock.now()).await.ok()??.published_at
        })
        .await;
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_messages_survive_a_wiped_broker() {
    let mut rabbitmq = PrivateService::rabbitmq().await.expect("RabbitMQ starts");
    let mut config = server_env::config().await;
    config.broker.url = rabbitmq.url().to_owned();
    config.lost_runs.requeue_after = Duration::from_secs(3);
    let server = server_env::start(&config).await;
    let mut waiting = start_runs(&server).await;
    rabbitmq.kill().await.expect("RabbitMQ is killed");
    rabbitmq.wipe().expect("its data is deleted");
    rabbitmq.start().await.expect("RabbitMQ starts");
    rabbitmq.wait_until_open().await.expect("a valid URL");
    let worker = worker_env::start(&config);
    for id in &waiting {
        assert_eq!(runs::ended(&server, *id).await.row.status, OccurrenceStatus::Completed);
    }
    waiting.sort();
    assert_eq!(worker.started_sorted(), waiting, "each started once");
    worker.stop().await;
    server.stop().await;
    rabbitmq.close().await.expect("RabbitMQ is stopped");
}
