//! A session that holds a snapshot, such as a dump or a forgotten transaction, while 1,000 jobs are due every second.
//! PostgreSQL keeps every dead row until that session ends, so each fire makes the next one a little slower.
//!
//! Three questions are answered: how late the runs become, how soon an operator learns of the session, and how soon after
//! its end everything is as before.

use anyhow::Context;
use chrono::{DateTime, Duration, Utc};
use milvaion_server::clock::machine_now;
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    harness::{BenchEnv, BenchHarness, BenchProcess},
    job_batch::{self, EVERY_SECOND, JobBatch},
    lateness::sleep_until,
    samples::RunSample,
};

/// Jobs that are due every second.
const RATE: i64 = 1_000;
/// The time that is measured before the session begins, in the end of it, and after it, in seconds.
const WINDOW: i64 = 30;
/// The time after the end of the session by which lateness must be normal again, in seconds.
const RECOVERY: i64 = 60;
/// The words of the warning about the session in the server's log.
const WARNING: &str = "dead rows accumulate";

/// Measures the lateness before, during and after, and the time until the warning.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(once(harness).await?);
    }
    Ok(samples)
}

async fn once(harness: &BenchHarness) -> anyhow::Result<RunSample> {
    let env = BenchEnv::new(harness).await?;
    let server = env.server().await?;
    let worker = env.worker().await?;
    job_batch::warm_up(&env).await?;
    let begin = machine_now() + Duration::seconds(3);
    let jobs = JobBatch {
        count: RATE,
        schedule: EVERY_SECOND,
        first: Some(begin),
        spread: Duration::seconds(1),
        ..JobBatch::default()
    };
    env.notify_due(&jobs.insert(&env.pool).await?).await?;
    let held = begin + Duration::seconds(WINDOW);
    sleep_until(held).await;
    let mut session = PgConnection::connect(env.database_url()).await?;
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs").await?;
    let released = held + Duration::from_std(harness.settings.held)?;
    let warned = warning(&server, released).await.context("no warning about the session")?;
    sleep_until(released).await;
    session.close().await?;
    let recovered = released + Duration::seconds(RECOVERY);
    let end = recovered + Duration::seconds(WINDOW);
    sleep_until(end + Duration::seconds(2)).await;
    job_batch::pause(&env).await?;
    env.wait_until_drained().await?;
    env.verify(worker.stop_and_count_runs().await?).await?;

    let window = Duration::seconds(WINDOW);
    let before = stages(&env, begin, begin + window).await?;
    let during = stages(&env, released - window, released).await?;
    let after = stages(&env, recovered, end).await?;
    println!(
        "    p99 before {:.1} ms, in the end of the session {:.1} ms, after it {:.1} ms",
        before.p99, during.p99, after.p99
    );
    server.stop().await?;
    env.close().await?;
    Ok(vec![
        ("held-open", during.rate),
        ("held-open-p99", during.p99),
        ("held-open-warning", (warned - held).num_milliseconds() as f64 / 1e3),
        ("held-open-after", after.p99 / before.p99.max(0.1)),
    ])
}

/// Occurrences per second, and the 99th percentile of their lateness in milliseconds.
struct Lateness {
    rate: f64,
    p99: f64,
}

/// Reads the occurrences that were due in a window.
async fn stages(env: &BenchEnv, from: DateTime<Utc>, to: DateTime<Utc>) -> anyhow::Result<Lateness> {
    let statement = "SELECT count(*), coalesce(percentile_disc(0.99) WITHIN GROUP \
                            (ORDER BY extract(epoch FROM started_at - scheduled_for)::float8 * 1000), 0) \
                       FROM occurrences WHERE scheduled_for >= $1 AND scheduled_for < $2";
    let (count, p99): (i64, f64) = sqlx::query_as(statement).bind(from).bind(to).fetch_one(&env.pool).await?;
    Ok(Lateness { rate: count as f64 / (to - from).num_seconds() as f64, p99 })
}

/// Waits for the server's warning about the session, at most until an instant. Returns the instant at which it was seen.
async fn warning(server: &BenchProcess, until: DateTime<Utc>) -> Option<DateTime<Utc>> {
    while machine_now() < until {
        if server.log().is_ok_and(|text| text.contains(WARNING)) {
            return Some(machine_now());
        }
        sleep_until(machine_now() + Duration::seconds(1)).await;
    }
    None
}
