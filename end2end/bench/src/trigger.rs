//! How long it takes from asking for a run to its start. Asked inside the server, where the button's request ends too; a
//! worker of its own process runs it.

use std::time::Duration;

use anyhow::ensure;
use chrono::{DateTime, Utc};
use milvaion_server::clock::machine_now;

use milvaion_test_support::stack;

use crate::{
    figures::{RunSample, percentile},
    harness::{BenchHarness, JOB_TYPE, WAIT_TIMEOUT, WORKER_ID},
};

/// How often is asked, one after another.
const TRIGGER_COUNT: usize = 300;
/// How often the end of a run is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Measures it.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(vec![("trigger-p50", once(harness).await?)]);
    }
    Ok(samples)
}

async fn once(harness: &BenchHarness) -> anyhow::Result<f64> {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = harness.worker(&config.broker.prefix, &config.cache.key_prefix).await?;
    let mut form = stack::form("Asked for");
    (form.target, form.input_json) = (format!("{WORKER_ID}/{JOB_TYPE}"), "{}".to_owned());
    let id = server.jobs.save(&stack::admin(), &form).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let mut waits = Vec::new();
    // The first ones declare the queue and open connections; they do not count.
    for number in 0..TRIGGER_COUNT + 20 {
        let asked = machine_now();
        let occurrence = server.jobs.run_now(&stack::admin(), id, Default::default()).await;
        let occurrence = occurrence.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let started = started(&server, occurrence).await?;
        if number >= 20 {
            waits.push((started - asked).num_microseconds().unwrap_or_default() as f64 / 1_000.0);
        }
    }
    let runs = worker.stop_and_count_runs().await?;
    ensure!(runs == (TRIGGER_COUNT + 20) as i64, "{} runs were asked for, {runs} started", TRIGGER_COUNT + 20);
    server.stop().await;
    Ok(percentile(&mut waits, 0.5))
}

/// When it started, once it has ended: the next one is to meet an idle worker.
async fn started(
    server: &milvaion_server::lifecycle::Server,
    id: milvaion_protocol::id::OccurrenceId,
) -> anyhow::Result<DateTime<Utc>> {
    let begun = tokio::time::Instant::now();
    loop {
        if let Some(view) = server.store.occurrence(id, 1, machine_now()).await?
            && view.row.status.is_final()
            && let Some(at) = view.row.started_at
        {
            return Ok(at);
        }
        ensure!(begun.elapsed() < WAIT_TIMEOUT, "a run that was asked for did not end");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
