//! Many jobs at once: the time until jobs that are due at one instant are dispatched, the rate at which a worker drains
//! a backlog in the broker, the lateness of urgent runs during such a backlog, and the spread of a few runs over idle
//! instances.

use anyhow::ensure;
use chrono::{DateTime, Duration, Utc};
use milvaion_server::clock::machine_now;

use crate::{
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, JobBatch},
    process_stats, raw,
    samples::{RawValue, RunSample, p50_and_p99},
    stage_times::{self, MeasurementWindow},
};

/// The figures of the processor time of a drain, in the order of [`stage_times::print_cpu`].
const DRAIN_CPU: [&str; 6] = [
    "drain-cpu",
    "drain-cpu-server",
    "drain-cpu-worker",
    "drain-cpu-postgres",
    "drain-cpu-redis",
    "drain-cpu-rabbitmq",
];

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
        process_groups.insert(1, worker.process_group.clone());
        before.insert(1, 0.0);
        env.wait_until_drained().await?;
        let after = process_stats::seconds(&process_groups);
        let costs = stage_times::print_cpu(&process_groups, &before, &after, COUNT);
        env.verify(worker.stop_and_count_runs().await?).await?;
        let (first, last): (DateTime<Utc>, DateTime<Utc>) =
            sqlx::query_as("SELECT min(started_at), max(last_heartbeat) FROM occurrences").fetch_one(&env.pool).await?;
        let mut sample = vec![("drain", COUNT as f64 / seconds(last - first))];
        sample.extend(DRAIN_CPU.into_iter().zip(costs));
        samples.push(sample);
        server.stop().await?;
        env.close().await?;
    }
    Ok(samples)
}

/// Measures the lateness of urgent runs, in milliseconds. A worker starts on 100,000 occurrences of the lowest priority
/// that wait in the broker, and meanwhile 200 of the highest priority come due, one after another.
pub(crate) async fn flood(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    // More than a worker can drain while the urgent ones come due.
    const LOW: i64 = 100_000;
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
        let statement = "SELECT c.scheduled_for, extract(epoch FROM c.started_at - c.scheduled_for)::float8 * 1000 \
                           FROM occurrences c \
                          WHERE c.priority = 5 \
                            AND c.started_at < (SELECT max(l.started_at) FROM occurrences l WHERE l.priority = 1) \
                          ORDER BY c.scheduled_for";
        let late: Vec<RawValue> = sqlx::query_as(statement).fetch_all(&env.pool).await?;
        ensure!(late.len() == 200, "only {} of 200 urgent runs started during the backlog", late.len());
        MeasurementWindow { from, upto: machine_now() }.print_stages(&env.pool, Some(5)).await?;
        raw::keep(harness, "flood-critical", &env.prefix, &late)?;
        let [p50, p99] = p50_and_p99(&late);
        samples.push(vec![("flood-critical-p50", p50), ("flood-critical-p99", p99)]);
        server.stop().await?;
        env.close().await?;
    }
    Ok(samples)
}

/// Measures the most of 20 runs, all due at one instant, that one of ten idle instances of the worker starts. It is the
/// largest number of five such instants.
pub(crate) async fn spread(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let env = BenchEnv::new(harness).await?;
        let server = env.server().await?;
        let workers = env.workers(10).await?;
        job_batch::warm_up(&env).await?;
        let mut shares: Vec<RawValue> = Vec::new();
        for _ in 0..5 {
            let due = insert_and_dispatch(&env, 20, 3).await?;
            env.wait_until_drained().await?;
            let statement = "SELECT scheduled_for, count(*)::float8 FROM occurrences WHERE scheduled_for = $1 \
                              GROUP BY scheduled_for, instance_id ORDER BY 2 DESC";
            shares.extend(sqlx::query_as::<_, RawValue>(statement).bind(due).fetch_all(&env.pool).await?);
        }
        let mut started = 0;
        for worker in workers {
            started += worker.stop_and_count_runs().await?;
        }
        env.verify(started).await?;
        raw::keep(harness, "spread", &env.prefix, &shares)?;
        samples.push(vec![("spread", shares.iter().map(|(_, share)| *share).fold(0.0, f64::max))]);
        server.stop().await?;
        env.close().await?;
    }
    Ok(samples)
}

/// Inserts jobs that are all due at one instant, at least four seconds from now, and waits until all are published.
/// Returns the instant.
async fn insert_and_dispatch(env: &BenchEnv, count: i64, priority: i16) -> anyhow::Result<DateTime<Utc>> {
    // More of them take longer to insert.
    let at = machine_now() + Duration::seconds((count / 10_000).max(4));
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
