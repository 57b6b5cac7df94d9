//! Faults of the servers: the leader is killed or frozen. Also the scenario without any fault.

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, random_seconds};
use crate::{cluster::ChaosCluster, evidence::now, harness::ServiceHarness};

/// The duration of a lease in seconds, as in `background::lease` of the server.
pub(super) const LEASE_SECONDS: f64 = 10.0;
/// The longest time in seconds between the death of the leader and the next dispatch.
pub(super) const LONGEST_TAKE_OVER_SECONDS: f64 = LEASE_SECONDS + 2.0;

pub(super) const NO_FAULT: Scenario = Scenario {
    id: "no_fault",
    title: "No fault (count: periods of 10 s)",
    smoke: None,
    short: 0,
    long: 12,
    run: |harness, config| Box::pin(nothing(harness, config)),
};

async fn nothing(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let script = ScenarioScript::new("no_fault", json!({"slo_ms": 1_000}));
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                cluster.run_for(f64::from(config.count) * 10.0).await;
                measurements.bounds.push(("/lateness/before/p99_ms", 500.0));
                Ok(())
            },
        )
        .await
}

pub(super) const LEADER_KILLED: Scenario = Scenario {
    id: "leader_killed",
    title: "The leading server is killed and started again later",
    smoke: None,
    short: 1,
    long: 8,
    run: |harness, config| Box::pin(killed(harness, config)),
};

/// Returns the checker's limits while a server is killed.
pub(super) fn kill_limits() -> Value {
    json!({"allowance_ms": 15_000, "dispatch_allowance_ms": 13_000, "recovery_ms": 10_000})
}

async fn killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    ScenarioScript::new("leader_killed", kill_limits())
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    let outage_seconds = random_seconds(&mut cluster.random, 1.0, config.either(4.0, 20.0));
                    kill_leader(cluster, measurements, outage_seconds).await?;
                    let pause_seconds = random_seconds(&mut cluster.random, 2.0, config.either(4.0, 8.0));
                    cluster.run_for(pause_seconds).await;
                }
                Ok(())
            },
        )
        .await
}

/// Kills the leading server. Starts it again when the other one dispatches, but not before `outage_seconds`.
pub(super) async fn kill_leader(
    cluster: &mut ChaosCluster<'_>,
    measurements: &mut ScenarioMeasurements,
    outage_seconds: f64,
) -> anyhow::Result<()> {
    let leader = cluster.wait_for_leader().await?;
    let fault = cluster.evidence.begin_fault("kill", cluster.servers[leader].name(), "SIGKILL");
    let at = now();
    cluster.servers[leader].kill().await?;
    let next = cluster.next_dispatch(at).await?;
    measurements.at_most("next_dispatch_s", next, LONGEST_TAKE_OVER_SECONDS);
    cluster.run_for((outage_seconds - next).max(0.0)).await;
    cluster.servers[leader].start().await?;
    cluster.evidence.end_fault(fault);
    Ok(())
}

pub(super) const LEADER_FROZEN: Scenario = Scenario {
    id: "leader_frozen",
    title: "The leading server is frozen for longer than its lease, also before a write, and resumed",
    smoke: None,
    short: 1,
    long: 5,
    run: |harness, config| Box::pin(frozen(harness, config)),
};

async fn frozen(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 30_000, "dispatch_allowance_ms": 28_000, "orphan_ms": null});
    ScenarioScript::new("leader_frozen", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    if round % 2 == 0 {
                        freeze_both_leaders(cluster, measurements).await?;
                    } else {
                        freeze_leader(
                            cluster,
                            config,
                            measurements,
                            ["", "dispatch.after_commit", "publisher.after_send"][(round / 2 % 3) as usize],
                        )
                        .await?;
                    }
                    cluster.run_for(3.0).await;
                }
                Ok(())
            },
        )
        .await
}

/// Freezes the leader before it sends its next statement. The second server takes the lease and is frozen too, before
/// it has done anything. Then the first one resumes: its statement carries an old epoch and must not change a row.
async fn freeze_both_leaders(
    cluster: &mut ChaosCluster<'_>,
    measurements: &mut ScenarioMeasurements,
) -> anyhow::Result<()> {
    let (first, second) = (0, 1);
    let arming = cluster.evidence.begin_fault(
        "terminate",
        cluster.servers[first].name(),
        "to be armed with dispatch.before_commit",
    );
    let waiting =
        cluster.evidence.begin_fault("terminate", cluster.servers[second].name(), "to be armed with lease.after_epoch");
    cluster.servers[second].terminate().await?;
    cluster.servers[first].terminate().await?;
    cluster.servers[first].start_armed("dispatch.before_commit=5*off->1*return(stop)").await?;
    cluster.wait_until("a frozen leader", async |cluster| Ok(cluster.servers[first].is_frozen())).await?;
    cluster.evidence.end_fault(arming);
    let frozen = cluster.evidence.begin_fault("freeze", cluster.servers[first].name(), "at dispatch.before_commit");
    cluster.servers[second].start_armed("lease.after_epoch=1*return(stop)").await?;
    cluster.wait_until("a frozen successor", async |cluster| Ok(cluster.servers[second].is_frozen())).await?;
    cluster.evidence.end_fault(waiting);
    let frozen_too = cluster.evidence.begin_fault("freeze", cluster.servers[second].name(), "at lease.after_epoch");
    let before = cluster.scheduled_occurrences().await?;
    cluster.servers[first].thaw()?;
    cluster.evidence.end_fault(frozen);
    cluster.run_for(3.0).await;
    measurements.at_most("stale_writes", (cluster.scheduled_occurrences().await? - before) as f64, 0.0);
    cluster.servers[second].thaw()?;
    cluster.evidence.end_fault(frozen_too);
    cluster.wait_until_current().await
}

/// Freezes the leader for longer than its lease, at any moment or at a crash point, and resumes it when another server
/// leads. `point` is empty for any moment.
async fn freeze_leader(
    cluster: &mut ChaosCluster<'_>,
    config: &ScenarioConfig,
    measurements: &mut ScenarioMeasurements,
    point: &str,
) -> anyhow::Result<()> {
    let leader = cluster.wait_for_leader().await?;
    if point.is_empty() {
        cluster.servers[leader].freeze()?;
    } else {
        let other = 1 - leader;
        let arming = cluster.evidence.begin_fault(
            "terminate",
            cluster.servers[leader].name(),
            format!("to be armed with {point}"),
        );
        let waiting = cluster.evidence.begin_fault("terminate", cluster.servers[other].name(), "to start second");
        cluster.servers[other].terminate().await?;
        cluster.servers[leader].terminate().await?;
        cluster.servers[leader].start_armed(&format!("{point}=20*off->1*return(stop)")).await?;
        cluster.wait_until("a frozen leader", async |cluster| Ok(cluster.servers[leader].is_frozen())).await?;
        cluster.evidence.end_fault(arming);
        cluster.servers[other].start().await?;
        cluster.evidence.end_fault(waiting);
    }
    let fault = cluster.evidence.begin_fault("freeze", cluster.servers[leader].name(), format!("SIGSTOP {point}"));
    let at = now();
    let next = cluster.next_dispatch(at).await?;
    // PostgreSQL ends the frozen server's open transaction after five seconds.
    measurements.at_most("next_dispatch_s", next, LEASE_SECONDS + 2.0 + 5.0);
    let freeze_seconds =
        random_seconds(&mut cluster.random, 1.5 * LEASE_SECONDS, config.either(1.6, 3.0) * LEASE_SECONDS);
    cluster.run_for((freeze_seconds - next).max(0.0)).await;
    cluster.servers[leader].thaw()?;
    cluster.evidence.end_fault(fault);
    Ok(())
}

impl ChaosCluster<'_> {
    /// Returns the number of occurrences that a schedule has created.
    async fn scheduled_occurrences(&self) -> anyhow::Result<i64> {
        let scheduled = "SELECT count(*) FROM occurrences WHERE trigger = 'schedule'";
        Ok(sqlx::query_scalar(scheduled).fetch_one(&self.pool).await?)
    }

    /// Waits for the next scheduled occurrence after an instant. Returns the seconds between the two.
    pub(super) async fn next_dispatch(&self, at: i64) -> anyhow::Result<f64> {
        // A dispatch in progress at that instant may still be committed.
        let after = DateTime::<Utc>::from_timestamp_micros(at + 50_000).context("the instant is out of range")?;
        let next = "SELECT min(created_at) FROM occurrences WHERE created_at > $1 AND trigger = 'schedule'";
        let found = std::cell::Cell::new(None);
        self.wait_until("the next dispatch", async |cluster| {
            let first: Option<DateTime<Utc>> = sqlx::query_scalar(next).bind(after).fetch_one(&cluster.pool).await?;
            found.set(first);
            Ok(first.is_some())
        })
        .await?;
        let next = found.get().context("the wait ended without a dispatch")?;
        Ok((next.timestamp_micros() - at) as f64 / 1e6)
    }
}
