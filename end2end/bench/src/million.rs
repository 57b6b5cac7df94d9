//! A million jobs: how long a server needs to begin with them, what memory that takes, and how late runs start among
//! them. For a minute, so that a rebuild of the index falls into it.

use milvaion_server::clock::machine_now;

use crate::{
    cpu,
    crop::{self, Crop},
    figures::Sample,
    lab::{Lab, Site},
    lateness,
};

/// Measures them.
pub(crate) async fn run(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    // Defined once and copied for each run.
    let origin = Site::new(lab).await?;
    lateness::idle_jobs(lab.settings.jobs).sow(&origin.pool).await?;
    sqlx::query("VACUUM jobs").execute(&origin.pool).await?;
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(once(&origin.copy().await?).await?);
    }
    origin.close().await?;
    Ok(samples)
}

async fn once(site: &Site) -> anyhow::Result<Sample> {
    let crop = Crop { first: Some(machine_now()), ..Crop::default() };
    crop.sow(&site.pool).await?;
    let begun = machine_now();
    let (server, _) = site.launch_server().await?;
    let dispatched: std::cell::Cell<Option<chrono::DateTime<chrono::Utc>>> = std::cell::Cell::default();
    site.until("the first dispatch", async || {
        let statement = "SELECT max(published_at) FROM occurrences";
        dispatched.set(sqlx::query_scalar(statement).fetch_one(&site.pool).await?);
        Ok(dispatched.get().is_some())
    })
    .await?;
    let start = dispatched.get().map_or(0.0, |at| (at - begun).num_milliseconds() as f64 / 1e3);
    site.until("the index", async || Ok(site.cache.earliest().await?.1)).await?;
    let memory = cpu::resident(server.party.pid)?;
    let worker = site.worker().await?;
    crop::warm_up(site).await?;
    let [_, late] = lateness::starts(site, 1_000, 65).await?;
    site.verify(worker.runs().await?).await?;
    server.stop().await?;
    Ok(vec![("million-start", start), ("million-memory", memory), ("million-lateness-1000-p99", late)])
}
