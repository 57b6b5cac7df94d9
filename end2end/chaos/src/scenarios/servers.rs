//! Servers that die, freeze, or are simply left in peace.

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde_json::json;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, pause};
use crate::{cluster::ChaosCluster, evidence::now, harness::ServiceHarness};

/// How long a lease lasts, in seconds: `background::lease` of the server.
const LEASE_SECONDS: f64 = 10.0;

pub(super) const NO_FAULT: Scenario = Scenario {
    id: "no_fault",
    title: "Nothing happens (count: times 10 s)",
    short: 0,
    long: 12,
    play: |harness, config| Box::pin(nothing(harness, config)),
};

async fn nothing(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let script = ScenarioScript::new("no_fault", json!({"slo_ms": 1_000}));
    script
        .play(
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
    short: 1,
    long: 8,
    play: |harness, config| Box::pin(killed(harness, config)),
};

async fn killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let judge = json!({"allowance_ms": 15_000, "dispatch_allowance_ms": 13_000});
    ScenarioScript::new("leader_killed", judge)
        .play(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    let leader = cluster.wait_for_leader().await?;
                    let fault = cluster.evidence.begin_fault("kill", cluster.servers[leader].name(), "SIGKILL");
                    let at = now();
                    cluster.servers[leader].kill().await?;
                    let longest = config.either(4.0, 20.0);
                    let away = pause(&mut cluster.random, 1.0, longest);
                    let next = cluster.next_dispatch(at).await?;
                    measurements.at_most("next_dispatch_s", next, LEASE_SECONDS + 2.0);
                    cluster.run_for((away - next).max(0.0)).await;
                    cluster.servers[leader].start().await?;
                    cluster.evidence.end_fault(fault);
                    let breath = pause(&mut cluster.random, 2.0, config.either(4.0, 8.0));
                    cluster.run_for(breath).await;
                }
                Ok(())
            },
        )
        .await
}

pub(super) const LEADER_FROZEN: Scenario = Scenario {
    id: "leader_frozen",
    title: "The leading server is frozen for longer than its lease, also with a write in hand, and thawed",
    short: 1,
    long: 5,
    play: |harness, config| Box::pin(frozen(harness, config)),
};

async fn frozen(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let judge = json!({"allowance_ms": 30_000, "dispatch_allowance_ms": 28_000, "orphan_ms": null});
    ScenarioScript::new("leader_frozen", judge)
        .play(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    if round % 2 == 0 {
                        stale(cluster, measurements).await?;
                    } else {
                        paused(
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

/// The leader freezes with its next statement in hand; a second one takes over and freezes, too, before it has done
/// anything. Now the first one wakes up: what it holds in hand must count for nothing.
async fn stale(cluster: &mut ChaosCluster<'_>, measurements: &mut ScenarioMeasurements) -> anyhow::Result<()> {
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
    let before = cluster.fired().await?;
    cluster.servers[first].thaw()?;
    cluster.evidence.end_fault(frozen);
    cluster.run_for(3.0).await;
    measurements.at_most("stale_writes", (cluster.fired().await? - before) as f64, 0.0);
    cluster.servers[second].thaw()?;
    cluster.evidence.end_fault(frozen_too);
    cluster.wait_until_current().await
}

/// The leader freezes anywhere, or at a point, for longer than its lease, and wakes up when another leads.
async fn paused(
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
        let waiting = cluster.evidence.begin_fault("terminate", cluster.servers[other].name(), "to come second");
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
    // A transaction that stands open with it is ended by PostgreSQL after five seconds.
    measurements.at_most("next_dispatch_s", next, LEASE_SECONDS + 2.0 + 5.0);
    let away = pause(&mut cluster.random, 1.5 * LEASE_SECONDS, config.either(1.6, 3.0) * LEASE_SECONDS);
    cluster.run_for((away - next).max(0.0)).await;
    cluster.servers[leader].thaw()?;
    cluster.evidence.end_fault(fault);
    Ok(())
}

impl ChaosCluster<'_> {
    /// How many due instants have been fired.
    async fn fired(&self) -> anyhow::Result<i64> {
        let fired = "SELECT count(*) FROM occurrences WHERE trigger = 'schedule'";
        Ok(sqlx::query_scalar(fired).fetch_one(&self.pool).await?)
    }

    /// How many seconds after an instant the next occurrence was made. Waits for it.
    pub(super) async fn next_dispatch(&self, at: i64) -> anyhow::Result<f64> {
        // What was under way at that moment may still have come through.
        let after = DateTime::<Utc>::from_timestamp_micros(at + 50_000).context("an instant")?;
        let next = "SELECT min(created_at) FROM occurrences WHERE created_at > $1 AND trigger = 'schedule'";
        let found = std::cell::Cell::new(None);
        self.wait_until("the next dispatch", async |cluster| {
            let first: Option<DateTime<Utc>> = sqlx::query_scalar(next).bind(after).fetch_one(&cluster.pool).await?;
            found.set(first);
            Ok(first.is_some())
        })
        .await?;
        let next = found.get().context("it was found")?;
        Ok((next.timestamp_micros() - at) as f64 / 1e6)
    }
}
