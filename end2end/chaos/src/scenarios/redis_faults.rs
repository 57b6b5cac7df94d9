//! Faults of Redis: it is flushed, stopped, killed, or loses its data.

use milvaion_test_support::private_service::ServiceKind;
use serde_json::{Value, json};

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, random_seconds};
use crate::{cluster::ChaosCluster, harness::ServiceHarness};

pub(super) const REDIS_FLUSHED: Scenario = Scenario {
    id: "redis_flushed",
    title: "Redis is flushed",
    smoke: None,
    short: 3,
    long: 30,
    run: |harness, config| Box::pin(flushed(harness, config)),
};

/// Returns the checker's limits after a flush.
pub(super) fn flush_limits() -> Value {
    json!({"allowance_ms": 4_500, "dispatch_allowance_ms": 4_500, "recovery_ms": 3_000, "orphan_ms": null})
}

async fn flushed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    ScenarioScript::new("redis_flushed", flush_limits())
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, _: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    cluster.flush_redis().await?;
                    let pause_seconds = random_seconds(&mut cluster.random, 0.5, config.either(3.0, 5.0));
                    cluster.run_for(pause_seconds).await;
                }
                Ok(())
            },
        )
        .await
}

impl ChaosCluster<'_> {
    /// Flushes Redis.
    pub(super) async fn flush_redis(&self) -> anyhow::Result<()> {
        self.evidence.record_fault("flush", "redis", "FLUSHALL");
        self.harness.redis_command(&["FLUSHALL"]).await
    }
}

pub(super) const REDIS_OUTAGE: Scenario = Scenario {
    id: "redis_outage",
    title: "Redis is stopped, killed, or comes back empty",
    smoke: None,
    short: 1,
    long: 5,
    run: |harness, config| Box::pin(stopped(harness, config)),
};

async fn stopped(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 6_000, "dispatch_allowance_ms": 4_500, "orphan_ms": null});
    ScenarioScript::new("redis_outage", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, _: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    let (from, to) = (config.either(8.0, 5.0), config.either(10.0, 40.0));
                    let outage_seconds = random_seconds(&mut cluster.random, from, to);
                    let (kind, is_empty) = [("wipe", true), ("stop", false), ("kill", false)][(round % 3) as usize];
                    let fault = cluster.evidence.begin_fault(kind, "redis", format!("for {outage_seconds:.1} s"));
                    if kind == "stop" {
                        cluster.harness.redis.stop().await;
                    } else {
                        cluster.harness.redis.kill().await?;
                    }
                    cluster.run_for(outage_seconds).await;
                    if is_empty {
                        cluster.harness.redis.wipe()?;
                    }
                    cluster.harness.service(ServiceKind::Redis).start().await?;
                    cluster.evidence.end_fault(fault);
                    cluster.run_for(config.either(3.0, 8.0)).await;
                }
                Ok(())
            },
        )
        .await
}
