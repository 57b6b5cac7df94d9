//! How late a run starts: jobs that are due each second, spread evenly over it. The first line of the run, by the
//! worker's clock, minus the due instant; both on one machine.

use chrono::{DateTime, Duration, Utc};
use milvaion_server::clock::machine_now;

use crate::{
    figures::RunSample,
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, EVERY_MONTH, EVERY_SECOND, JobBatch},
};

/// How long starts are measured.
const MEASURED_SECONDS: i64 = 30;

/// A hundred a second.
pub(crate) async fn hundred(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let [p50, p99] = among(harness, 100, 0).await?;
        samples.push(vec![("lateness-100-p50", p50), ("lateness-100-p99", p99)]);
    }
    Ok(samples)
}

/// A thousand a second, among a hundred thousand.
pub(crate) async fn thousand(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let [p50, p99] = among(harness, 1_000, 100_000).await?;
        samples.push(vec![("lateness-1000-p50", p50), ("lateness-1000-p99", p99)]);
    }
    Ok(samples)
}

async fn among(harness: &BenchHarness, rate: i64, others: i64) -> anyhow::Result<[f64; 2]> {
    let env = BenchEnv::new(harness).await?;
    idle_jobs(others).insert(&env.pool).await?;
    let server = env.server().await?;
    let worker = env.worker().await?;
    job_batch::warm_up(&env).await?;
    let found = starts(&env, rate, MEASURED_SECONDS).await?;
    env.verify(worker.stop_and_count_runs().await?).await?;
    server.stop().await?;
    env.close().await?;
    Ok(found)
}

/// Jobs that are defined, but not due for a day.
pub(crate) fn idle_jobs(count: i64) -> JobBatch {
    let first = Some(machine_now() + Duration::days(1));
    JobBatch { count, schedule: EVERY_MONTH, first, spread: Duration::days(29), ..JobBatch::default() }
}

/// Makes `rate` jobs due each second for so long, then pauses them, and tells the median and the 99th percentile of how
/// late they started, in milliseconds.
pub(crate) async fn starts(env: &BenchEnv, rate: i64, seconds: i64) -> anyhow::Result<[f64; 2]> {
    let begin = machine_now() + Duration::seconds(3);
    let due = JobBatch {
        count: rate,
        schedule: EVERY_SECOND,
        first: Some(begin),
        spread: Duration::seconds(1),
        ..JobBatch::default()
    };
    let due = due.insert(&env.pool).await?;
    env.notify_due(&due).await?;
    let end = begin + Duration::seconds(seconds);
    sleep_until(end + Duration::seconds(1)).await;
    job_batch::pause(env).await?;
    env.wait_until_drained().await?;
    let statement = "SELECT count(*), coalesce(percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP \
                            (ORDER BY extract(epoch FROM started_at - scheduled_for)::float8 * 1000), '{0, 0}') \
                       FROM occurrences WHERE scheduled_for >= $1 AND scheduled_for < $2";
    let (count, late): (i64, Vec<f64>) = sqlx::query_as(statement).bind(begin).bind(end).fetch_one(&env.pool).await?;
    if count != rate * seconds {
        println!(
            "    {} of {} due instants were left out, for the one after them was due already",
            rate * seconds - count,
            rate * seconds
        );
    }
    Ok([late.first().copied().unwrap_or_default(), late.get(1).copied().unwrap_or_default()])
}

/// Sleeps until an instant.
pub(crate) async fn sleep_until(at: DateTime<Utc>) {
    tokio::time::sleep((at - machine_now()).to_std().unwrap_or_default()).await;
}
