//! Many at once: how fast a crowd of due jobs is dispatched, and how fast a worker gets through one that waits for it.

use chrono::{DateTime, Duration, Utc};
use server::clock::machine_now;

use crate::{
    crop::{self, Crop},
    figures::Sample,
    lab::{Lab, Site},
};

/// Due once, whenever `next_fire_at` says.
const ONCE: &str = r#"{"kind": "once", "at": "2000-01-01T00:00:00Z"}"#;

/// Ten thousand jobs due in the same second, with a worker that runs them meanwhile: until the last is dispatched.
pub(crate) async fn burst(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let site = Site::new(lab).await?;
        let server = site.server().await?;
        let worker = site.worker().await?;
        crop::warm_up(&site).await?;
        let due = crowd(&site, 10_000).await?;
        site.drained().await?;
        site.verify(worker.runs().await?).await?;
        let last = published(&site, due).await?;
        samples.push(vec![("burst-10000", seconds(last - due))]);
        server.stop().await?;
        site.close().await?;
    }
    Ok(samples)
}

/// Twenty thousand occurrences wait in the broker; then a worker starts. From its first start to the last end stored.
pub(crate) async fn drain(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    const COUNT: i64 = 20_000;
    let mut samples = Vec::new();
    for _ in 0..runs {
        let site = Site::new(lab).await?;
        let server = site.server().await?;
        crowd(&site, COUNT).await?;
        let worker = site.worker().await?;
        site.drained().await?;
        site.verify(worker.runs().await?).await?;
        let (first, last): (DateTime<Utc>, DateTime<Utc>) =
            sqlx::query_as("SELECT min(started_at), max(last_heartbeat) FROM occurrences")
                .fetch_one(&site.pool)
                .await?;
        samples.push(vec![("drain", COUNT as f64 / seconds(last - first))]);
        server.stop().await?;
        site.close().await?;
    }
    Ok(samples)
}

/// Defines jobs that are all due in a few seconds, at one instant, and waits until all are with the broker.
async fn crowd(site: &Site, count: i64) -> anyhow::Result<DateTime<Utc>> {
    let at = machine_now() + Duration::seconds(4);
    let due = Crop { count, schedule: ONCE, first: Some(at), spread: Duration::zero() }.sow(&site.pool).await?;
    site.tell(&due).await?;
    site.until("the dispatch of all", async || {
        let sent = "SELECT count(*) FROM occurrences WHERE scheduled_for = $1 AND published_at IS NOT NULL";
        Ok(sqlx::query_scalar::<_, i64>(sent).bind(at).fetch_one(&site.pool).await? == count)
    })
    .await?;
    Ok(at)
}

async fn published(site: &Site, due: DateTime<Utc>) -> anyhow::Result<DateTime<Utc>> {
    let statement = "SELECT max(published_at) FROM occurrences WHERE scheduled_for = $1";
    Ok(sqlx::query_scalar(statement).bind(due).fetch_one(&site.pool).await?)
}

fn seconds(span: Duration) -> f64 {
    span.num_microseconds().unwrap_or_default() as f64 / 1e6
}
