//! RabbitMQ carries the work and may drop it: what is recorded waits, and is sent again.
//!
//! One broker for all, because it boots for ten seconds: the outages come one after the other.

use std::time::Duration;

use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use milvaion_schedule::rules::Misfire;
use milvaion_server::lifecycle::Server;

use super::{
    load::Load,
    private::{self, Private},
};
use milvaion_test_support::stack;

const JOBS: usize = 20;

async fn open(rabbitmq: &Private) -> Load {
    let mut config = stack::config().await;
    config.broker.url.clone_from(&rabbitmq.url);
    let mut load = Load::open(config).await;
    load.every_second(JOBS, Misfire::CatchUp).await;
    load.runs(2 * JOBS).await;
    load
}

async fn all_is_well(load: Load) {
    let verdict = load.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&load.jobs);
    load.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv11_a_broker_that_crashes_fills_up_or_is_wiped_costs_no_occurrence() {
    let mut rabbitmq = Private::rabbitmq().await;
    a_killed_broker_is_waited_for(&mut rabbitmq).await;
    a_broker_that_takes_nothing_is_waited_for(&rabbitmq).await;
    a_wiped_broker_is_given_again_what_waits(&mut rabbitmq).await;
    mv04_what_only_a_killed_broker_had_heard_of_is_told_all_the_same(&mut rabbitmq).await;
    rabbitmq.close().await;
}

async fn a_killed_broker_is_waited_for(rabbitmq: &mut Private) {
    let load = open(rabbitmq).await;
    rabbitmq.kill().await;
    load.records(3 * JOBS).await;
    rabbitmq.start().await;
    load.runs(3 * JOBS).await;
    all_is_well(load).await;
}

async fn a_broker_that_takes_nothing_is_waited_for(rabbitmq: &Private) {
    let load = open(rabbitmq).await;
    rabbitmq.memory_limit(0.0001).await;
    let full = load.server.clock.now();
    load.records(2 * JOBS).await;
    let started = load.worker.started().len();
    load.records(10 * JOBS).await;
    let until = load.server.clock.now();
    assert_eq!(load.worker.started().len(), started, "the broker took something");
    rabbitmq.memory_limit(0.4).await;
    load.runs(3 * JOBS).await;
    let verdict = load.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&load.jobs);
    let late = verdict.lateness(full, until);
    assert!(late <= chrono::Duration::seconds(3), "an occurrence was recorded {} ms late", late.num_milliseconds());
    load.close().await;
}

async fn a_wiped_broker_is_given_again_what_waits(rabbitmq: &mut Private) {
    let load = open(rabbitmq).await;
    // What the broker has confirmed is run first: only what it never had is sent again without anybody asking it.
    load.rest().await;
    rabbitmq.kill().await;
    rabbitmq.wipe("mnesia");
    load.resume().await;
    load.records(3 * JOBS).await;
    rabbitmq.start().await;
    load.runs(3 * JOBS).await;
    let verdict = load.settle().await;
    verdict.nothing_double_nothing_failed();
    load.close().await;
}

/// Reports wait in the broker while there is no server, and must be on its disk.
async fn mv04_what_only_a_killed_broker_had_heard_of_is_told_all_the_same(rabbitmq: &mut Private) {
    let mut config = stack::config().await;
    config.broker.url.clone_from(&rabbitmq.url);
    let server = stack::server(&config).await;
    let mut asked = ask_for_runs(&server).await;
    server.stop().await;
    let worker = stack::worker(&config);
    stack::eventually("every run", || async { (worker.started().len() >= JOBS).then_some(()) }).await;
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
    server.jobs.publisher.up().await;
    let mut asked = Vec::new();
    for n in 0..JOBS {
        let id = server.jobs.save(&stack::admin(), &stack::form(&format!("Waits {n}"))).await.expect("saved");
        asked.push(server.jobs.trigger(&stack::admin(), id, Default::default()).await.expect("triggered"));
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
    let mut rabbitmq = Private::rabbitmq().await;
    let mut config = stack::config().await;
    config.broker.url.clone_from(&rabbitmq.url);
    config.lost.requeue_after = Duration::from_secs(3);
    let server = stack::server(&config).await;
    let mut waiting = ask_for_runs(&server).await;
    rabbitmq.kill().await;
    rabbitmq.wipe("mnesia");
    rabbitmq.start().await;
    private::answers(&rabbitmq).await;
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
