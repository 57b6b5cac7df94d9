//! How long it takes from asking for a run to its start. Asked inside the server, where the button's request ends too; a
//! worker of its own process runs it.

use std::time::Duration;

use anyhow::ensure;
use chrono::{DateTime, Utc};
use milvaion_server::clock::machine_now;

use milvaion_test_support::stack;

use crate::{
    figures::{Sample, percentile},
    lab::{JOB_TYPE, Lab, PATIENCE, WORKER},
};

/// How often is asked, one after another.
const TIMES: usize = 300;
/// How often the end of a run is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// Measures it.
pub(crate) async fn run(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(vec![("trigger-p50", once(lab).await?)]);
    }
    Ok(samples)
}

async fn once(lab: &Lab) -> anyhow::Result<f64> {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = lab.worker(&config.broker.prefix, &config.cache.key_prefix).await?;
    let mut form = stack::form("Asked for");
    (form.target, form.input_json) = (format!("{WORKER}/{JOB_TYPE}"), "{}".to_owned());
    let id = server.jobs.save(&stack::admin(), &form).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let mut waits = Vec::new();
    // The first ones declare the queue and open connections; they do not count.
    for number in 0..TIMES + 20 {
        let asked = machine_now();
        let occurrence = server.jobs.trigger(&stack::admin(), id, Default::default()).await;
        let occurrence = occurrence.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let started = started(&server, occurrence).await?;
        if number >= 20 {
            waits.push((started - asked).num_microseconds().unwrap_or_default() as f64 / 1_000.0);
        }
    }
    let runs = worker.runs().await?;
    ensure!(runs == (TIMES + 20) as i64, "{} runs were asked for, {runs} started", TIMES + 20);
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
        ensure!(begun.elapsed() < PATIENCE, "a run that was asked for did not end");
        tokio::time::sleep(LOOK).await;
    }
}
