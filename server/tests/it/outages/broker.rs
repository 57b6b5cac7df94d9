//! RabbitMQ carries the work and may drop it: what is recorded waits, and is sent again.
//!
//! One broker for all, because it boots for ten seconds: the outages come one after the other.

use std::time::Duration;

use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use milvaion_schedule::rules::MisfirePolicy;
use milvaion_server::lifecycle::Server;

use super::{
    private_service::{self, PrivateService},
    workload::OutageWorkload,
};
use milvaion_test_support::stack;

const JOB_COUNT: usize = 20;

async fn open(rabbitmq: &PrivateService) -> OutageWorkload {
    let mut config = stack::config().await;
    config.broker.url.clone_from(&rabbitmq.url);
    let mut workload = OutageWorkload::open(config).await;
    workload.every_second(JOB_COUNT, MisfirePolicy::CatchUp).await;
    workload.runs(2 * JOB_COUNT).await;
    workload
}

async fn all_is_well(workload: OutageWorkload) {
    let verdict = workload.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&workload.jobs);
    workload.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv11_a_broker_that_crashes_fills_up_or_is_wiped_costs_no_occurrence() {
    let mut rabbitmq = PrivateService::rabbitmq().await;
    a_killed_broker_is_waited_for(&mut rabbitmq).await;
    a_broker_that_takes_nothing_is_waited_for(&rabbitmq).await;
    a_wiped_broker_is_given_again_what_waits(&mut rabbitmq).await;
    mv04_what_only_a_killed_broker_had_heard_of_is_told_all_the_same(&mut rabbitmq).await;
    rabbitmq.close().await;
}

async fn a_killed_broker_is_waited_for(rabbitmq: &mut PrivateService) {
    let workload = open(rabbitmq).await;
    rabbitmq.kill().await;
    workload.records(3 * JOB_COUNT).await;
    rabbitmq.start().await;
    workload.runs(3 * JOB_COUNT).await;
    all_is_well(workload).await;
}

async fn a_broker_that_takes_nothing_is_waited_for(rabbitmq: &PrivateService) {
    let workload = open(rabbitmq).await;
    rabbitmq.memory_limit(0.0001).await;
    let full = workload.server.clock.now();
    workload.records(2 * JOB_COUNT).await;
    let started = workload.worker.started().len();
    workload.records(10 * JOB_COUNT).await;
    let until = workload.server.clock.now();
    assert_eq!(workload.worker.started().len(), started, "the broker took something");
    rabbitmq.memory_limit(0.4).await;
    workload.runs(3 * JOB_COUNT).await;
    let verdict = workload.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&workload.jobs);
    let late = verdict.lateness(full, until);
    assert!(late <= chrono::Duration::seconds(3), "an occurrence was recorded {} ms late", late.num_milliseconds());
    workload.close().await;
}

async fn a_wiped_broker_is_given_again_what_waits(rabbitmq: &mut PrivateService) {
    let workload = open(rabbitmq).await;
    // What the broker has confirmed is run first: only what it never had is sent again without anybody asking it.
    workload.rest().await;
    rabbitmq.kill().await;
    rabbitmq.wipe("mnesia");
    workload.resume().await;
    workload.records(3 * JOB_COUNT).await;
    rabbitmq.start().await;
    workload.runs(3 * JOB_COUNT).await;
    let verdict = workload.settle().await;
    verdict.nothing_double_nothing_failed();
    workload.close().await;
}

/// Reports wait in the broker while there is no server, and must be on its disk.
async fn mv04_what_only_a_killed_broker_had_heard_of_is_told_all_the_same(rabbitmq: &mut PrivateService) {
    let mut config = stack::config().await;
    config.broker.url.clone_from(&rabbitmq.url);
    let server = stack::server(&config).await;
    let mut asked = ask_for_runs(&server).await;
    server.stop().await;
    let worker = stack::worker(&config);
    stack::eventually("every run", || async { (worker.started().len() >= JOB_COUNT).then_some(()) }).await;
    let started = worker.sorted();
    // Leaves when all its reports are with the broker.
    worker.stop().await;
    rabbitmq.kill().await;
    rabbitmq.start().await;
    let server = stack::server(&config).await;
    for id in &asked {
        assert_eq!(stack::ended(&server, *id).await.row.status, OccurrenceStatus::Completed);
    }
    asked.sort();
    assert_eq!(started, asked, "each started once");
    server.stop().await;
}

/// Occurrences whose messages the broker has confirmed; no worker is there yet.
async fn ask_for_runs(server: &Server) -> Vec<OccurrenceId> {
    // What is asked for sooner is sent by the republisher, marked as perhaps a copy, and that starts nothing without a
    // server to ask.
    server.jobs.publisher.wait_until_up().await;
    let mut asked = Vec::new();
    for n in 0..JOB_COUNT {
        let id = server.jobs.save(&stack::admin(), &stack::form(&format!("Waits {n}"))).await.expect("saved");
        asked.push(server.jobs.run_now(&stack::admin(), id, Default::default()).await.expect("triggered"));
    }
    for id in &asked {
        stack::eventually("the confirm of the broker", || async {
            server.store.occurrence(*id, 1, server.clock.now()).await.ok()??.published_at
        })
        .await;
    }
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_wiped_broker_had_confirmed_runs_all_the_same() {
    let mut rabbitmq = PrivateService::rabbitmq().await;
    let mut config = stack::config().await;
    config.broker.url.clone_from(&rabbitmq.url);
    config.lost_runs.requeue_after = Duration::from_secs(3);
    let server = stack::server(&config).await;
    let mut waiting = ask_for_runs(&server).await;
    rabbitmq.kill().await;
    rabbitmq.wipe("mnesia");
    rabbitmq.start().await;
    private_service::answers(&rabbitmq).await;
    let worker = stack::worker(&config);
    for id in &waiting {
        assert_eq!(stack::ended(&server, *id).await.row.status, OccurrenceStatus::Completed);
    }
    waiting.sort();
    assert_eq!(worker.sorted(), waiting, "each started once");
    worker.stop().await;
    server.stop().await;
    rabbitmq.close().await;
}
