//! The lateness of runs: the time from the due time of an occurrence to the first line of its run. Jobs are due every
//! second, and their due times are spread evenly over it. The worker reads the start from its own clock, which is the
//! server's clock too, because both are on one machine.

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::id::JobId;
use milvaion_server::clock::machine_now;

use crate::{
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, EVERY_SECOND, JobBatch, idle_jobs},
    samples::RunSample,
};

/// The period whose due times count.
const MEASURED_SECONDS: i64 = 30;

/// Measures 100 runs a second.
pub(crate) async fn hundred(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let [p50, p99] = measure(harness, 100, 0).await?;
        samples.push(vec![("lateness-100-p50", p50), ("lateness-100-p99", p99)]);
    }
    Ok(samples)
}

/// Measures 1,000 runs a second, with 100,000 other jobs defined.
pub(crate) async fn thousand(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let [p50, p99] = measure(harness, 1_000, 100_000).await?;
        samples.push(vec![("lateness-1000-p50", p50), ("lateness-1000-p99", p99)]);
    }
    Ok(samples)
}

/// Measures twenty singleton loops that run every 100 ms, in a worker that also runs 1,000 jobs a second.
pub(crate) async fn loops(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let env = BenchEnv::new(harness).await?;
        let server = env.server().await?;
        let worker = env.worker_with_loops(20).await?;
        job_batch::warm_up(&env).await?;
        starts(&env, 1_000, MEASURED_SECONDS).await?;
        let line = worker.stop_and_read("loops ").await?;
        server.stop().await?;
        env.close().await?;
        let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [ticks, p50, p99] = numbers[..] else { anyhow::bail!("the worker printed {line:?}") };
        println!("    {ticks} runs of loops");
        samples.push(vec![("loop-lateness-p50", p50), ("loop-lateness-p99", p99)]);
    }
    Ok(samples)
}

/// Measures `rate` runs a second on a new environment with `others` other jobs.
async fn measure(harness: &BenchHarness, rate: i64, others: i64) -> anyhow::Result<[f64; 2]> {
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

/// The jobs that were due every second, from `begin` to `end`.
pub(crate) struct DuePeriod {
    pub(crate) begin: DateTime<Utc>,
    pub(crate) end: DateTime<Utc>,
    pub(crate) jobs: Vec<JobId>,
}

/// Makes `rate` jobs due every second for so many seconds, then pauses them. Their runs may not have ended.
pub(crate) async fn make_due(env: &BenchEnv, rate: i64, seconds: i64) -> anyhow::Result<DuePeriod> {
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
    Ok(DuePeriod { begin, end, jobs: due.into_iter().map(|(id, _)| id).collect() })
}

/// Makes `rate` jobs due every second for so many seconds, then pauses them. Returns the median and the 99th percentile
/// of their lateness in milliseconds.
pub(crate) async fn starts(env: &BenchEnv, rate: i64, seconds: i64) -> anyhow::Result<[f64; 2]> {
    let DuePeriod { begin, end, .. } = make_due(env, rate, seconds).await?;
    env.wait_until_drained().await?;
    read(env, begin, end, rate * seconds).await
}

/// Returns the median and the 99th percentile of the lateness of the scheduled occurrences that were due in a period, in
/// milliseconds. Prints the number of the `due` ones that are missing.
pub(crate) async fn read(
    env: &BenchEnv,
    begin: DateTime<Utc>,
    end: DateTime<Utc>,
    due: i64,
) -> anyhow::Result<[f64; 2]> {
    let statement = "SELECT count(*), coalesce(percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP \
                            (ORDER BY extract(epoch FROM started_at - scheduled_for)::float8 * 1000), '{0, 0}') \
                       FROM occurrences WHERE scheduled_for >= $1 AND scheduled_for < $2 AND trigger = 'schedule'";
    let (count, late): (i64, Vec<f64>) = sqlx::query_as(statement).bind(begin).bind(end).fetch_one(&env.pool).await?;
    if count != due {
        println!(
            "    {} of {due} due times have no occurrence, because the next due time of the same job had come already",
            due - count
        );
    }
    Ok([late.first().copied().unwrap_or_default(), late.get(1).copied().unwrap_or_default()])
}

/// Sleeps until an instant.
pub(crate) async fn sleep_until(at: DateTime<Utc>) {
    tokio::time::sleep((at - machine_now()).to_std().unwrap_or_default()).await;
}
