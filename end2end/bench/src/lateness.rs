//! How late a run starts: jobs that are due each second, spread evenly over it. The first line of the run, by the
//! worker's clock, minus the due instant; both on one machine.

use chrono::{DateTime, Duration, Utc};
use milvaion_server::clock::machine_now;

use crate::{
    crop::{self, Crop, EACH_MONTH, EACH_SECOND},
    figures::Sample,
    lab::{Lab, Site},
};

/// How long starts are measured.
const SECONDS: i64 = 30;

/// A hundred a second.
pub(crate) async fn hundred(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let [p50, p99] = among(lab, 100, 0).await?;
        samples.push(vec![("lateness-100-p50", p50), ("lateness-100-p99", p99)]);
    }
    Ok(samples)
}

/// A thousand a second, among a hundred thousand.
pub(crate) async fn thousand(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let [p50, p99] = among(lab, 1_000, 100_000).await?;
        samples.push(vec![("lateness-1000-p50", p50), ("lateness-1000-p99", p99)]);
    }
    Ok(samples)
}

async fn among(lab: &Lab, rate: i64, others: i64) -> anyhow::Result<[f64; 2]> {
    let site = Site::new(lab).await?;
    idle_jobs(others).sow(&site.pool).await?;
    let server = site.server().await?;
    let worker = site.worker().await?;
    crop::warm_up(&site).await?;
    let found = starts(&site, rate, SECONDS).await?;
    site.verify(worker.runs().await?).await?;
    server.stop().await?;
    site.close().await?;
    Ok(found)
}

/// Jobs that are defined, but not due for a day.
pub(crate) fn idle_jobs(count: i64) -> Crop {
    let first = Some(machine_now() + Duration::days(1));
    Crop { count, schedule: EACH_MONTH, first, spread: Duration::days(29), ..Crop::default() }
}

/// Makes `rate` jobs due each second for so long, then pauses them, and tells the median and the 99th percentile of how
/// late they started, in milliseconds.
pub(crate) async fn starts(site: &Site, rate: i64, seconds: i64) -> anyhow::Result<[f64; 2]> {
    let begin = machine_now() + Duration::seconds(3);
    let due = Crop {
        count: rate,
        schedule: EACH_SECOND,
        first: Some(begin),
        spread: Duration::seconds(1),
        ..Crop::default()
    };
    let due = due.sow(&site.pool).await?;
    site.tell(&due).await?;
    let end = begin + Duration::seconds(seconds);
    sleep_until(end + Duration::seconds(1)).await;
    crop::pause(site).await?;
    site.drained().await?;
    let statement = "SELECT count(*), coalesce(percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP \
                            (ORDER BY extract(epoch FROM started_at - scheduled_for)::float8 * 1000), '{0, 0}') \
                       FROM occurrences WHERE scheduled_for >= $1 AND scheduled_for < $2";
    let (count, late): (i64, Vec<f64>) = sqlx::query_as(statement).bind(begin).bind(end).fetch_one(&site.pool).await?;
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
