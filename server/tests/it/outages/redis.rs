//! Redis is a clock that may be wiped, stopped or set back: it costs seconds, never a fire.

use std::time::Duration as Real;

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{MisfirePolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::config::ServerConfig;

use super::{private_service::PrivateService, workload::OutageWorkload};
use milvaion_test_support::stack;

/// How late a fire may be while Redis is in trouble: twice the sweep, and room for a busy machine.
const MAX_LATENESS: Duration = Duration::seconds(3);

/// How many jobs are due every second.
const JOB_COUNT: usize = 20;

async fn config(redis: &PrivateService) -> ServerConfig {
    let mut config = stack::config().await;
    config.cache.url.clone_from(&redis.url);
    // As it ships, so that the lateness is the one people would see.
    config.background.sweep = Real::from_secs(1);
    config
}

async fn ask(redis: &PrivateService, words: &[&str]) {
    let client = redis::Client::open(redis.url.as_str()).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    let _: redis::Value = command.query_async(&mut connection).await.expect("Redis obeys");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_loses_nothing_doubles_nothing_and_delays_nothing() {
    let redis = PrivateService::redis().await;
    let mut workload = OutageWorkload::open(config(&redis).await).await;
    workload.every_second(JOB_COUNT, MisfirePolicy::CatchUp).await;
    workload.runs(3 * JOB_COUNT).await;
    let flushed = workload.server.clock.now();
    for _ in 0..3 {
        ask(&redis, &["FLUSHALL"]).await;
        workload.records(2 * JOB_COUNT).await;
    }
    let until = workload.server.clock.now();
    let verdict = workload.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&workload.jobs);
    let late = verdict.lateness(flushed, until);
    assert!(late <= MAX_LATENESS, "a fire was {} ms late", late.num_milliseconds());
    workload.close().await;
    redis.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_jobs_fire_by_the_sweep() {
    let mut redis = PrivateService::redis().await;
    let mut workload = OutageWorkload::open(config(&redis).await).await;
    workload.every_second(JOB_COUNT, MisfirePolicy::CatchUp).await;
    workload.runs(3 * JOB_COUNT).await;
    redis.kill().await;
    let away = workload.server.clock.now();
    // Six seconds' worth, however long that takes.
    workload.records(6 * JOB_COUNT).await;
    let back = workload.server.clock.now();
    redis.start().await;
    workload.records(3 * JOB_COUNT).await;
    let until = workload.server.clock.now();
    let verdict = workload.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&workload.jobs);
    assert!(verdict.made_between(away, back) >= 5 * JOB_COUNT, "fires go on without Redis");
    let late = verdict.lateness(away, until);
    assert!(late <= MAX_LATENESS, "a fire was {} ms late", late.num_milliseconds());
    workload.close().await;
    redis.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_set_back_to_an_old_copy_fires_nothing_a_second_time() {
    let mut redis = PrivateService::redis().await;
    let mut workload = OutageWorkload::open(config(&redis).await).await;
    workload.every_second(JOB_COUNT, MisfirePolicy::CatchUp).await;
    workload.runs(2 * JOB_COUNT).await;
    let copy = redis.copy();
    // What the copy knows as due has been fired long since, and these are not in it at all.
    workload.records(2 * JOB_COUNT).await;
    workload.every_second(JOB_COUNT, MisfirePolicy::CatchUp).await;
    workload.runs(4 * JOB_COUNT).await;
    redis.kill().await;
    redis.restore(&copy);
    redis.start().await;
    let back = workload.server.clock.now();
    workload.records(6 * JOB_COUNT).await;
    let until = workload.server.clock.now();
    let verdict = workload.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&workload.jobs);
    let late = verdict.lateness(back, until);
    assert!(late <= MAX_LATENESS, "a fire was {} ms late", late.num_milliseconds());
    workload.close().await;
    redis.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_made_since_the_copy_was_taken_fires_although_nothing_else_is_due() {
    let mut redis = PrivateService::redis().await;
    let workload = OutageWorkload::open(config(&redis).await).await;
    let now = workload.server.clock.now();
    // Something that the old copy knows as the next to come.
    workload.insert(Schedule::every(3_600), Rules::default(), now + Duration::hours(1)).await;
    stack::eventually("a complete index", || async {
        workload.server.cache.earliest().await.ok().filter(|(at, complete)| at.is_some() && *complete)
    })
    .await;
    let copy = redis.copy();
    redis.kill().await;
    redis.restore(&copy);
    // Made while Redis is away, so that only PostgreSQL knows of it.
    let due = workload.server.clock.now() + Duration::seconds(8);
    let job = workload.insert(Schedule::Once { at: due }, Rules::default(), due).await;
    redis.start().await;
    let row =
        stack::eventually("the fire", || async { workload.rows().await.into_iter().find(|row| row.job_id == job) })
            .await;
    let late = row.id.created_at() - due;
    assert!(late <= Duration::seconds(5), "the fire was {} ms late", late.num_milliseconds());
    assert_eq!(stack::ended(&workload.server, row.id).await.row.status, OccurrenceStatus::Completed);
    workload.close().await;
    redis.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_is_not_believed_when_it_knows_of_nothing_due() {
    let redis = PrivateService::redis().await;
    let workload = OutageWorkload::open(config(&redis).await).await;
    let due = workload.server.clock.now() + Duration::seconds(4);
    let job = workload.insert(Schedule::Once { at: due }, Rules::default(), due).await;
    stack::eventually("a complete index", || async {
        workload.server.cache.earliest().await.ok().filter(|(at, complete)| at.is_some() && *complete)
    })
    .await;
    ask(&redis, &["FLUSHALL"]).await;
    // Somebody's change makes the dispatcher look again, at an index that is empty now.
    workload.server.dispatcher.activate_dispatcher.notify_one();
    let row =
        stack::eventually("the fire", || async { workload.rows().await.into_iter().find(|row| row.job_id == job) })
            .await;
    let late = row.id.created_at() - due;
    assert!(late <= MAX_LATENESS, "the fire was {} ms late", late.num_milliseconds());
    workload.close().await;
    redis.close().await;
}
