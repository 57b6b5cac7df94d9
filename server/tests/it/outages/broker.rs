//! Outages of RabbitMQ, which may lose messages: occurrences stay recorded, and their messages are sent again.
//!
//! Several outages share one broker and happen one after the other, because booting it takes ten seconds.

use std::time::Duration;

use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus, topology::RedisKeys};
use milvaion_schedule::rules::MisfirePolicy;
use milvaion_server::lifecycle::Server;
use milvaion_test_support::{
    jobs,
    private_service::{BrokerAlarm, PrivateService},
    runs, server_env, services, wait, worker_env,
};

use super::workload::OutageWorkload;

const JOB_COUNT: usize = 20;

async fn open(rabbitmq: &PrivateService) -> OutageWorkload {
    let mut config = server_env::config().await;
    config.broker.url = rabbitmq.url().to_owned();
    let mut workload = OutageWorkload::open(config).await;
    workload.every_second(JOB_COUNT, MisfirePolicy::CatchUp).await;
    workload.wait_for_runs(2 * JOB_COUNT).await;
    workload
}

/// Checks that nothing was lost, run twice or failed.
async fn check_and_close(workload: OutageWorkload) {
    let verdict = workload.finish().await;
    verdict.check_no_duplicates_or_failures();
    verdict.check_nothing_lost(&workload.jobs);
    workload.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_outages_lose_no_occurrence() {
    let mut rabbitmq = PrivateService::rabbitmq().await.expect("RabbitMQ starts");
    killed_broker_delays_publishing(&mut rabbitmq).await;
    blocked_broker_delays_publishing(&rabbitmq).await;
    wiped_broker_receives_unsent_occurrences(&mut rabbitmq).await;
    reports_survive_a_broker_crash(&mut rabbitmq).await;
    rabbitmq.close().await.expect("RabbitMQ is stopped");
}

async fn killed_broker_delays_publishing(rabbitmq: &mut PrivateService) {
    let workload = open(rabbitmq).await;
    rabbitmq.kill().await.expect("RabbitMQ is killed");
    workload.wait_for_occurrences(3 * JOB_COUNT).await;
    rabbitmq.start().await.expect("RabbitMQ starts");
    workload.wait_for_runs(3 * JOB_COUNT).await;
    check_and_close(workload).await;
}

async fn blocked_broker_delays_publishing(rabbitmq: &PrivateService) {
    let workload = open(rabbitmq).await;
    rabbitmq.raise_alarm(BrokerAlarm::Memory).await.expect("the alarm is raised");
    let full = workload.server.clock.now();
    workload.wait_for_occurrences(2 * JOB_COUNT).await;
    let started = workload.worker.started().len();
    workload.wait_for_occurrences(10 * JOB_COUNT).await;
    let until = workload.server.clock.now();
    assert_eq!(workload.worker.started().len(), started, "the broker must accept no message");
    rabbitmq.clear_alarm(BrokerAlarm::Memory).await.expect("the alarm is over");
    workload.wait_for_runs(3 * JOB_COUNT).await;
    let verdict = workload.finish().await;
    verdict.check_no_duplicates_or_failures();
    verdict.check_nothing_lost(&workload.jobs);
    let late = verdict.max_lateness(full, until);
    assert!(late <= chrono::Duration::seconds(3), "an occurrence was recorded {} ms late", late.num_milliseconds());
    workload.close().await;
}

async fn wiped_broker_receives_unsent_occurrences(rabbitmq: &mut PrivateService) {
    let workload = open(rabbitmq).await;
    // Confirmed messages are delivered first: without a probe of the queues, only unconfirmed ones are sent again.
    workload.suspend().await;
    rabbitmq.kill().await.expect("RabbitMQ is killed");
    rabbitmq.wipe().expect("its data is deleted");
    workload.resume().await;
    workload.wait_for_occurrences(3 * JOB_COUNT).await;
    rabbitmq.start().await.expect("RabbitMQ starts");
    workload.wait_for_runs(3 * JOB_COUNT).await;
    let verdict = workload.finish().await;
    verdict.check_no_duplicates_or_failures();
    workload.close().await;
}

/// Reports wait in the broker while there is no server, and must be on its disk.
async fn reports_survive_a_broker_crash(rabbitmq: &mut PrivateService) {
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
