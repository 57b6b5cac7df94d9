//! Redis is a clock that may be wiped, stopped or set back: it costs seconds, never a fire.

use std::time::Duration as Real;

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{Misfire, Rules},
    schedule::Schedule,
};
use milvaion_server::config::Config;

use super::{load::Load, private::Private};
use milvaion_test_support::stack;

/// How late a fire may be while Redis is in trouble: twice the sweep, and room for a busy machine.
const LATE: Duration = Duration::seconds(3);

/// How many jobs are due every second.
const JOBS: usize = 20;

async fn config(redis: &Private) -> Config {
    let mut config = stack::config().await;
    config.cache.url.clone_from(&redis.url);
    // As it ships, so that the lateness is the one people would see.
    config.background.sweep = Real::from_secs(1);
    config
}

async fn ask(redis: &Private, words: &[&str]) {
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
    let redis = Private::redis().await;
    let mut load = Load::open(config(&redis).await).await;
    load.every_second(JOBS, Misfire::CatchUp).await;
    load.runs(3 * JOBS).await;
    let flushed = load.server.clock.now();
    for _ in 0..3 {
        ask(&redis, &["FLUSHALL"]).await;
        load.records(2 * JOBS).await;
    }
    let until = load.server.clock.now();
    let verdict = load.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&load.jobs);
    let late = verdict.lateness(flushed, until);
    assert!(late <= LATE, "a fire was {} ms late", late.num_milliseconds());
    load.close().await;
    redis.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_jobs_fire_by_the_sweep() {
    let mut redis = Private::redis().await;
    let mut load = Load::open(config(&redis).await).await;
    load.every_second(JOBS, Misfire::CatchUp).await;
    load.runs(3 * JOBS).await;
    redis.kill().await;
    let away = load.server.clock.now();
    // Six seconds' worth, however long that takes.
    load.records(6 * JOBS).await;
    let back = load.server.clock.now();
    redis.start().await;
    load.records(3 * JOBS).await;
    let until = load.server.clock.now();
    let verdict = load.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&load.jobs);
    assert!(verdict.made_between(away, back) >= 5 * JOBS, "fires go on without Redis");
    let late = verdict.lateness(away, until);
    assert!(late <= LATE, "a fire was {} ms late", late.num_milliseconds());
    load.close().await;
    redis.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_set_back_to_an_old_copy_fires_nothing_a_second_time() {
    let mut redis = Private::redis().await;
    let mut load = Load::open(config(&redis).await).await;
    load.every_second(JOBS, Misfire::CatchUp).await;
    load.runs(2 * JOBS).await;
    let copy = redis.copy();
    // What the copy knows as due has been fired long since, and these are not in it at all.
    load.records(2 * JOBS).await;
    load.every_second(JOBS, Misfire::CatchUp).await;
    load.runs(4 * JOBS).await;
    redis.kill().await;
    redis.restore(&copy);
    redis.start().await;
    let back = load.server.clock.now();
    load.records(6 * JOBS).await;
    let until = load.server.clock.now();
    let verdict = load.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&load.jobs);
    let late = verdict.lateness(back, until);
    assert!(late <= LATE, "a fire was {} ms late", late.num_milliseconds());
    load.close().await;
    redis.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_made_since_the_copy_was_taken_fires_although_nothing_else_is_due() {
    let mut redis = Private::redis().await;
    let load = Load::open(config(&redis).await).await;
    let now = load.server.clock.now();
    // Something that the old copy knows as the next to come.
    load.insert(Schedule::every(3_600), Rules::default(), now + Duration::hours(1)).await;
    stack::eventually("a complete index", || async {
        load.server.cache.earliest().await.ok().filter(|(at, complete)| at.is_some() && *complete)
    })
    .await;
    let copy = redis.copy();
    redis.kill().await;
    redis.restore(&copy);
    // Made while Redis is away, so that only PostgreSQL knows of it.
    let due = load.server.clock.now() + Duration::seconds(8);
    let job = load.insert(Schedule::Once { at: due }, Rules::default(), due).await;
    redis.start().await;
    let row =
        stack::eventually("the fire", || async { load.rows().await.into_iter().find(|row| row.job_id == job) }).await;
    let late = row.id.created_at() - due;
    assert!(late <= Duration::seconds(5), "the fire was {} ms late", late.num_milliseconds());
    assert_eq!(stack::ended(&load.server, row.id).await.row.status, OccurrenceStatus::Completed);
    load.close().await;
    redis.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_is_not_believed_when_it_knows_of_nothing_due() {
    let redis = Private::redis().await;
    let load = Load::open(config(&redis).await).await;
    let due = load.server.clock.now() + Duration::seconds(4);
    let job = load.insert(Schedule::Once { at: due }, Rules::default(), due).await;
    stack::eventually("a complete index", || async {
        load.server.cache.earliest().await.ok().filter(|(at, complete)| at.is_some() && *complete)
    })
    .await;
    ask(&redis, &["FLUSHALL"]).await;
    // Somebody's change makes the dispatcher look again, at an index that is empty now.
    load.server.dispatcher.wake.notify_one();
    let row =
        stack::eventually("the fire", || async { load.rows().await.into_iter().find(|row| row.job_id == job) }).await;
    let late = row.id.created_at() - due;
    assert!(late <= LATE, "the fire was {} ms late", late.num_milliseconds());
    load.close().await;
    redis.close().await;
}
