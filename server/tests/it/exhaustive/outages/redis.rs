//! A Redis that comes back with an old copy of its data: occurrences are late by seconds, and none is lost.

use std::time::Duration as Real;

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::config::ServerConfig;
use milvaion_test_support::{private_service::PrivateService, runs, server_env, wait};

use super::workload::OutageWorkload;

/// The maximum delay of an occurrence during an outage: twice the sweep interval, and some time for a busy machine.
const MAX_LATENESS: Duration = Duration::seconds(3);

/// The number of jobs that are due every second.
const JOB_COUNT: usize = 20;

async fn config(redis: &PrivateService) -> ServerConfig {
    let mut config = server_env::config().await;
    config.cache.url = redis.url().to_owned();
    // The default, so that the delay is the one of a real installation.
    config.background.sweep = Real::from_secs(1);
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_redis_copy_creates_no_duplicates() {
    let mut redis = PrivateService::redis().await.expect("Redis starts");
    let mut workload = OutageWorkload::open(config(&redis).await).await;
    workload.every_second(JOB_COUNT).await;
    workload.wait_for_runs(2 * JOB_COUNT).await;
    let copy = redis.copy().expect("the folder is copied");
    // The jobs that are due in the copy have been dispatched since, and it does not contain the new jobs.
    workload.wait_for_occurrences(2 * JOB_COUNT).await;
    workload.every_second(JOB_COUNT).await;
    workload.wait_for_runs(4 * JOB_COUNT).await;
    redis.kill().await.expect("Redis is killed");
    redis.restore(&copy).expect("the folder is restored");
    redis.start().await.expect("Redis starts");
    let back = workload.server.clock.now();
    workload.wait_for_occurrences(6 * JOB_COUNT).await;
    let until = workload.server.clock.now();
    let verdict = workload.finish().await;
    verdict.check_no_duplicates_or_failures();
    verdict.check_nothing_lost(&workload.jobs);
    let late = verdict.max_lateness(back, until);
    assert!(late <= MAX_LATENESS, "an occurrence was {} ms late", late.num_milliseconds());
    workload.close().await;
    redis.close().await.expect("Redis is stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_newer_than_the_redis_copy_is_dispatched() {
    let mut redis = PrivateService::redis().await.expect("Redis starts");
    let workload = OutageWorkload::open(config(&redis).await).await;
    let now = workload.server.clock.now();
    // The only job in the old copy, due in an hour.
    workload.insert(Schedule::every(3_600), Rules::default(), now + Duration::hours(1)).await;
    wait::eventually("a complete index", || async {
        workload.server.cache.earliest().await.ok().filter(|(at, complete)| at.is_some() && *complete)
    })
    .await;
    let copy = redis.copy().expect("the folder is copied");
    redis.kill().await.expect("Redis is killed");
    redis.restore(&copy).expect("the folder is restored");
    // Created while Redis is away, so that it is in PostgreSQL only.
    let due = workload.server.clock.now() + Duration::seconds(8);
    let job = workload.insert(Schedule::once(due), Rules::default(), due).await;
    redis.start().await.expect("Redis starts");
    let row = wait::eventually("the occurrence", || async {
        workload.rows().await.into_iter().find(|row| row.job_id == job)
    })
    .await;
    let late = row.id.created_at() - due;
    assert!(late <= Duration::seconds(5), "the occurrence was {} ms late", late.num_milliseconds());
    assert_eq!(runs::ended(&workload.server, row.id).await.row.status, OccurrenceStatus::Completed);
    workload.close().await;
    redis.close().await.expect("Redis is stopped");
}
