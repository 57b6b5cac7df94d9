//! What nothing costs: a server, a worker and the three services, with a hundred thousand jobs none of which is due.

use std::time::Duration;

use crate::{
    figures::RunSample,
    harness::{BenchEnv, BenchHarness},
    job_batch, lateness, process_stats,
};

/// How long is looked at it: long enough that each look has one rebuild of the index.
const IDLE_WINDOW: Duration = Duration::from_secs(60);
/// How long everything may settle: a database that was just filled has work of its own.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// Measures it, one look after another at the same processes.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let env = BenchEnv::new(harness).await?;
    lateness::idle_jobs(100_000).insert(&env.pool).await?;
    sqlx::query("VACUUM jobs").execute(&env.pool).await?;
    let server = env.server().await?;
    let worker = env.worker().await?;
    job_batch::warm_up(&env).await?;
    let mut process_groups = harness.services()?.to_vec();
    let services = process_groups.len();
    process_groups.extend([server.process_group.clone(), worker.process_group.clone()]);
    sqlx::query("CHECKPOINT").execute(&env.pool).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let mut samples = Vec::new();
    for _ in 0..runs {
        let before = process_stats::seconds(&process_groups);
        tokio::time::sleep(IDLE_WINDOW).await;
        let after = process_stats::seconds(&process_groups);
        let shares: Vec<f64> = after
            .iter()
            .zip(before)
            .map(|(after, before)| (after - before) / IDLE_WINDOW.as_secs_f64() * 100.0)
            .collect();
        let each: Vec<String> = process_groups
            .iter()
            .zip(&shares)
            .map(|(process_group, share)| format!("{} {share:.1}", process_group.name))
            .collect();
        println!("    % of a core: {}", each.join(", "));
        let ours = shares.iter().skip(services).sum();
        samples.push(vec![("idle-100k", shares.iter().sum()), ("idle-100k-ours", ours)]);
    }
    worker.stop().await?;
    server.stop().await?;
    env.close().await?;
    Ok(samples)
}
