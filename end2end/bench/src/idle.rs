//! What nothing costs: a server, a worker and the three services, with a hundred thousand jobs none of which is due.

use std::time::Duration;

use crate::{
    cpu, crop,
    figures::Sample,
    lab::{Lab, Site},
    lateness,
};

/// How long is looked at it: long enough that each look has one rebuild of the index.
const LOOK: Duration = Duration::from_secs(60);
/// How long everything may settle: a database that was just filled has work of its own.
const SETTLE: Duration = Duration::from_secs(10);

/// Measures it, one look after another at the same processes.
pub(crate) async fn run(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    let site = Site::new(lab).await?;
    lateness::idle_jobs(100_000).sow(&site.pool).await?;
    sqlx::query("VACUUM jobs").execute(&site.pool).await?;
    let server = site.server().await?;
    let worker = site.worker().await?;
    crop::warm_up(&site).await?;
    let mut parties = lab.services()?.to_vec();
    let services = parties.len();
    parties.extend([server.party.clone(), worker.party.clone()]);
    sqlx::query("CHECKPOINT").execute(&site.pool).await?;
    tokio::time::sleep(SETTLE).await;
    let mut samples = Vec::new();
    for _ in 0..runs {
        let before = cpu::seconds(&parties);
        tokio::time::sleep(LOOK).await;
        let after = cpu::seconds(&parties);
        let shares: Vec<f64> =
            after.iter().zip(before).map(|(after, before)| (after - before) / LOOK.as_secs_f64() * 100.0).collect();
        let each: Vec<String> =
            parties.iter().zip(&shares).map(|(party, share)| format!("{} {share:.1}", party.name)).collect();
        println!("    % of a core: {}", each.join(", "));
        let ours = shares.iter().skip(services).sum();
        samples.push(vec![("idle-100k", shares.iter().sum()), ("idle-100k-ours", ours)]);
    }
    worker.stop().await?;
    server.stop().await?;
    site.close().await?;
    Ok(samples)
}
