//! The lateness of runs: the time from the due time of an occurrence to the first line of its run. Jobs are due every
//! second, and their due times are spread evenly over it. The worker reads the start from its own clock, which is the
//! server's clock too, because both are on one machine.

use std::collections::HashSet;

use anyhow::ensure;
use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::id::JobId;
use milvaion_server::clock::machine_now;
use uuid::Uuid;

use crate::{
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, EVERY_SECOND, JobBatch, idle_jobs},
    raw,
    samples::{RawValue, RunSample, p50_and_p99},
};

/// The period whose due times count.
const MEASURED_SECONDS: i64 = 30;

/// Measures 100 runs a second.
pub(crate) async fn hundred(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let [p50, p99] = measure(harness, 100, 0, "lateness-100").await?;
        samples.push(vec![("lateness-100-p50", p50), ("lateness-100-p99", p99)]);
    }
    Ok(samples)
}

/// Measures 1,000 runs a second, with 100,000 other jobs defined.
pub(crate) async fn thousand(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let [p50, p99] = measure(harness, 1_000, 100_000, "lateness-1000").await?;
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
        starts(&env, 1_000, MEASURED_SECONDS, None).await?;
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

/// Measures `rate` runs a second on a new environment with `others` other jobs. `figure` is its name.
async fn measure(harness: &BenchHarness, rate: i64, others: i64, figure: &str) -> anyhow::Result<[f64; 2]> {
    let env = BenchEnv::new(harness).await?;
    idle_jobs(others).insert(&env.pool).await?;
    let server = env.server().await?;
    let worker = env.worker().await?;
    job_batch::warm_up(&env).await?;
    let found = starts(&env, rate, MEASURED_SECONDS, Some(figure)).await?;
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
/// of their lateness in milliseconds, and keeps all values if a `figure` is given.
pub(crate) async fn starts(env: &BenchEnv, rate: i64, seconds: i64, figure: Option<&str>) -> anyhow::Result<[f64; 2]> {
    let DuePeriod { begin, end, .. } = make_due(env, rate, seconds).await?;
    env.wait_until_drained().await?;
    read(env, begin, end, rate * seconds, figure).await
}

/// Returns the median and the 99th percentile of the lateness of the scheduled occurrences that were due in a period,
/// in milliseconds, and keeps all values if a `figure` is given.
///
/// # Errors
/// Returns an error if one of the `due` due times has not exactly one completed occurrence. Otherwise the due times
/// that were missed, which would have been the latest, would improve the figure.
pub(crate) async fn read(
    env: &BenchEnv,
    begin: DateTime<Utc>,
    end: DateTime<Utc>,
    due: i64,
    figure: Option<&str>,
) -> anyhow::Result<[f64; 2]> {
    let statement = "SELECT job_id, scheduled_for, status = 'completed', \
                            coalesce(extract(epoch FROM started_at - scheduled_for)::float8 * 1000, 0) \
                       FROM occurrences WHERE scheduled_for >= $1 AND scheduled_for < $2 AND trigger = 'schedule' \
                      ORDER BY scheduled_for";
    let found: Vec<(Uuid, DateTime<Utc>, bool, f64)> =
        sqlx::query_as(statement).bind(begin).bind(end).fetch_all(&env.pool).await?;
    check_due_times(found.iter().map(|(job, at, is_completed, _)| (*job, *at, *is_completed)), due)?;
    let late: Vec<RawValue> = found.iter().map(|(_, at, _, late)| (*at, *late)).collect();
    if let Some(figure) = figure {
        raw::keep(&env.harness, figure, &env.prefix, &late)?;
    }
    Ok(p50_and_p99(&late))
}

/// Checks that there are so many due times, each with exactly one occurrence, and that it completed.
fn check_due_times(found: impl Iterator<Item = (Uuid, DateTime<Utc>, bool)>, due: i64) -> anyhow::Result<()> {
    let (mut all, mut completed, mut due_times) = (0, 0, HashSet::new());
    for (job, at, is_completed) in found {
        all += 1;
        completed += usize::from(is_completed);
        due_times.insert((job, at));
    }
    ensure!(completed == all, "{} of {all} occurrences did not complete", all - completed);
    ensure!(due_times.len() == all, "{} occurrences have the due time of another one", all - due_times.len());
    ensure!(
        all as i64 == due,
        "{all} of {due} due times have an occurrence; before the others, the next due time of the job had come"
    );
    Ok(())
}

/// Sleeps until an instant.
pub(crate) async fn sleep_until(at: DateTime<Utc>) {
    tokio::time::sleep((at - machine_now()).to_std().unwrap_or_default()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_due_time_needs_one_completed_occurrence() {
        let (job, at) = (Uuid::nil(), DateTime::UNIX_EPOCH);
        let later = at + Duration::seconds(1);
        let check = |found: &[(Uuid, DateTime<Utc>, bool)]| {
            check_due_times(found.iter().copied(), 2).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[(job, at, true), (job, later, true)]), Ok(()));
        for (found, reason) in [
            (&[(job, at, true)][..], "1 of 2 due times"),
            (&[(job, at, true), (job, later, false)][..], "1 of 2 occurrences did not complete"),
            (&[(job, at, true), (job, at, true)][..], "1 occurrences have the due time of another"),
        ] {
            assert!(check(found).is_err_and(|text| text.starts_with(reason)), "{reason}");
        }
    }
}
