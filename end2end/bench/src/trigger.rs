//! The time from the request for a manual run to its start. The request is a call inside the server, the same one that
//! the button of the dashboard ends in. A worker in its own process runs the occurrence.

use std::time::Duration;

use anyhow::ensure;
use chrono::{DateTime, Utc};
use milvaion_server::clock::machine_now;
use milvaion_test_support::{jobs, server_env};

use crate::{
    harness::{BenchHarness, JOB_TYPE, WAIT_TIMEOUT, WORKER_ID},
    raw,
    samples::{RawValue, RunSample, p50_and_p99},
};

/// Requests per run, one after another.
const TRIGGER_COUNT: usize = 300;
/// The interval between two checks for the end of a run.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Measures the median, in milliseconds.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(vec![("trigger-p50", once(harness).await?)]);
    }
    Ok(samples)
}

async fn once(harness: &BenchHarness) -> anyhow::Result<f64> {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let worker = harness.worker(&config.broker.prefix, &config.cache.key_prefix, 0).await?;
    let mut form = jobs::form("Manual run");
    (form.target, form.input_json) = (format!("{WORKER_ID}/{JOB_TYPE}"), "{}".to_owned());
    let id = server.jobs.save(&jobs::admin(), &form).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let mut waits: Vec<RawValue> = Vec::new();
    // The first requests do not count: they declare the queue and open connections.
    for number in 0..TRIGGER_COUNT + 20 {
        let requested = machine_now();
        let occurrence = server.jobs.run_now(&jobs::admin(), id, Default::default()).await;
        let occurrence = occurrence.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let started = started(&server, occurrence).await?;
        if number >= 20 {
            waits.push((requested, (started - requested).num_microseconds().unwrap_or_default() as f64 / 1_000.0));
        }
    }
    let runs = worker.stop_and_count_runs().await?;
    ensure!(runs == (TRIGGER_COUNT + 20) as i64, "{} runs were requested, {runs} started", TRIGGER_COUNT + 20);
    server.stop().await;
    raw::keep(harness, "trigger", &config.broker.prefix, &waits)?;
    let [p50, _] = p50_and_p99(&waits);
    Ok(p50)
}

/// Waits until the run has ended, so that the next one meets an idle worker, and returns its start.
async fn started(
    server: &milvaion_server::lifecycle::Server,
    id: milvaion_protocol::id::OccurrenceId,
) -> anyhow::Result<DateTime<Utc>> {
    let begun = tokio::time::Instant::now();
    loop {
        // The first check waits too: it would compete with the start for the processor.
        tokio::time::sleep(POLL_INTERVAL).await;
        if let Some(view) = server.store.occurrence(id, 1, machine_now()).await?
            && view.row.status.is_final()
            && let Some(at) = view.row.started_at
        {
            return Ok(at);
        }
        ensure!(begun.elapsed() < WAIT_TIMEOUT, "manual run {id} did not end within {} s", WAIT_TIMEOUT.as_secs());
    }
}
