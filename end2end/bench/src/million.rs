//! A million jobs: how long a server needs to begin with them, what memory that takes, and how late runs start among
//! them. For a minute, so that a rebuild of the index falls into it.

use milvaion_server::clock::machine_now;

use crate::{
    figures::RunSample,
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, JobBatch},
    lateness, process_stats,
};

/// Measures them.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    // Defined once and copied for each run.
    let origin = BenchEnv::new(harness).await?;
    lateness::idle_jobs(harness.settings.jobs).insert(&origin.pool).await?;
    sqlx::query("VACUUM jobs").execute(&origin.pool).await?;
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(once(&origin.copy().await?).await?);
    }
    origin.close().await?;
    Ok(samples)
}

async fn once(env: &BenchEnv) -> anyhow::Result<RunSample> {
    let job_batch = JobBatch { first: Some(machine_now()), ..JobBatch::default() };
    job_batch.insert(&env.pool).await?;
    let begun = machine_now();
    let (server, _) = env.launch_server().await?;
    let dispatched: std::cell::Cell<Option<chrono::DateTime<chrono::Utc>>> = std::cell::Cell::default();
    env.wait_until("the first dispatch", async || {
        let statement = "SELECT max(published_at) FROM occurrences";
        dispatched.set(sqlx::query_scalar(statement).fetch_one(&env.pool).await?);
        Ok(dispatched.get().is_some())
    })
    .await?;
    let start = dispatched.get().map_or(0.0, |at| (at - begun).num_milliseconds() as f64 / 1e3);
    env.wait_until("the index", async || Ok(env.cache.earliest().await?.1)).await?;
    let memory = process_stats::resident(server.process_group.pid)?;
    let worker = env.worker().await?;
    job_batch::warm_up(env).await?;
    let [_, late] = lateness::starts(env, 1_000, 65).await?;
    env.verify(worker.stop_and_count_runs().await?).await?;
    server.stop().await?;
    Ok(vec![("million-start", start), ("million-memory", memory), ("million-lateness-1000-p99", late)])
}
