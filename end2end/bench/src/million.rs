//! A million jobs: the time that a server needs to start with them, its memory, and the lateness of runs. Lateness is
//! measured for 65 seconds, long enough to contain a rebuild of the schedule index.

use milvaion_server::clock::machine_now;

use crate::{
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, JobBatch, idle_jobs},
    lateness, process_stats,
    samples::RunSample,
};

/// Measures start time, memory and lateness.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    // The jobs are inserted once, and each run gets a copy of that database.
    let origin = BenchEnv::new(harness).await?;
    idle_jobs(harness.settings.jobs).insert(&origin.pool).await?;
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
    env.wait_until("the complete schedule index", async || Ok(env.cache.earliest().await?.1)).await?;
    let memory = process_stats::resident(server.process_group.pid)?;
    let worker = env.worker().await?;
    job_batch::warm_up(env).await?;
    let [_, late] = lateness::starts(env, 1_000, 65, Some("million-lateness-1000")).await?;
    env.verify(worker.stop_and_count_runs().await?).await?;
    server.stop().await?;
    Ok(vec![("million-start", start), ("million-memory", memory), ("million-lateness-1000-p99", late)])
}
