//! Many jobs at once: the time until jobs that are due at one instant are dispatched, the rate at which a worker drains
//! a backlog in the broker, and the lateness of urgent runs during such a backlog.

use anyhow::ensure;
use chrono::{DateTime, Duration, Utc};
use milvaion_server::clock::machine_now;

use crate::{
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, JobBatch},
    process_stats,
    samples::RunSample,
    stage_times::{self, MeasurementWindow},
};

/// Measures the seconds from the due time of 10,000 jobs, all due at one instant, until the last one is dispatched. A
/// worker runs them meanwhile.
pub(crate) async fn burst(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let env = BenchEnv::new(harness).await?;
        let server = env.server().await?;
        let worker = env.worker().await?;
        job_batch::warm_up(&env).await?;
        let due = insert_and_dispatch(&env, 10_000, 3).await?;
        env.wait_until_drained().await?;
        env.verify(worker.stop_and_count_runs().await?).await?;
        let last = last_published(&env, due).await?;
        samples.push(vec![("burst-10000", seconds(last - due))]);
        server.stop().await?;
        env.close().await?;
    }
    Ok(samples)
}

/// Measures the occurrences per second that a worker runs when it starts on 20,000 that wait in the broker, from the
/// start of the first run until the end of the last one is stored.
pub(crate) async fn drain(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    const COUNT: i64 = 20_000;
    let mut samples = Vec::new();
    for _ in 0..runs {
        let env = BenchEnv::new(harness).await?;
        let server = env.server().await?;
        insert_and_dispatch(&env, COUNT, 3).await?;
        let mut process_groups = vec![server.process_group.clone()];
        process_groups.extend(harness.services()?.iter().cloned());
        let mut before = process_stats::seconds(&process_groups);
        let worker = env.worker().await?;
        process_groups.push(worker.process_group.clone());
        before.push(0.0);
        env.wait_until_drained().await?;
        stage_times::print_cpu(&process_groups, &before, &process_stats::seconds(&process_groups), COUNT);
        env.verify(worker.stop_and_count_runs().await?).await?;
        let (first, last): (DateTime<Utc>, DateTime<Utc>) =
            sqlx::query_as("SELECT min(started_at), max(last_heartbeat) FROM occurrences").fetch_one(&env.pool).await?;
        samples.push(vec![("drain", COUNT as f64 / seconds(last - first))]);
        server.stop().await?;
        env.close().await?;
    }
    Ok(samples)
}

/// Measures the lateness of urgent runs, in milliseconds. A worker starts on 40,000 occurrences of the lowest priority
/// that wait in the broker, and meanwhile 200 of the highest priority come due, one after another.
pub(crate) async fn flood(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    const LOW: i64 = 40_000;
    let mut samples = Vec::new();
    for _ in 0..runs {
        let env = BenchEnv::new(harness).await?;
        let server = env.server().await?;
        insert_and_dispatch(&env, LOW, 1).await?;
        let worker = env.worker().await?;
        env.wait_until("the first 500 completed occurrences", async || {
            let done = "SELECT count(*) FROM (SELECT 1 FROM occurrences WHERE status = 'completed' LIMIT 500) o";
            Ok(sqlx::query_scalar::<_, i64>(done).fetch_one(&env.pool).await? == 500)
        })
        .await?;
        let from = machine_now();
        let critical = JobBatch {
            count: 200,
            first: Some(machine_now() + Duration::milliseconds(200)),
            spread: Duration::milliseconds(1_500),
            priority: 5,
            ..JobBatch::default()
        };
        let due = critical.insert(&env.pool).await?;
        env.notify_due(&due).await?;
        env.wait_until_drained().await?;
        env.verify(worker.stop_and_count_runs().await?).await?;
        let statement = "SELECT percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP \
                                (ORDER BY extract(epoch FROM c.started_at - c.scheduled_for)::float8 * 1000), \
                                count(*) FILTER (WHERE (SELECT max(l.started_at) FROM occurrences l WHERE l.priority = 1) > c.started_at) \
                           FROM occurrences c WHERE c.priority = 5";
        let (late, amid): (Vec<f64>, i64) = sqlx::query_as(statement).fetch_one(&env.pool).await?;
        ensure!(amid == 200, "only {amid} of 200 urgent runs started during the backlog");
        MeasurementWindow { from, upto: machine_now() }.print_stages(&env.pool, Some(5)).await?;
        samples.push(vec![("flood-critical-p50", late[0]), ("flood-critical-p99", late[1])]);
        server.stop().await?;
        env.close().await?;
    }
    Ok(samples)
}

/// Inserts jobs that are all due at one instant, four seconds from now, and waits until all are published. Returns the
/// instant.
async fn insert_and_dispatch(env: &BenchEnv, count: i64, priority: i16) -> anyhow::Result<DateTime<Utc>> {
    let at = machine_now() + Duration::seconds(4);
    let due = JobBatch { count, first: Some(at), priority, ..JobBatch::default() }.insert(&env.pool).await?;
    env.notify_due(&due).await?;
    env.wait_until("the dispatch of all jobs", async || {
        let sent = "SELECT count(*) FROM occurrences WHERE scheduled_for = $1 AND published_at IS NOT NULL";
        Ok(sqlx::query_scalar::<_, i64>(sent).bind(at).fetch_one(&env.pool).await? == count)
    })
    .await?;
    Ok(at)
}

/// Returns the time at which the last of the occurrences that were due at `due` was published.
async fn last_published(env: &BenchEnv, due: DateTime<Utc>) -> anyhow::Result<DateTime<Utc>> {
    let statement = "SELECT max(published_at) FROM occurrences WHERE scheduled_for = $1";
    Ok(sqlx::query_scalar(statement).bind(due).fetch_one(&env.pool).await?)
}

fn seconds(span: Duration) -> f64 {
    span.num_microseconds().unwrap_or_default() as f64 / 1e6
}
