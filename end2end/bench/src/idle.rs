//! The cost of an idle installation: a server, a worker and the three services, with 100,000 jobs of which none is due.

use std::time::Duration;

use crate::{
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, idle_jobs},
    process_stats,
    samples::RunSample,
};

/// The length of one measurement, long enough that each contains one rebuild of the schedule index.
const IDLE_WINDOW: Duration = Duration::from_secs(60);
/// The time before the first measurement: a database that was just filled still has background work.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// Measures processor time as a share of a core, in every run on the same processes.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let env = BenchEnv::new(harness).await?;
    idle_jobs(100_000).insert(&env.pool).await?;
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
