//! Faults of PostgreSQL: it is killed.

use milvaion_test_support::private_service::ServiceKind;
use serde_json::json;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, random_seconds};
use crate::{cluster::ChaosCluster, evidence::now, harness::ServiceHarness};

pub(super) const POSTGRES_KILLED: Scenario = Scenario {
    id: "postgres_killed",
    title: "PostgreSQL is killed with all its child processes, and recovers",
    short: 1,
    long: 8,
    run: |harness, config| Box::pin(killed(harness, config)),
};

async fn killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 30_000, "dispatch_allowance_ms": 25_000});
    ScenarioScript::new("postgres_killed", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    let outage_seconds = random_seconds(&mut cluster.random, 0.0, config.either(1.0, 6.0));
                    cluster.crash(ServiceKind::Postgres, outage_seconds).await?;
                    let next = cluster.next_dispatch(now()).await?;
                    measurements.at_most("next_dispatch_s", next, 8.0);
                    let pause_seconds = random_seconds(&mut cluster.random, 3.0, config.either(4.0, 8.0));
                    cluster.run_for(pause_seconds).await;
                }
                Ok(())
            },
        )
        .await
}
