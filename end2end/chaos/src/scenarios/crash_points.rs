//! Crash points: instants between two steps that belong together, at which a program ends itself.
//!
//! A kill from outside hits such an instant once in thousands of attempts. Crash points are compiled in, so each is hit
//! for certain: the program is started with one of them armed, dies at its third visit, and is started again.

use serde_json::json;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript};
use crate::{cluster::ChaosCluster, harness::ServiceHarness};

/// The crash points of the server.
const SERVER_POINTS: &[&str] = &[
    "dispatch.before_commit",
    "dispatch.after_commit",
    "publisher.before_send",
    "publisher.after_send",
    "publisher.after_confirm",
    "publisher.after_mark",
    "due_index.mid_rebuild",
    "lease.before_epoch",
    "lease.after_epoch",
    "status.before_commit",
    "status.after_commit",
    "logs.before_commit",
    "logs.after_commit",
    "lost_runs.before_commit",
    "lost_runs.after_commit",
    "dead_letters.after_store",
    "enqueue.before_commit",
    "enqueue.after_commit",
    "claims.before_reply",
];
/// The crash points of the worker.
const WORKER_POINTS: &[&str] = &[
    "delivery.before_claim",
    "delivery.after_claim",
    "delivery.before_ack",
    "delivery.after_ack",
    "executor.before_report",
    "reporter.before_send",
    "outbox.after_write",
    "reporter.after_send",
    "reporter.after_confirm",
    "shutdown.before_flush",
];
/// The time a program has to reach its crash point, in seconds. Some points are not reached in every run.
const POINT_REACHED_TIMEOUT_SECONDS: f64 = 6.0;

pub(super) const CRASH_POINTS: Scenario = Scenario {
    id: "crash_points",
    title: "A program dies at a crash point (count: number of points)",
    smoke: None,
    short: 0,
    long: (SERVER_POINTS.len() + WORKER_POINTS.len()) as u32,
    run: |harness, config| Box::pin(sweep(harness, config)),
};

async fn sweep(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 25_000, "recovery_ms": 20_000});
    let mut script = ScenarioScript::new("crash_points", limits);
    // Two of the points are in the reception of new occurrences.
    script.enqueues = true;
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let points = SERVER_POINTS
                    .iter()
                    .map(|point| (*point, true))
                    .chain(WORKER_POINTS.iter().map(|point| (*point, false)));
                for (point, is_server) in points.take(config.count as usize) {
                    let died = dies_at(cluster, point, is_server).await?;
                    *measurements.figures.entry(if died { "points_hit" } else { "points_not_reached" }).or_default() +=
                        1.0;
                }
                Ok(())
            },
        )
        .await
}

/// Starts a program with a crash point armed, waits until it dies there, and starts it again. Returns true if it died.
async fn dies_at(cluster: &mut ChaosCluster<'_>, point: &str, is_server: bool) -> anyhow::Result<bool> {
    // These points are visited only once: by a process, or by each leadership.
    let skipped_visits = if matches!(
        point,
        "due_index.mid_rebuild" | "lease.before_epoch" | "lease.after_epoch" | "shutdown.before_flush"
    ) {
        0
    } else {
        2
    };
    let arm =
        if skipped_visits == 0 { format!("{point}=return") } else { format!("{point}={skipped_visits}*off->return") };
    let number = if is_server { cluster.wait_for_leader().await? } else { 0 };
    let processes = if is_server { &mut cluster.servers } else { &mut cluster.workers };
    let name = processes[number].name().to_owned();
    let arming = cluster.evidence.begin_fault("terminate", name.as_str(), format!("to be armed with {point}"));
    processes[number].terminate().await?;
    if is_server {
        // The armed server must lead, so the other one stops too, and starts second.
        let other = 1 - number;
        let waiting = cluster.evidence.begin_fault("terminate", processes[other].name(), "so that the other one leads");
        processes[other].terminate().await?;
        processes[number].start_armed(&arm).await?;
        cluster.evidence.end_fault(arming);
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        processes[other].start().await?;
        cluster.evidence.end_fault(waiting);
    } else {
        processes[number].start_armed(&arm).await?;
        cluster.evidence.end_fault(arming);
    }
    let begun = tokio::time::Instant::now();
    while !processes[number].has_ended() && begun.elapsed().as_secs_f64() < POINT_REACHED_TIMEOUT_SECONDS {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let fault = cluster.evidence.begin_fault("crash-point", name.as_str(), point);
    let died = if processes[number].has_ended() {
        processes[number].ended().await?;
        true
    } else {
        // Stopped, so that it does not die later without a record. Some points are visited during a graceful stop.
        !processes[number].terminate().await?.0.success()
    };
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    processes[number].start().await?;
    cluster.evidence.end_fault(fault);
    if is_server {
        // The next armed server dies during its first work. Without a pause, the backlog would grow with each point.
        cluster.wait_for_leader().await?;
        cluster.wait_until_current().await?;
    }
    cluster.run_for(2.0).await;
    Ok(died)
}
