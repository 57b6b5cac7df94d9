//! PostgreSQL, killed.

use serde_json::json;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, pause};
use crate::{cluster::ChaosCluster, evidence::now, harness::ServiceHarness, private_service::ServiceKind};

pub(super) const POSTGRES_KILLED: Scenario = Scenario {
    id: "postgres_killed",
    title: "PostgreSQL is killed with all its children, and recovers",
    short: 1,
    long: 8,
    play: |harness, config| Box::pin(killed(harness, config)),
};

async fn killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let judge = json!({"allowance_ms": 30_000, "dispatch_allowance_ms": 25_000});
    ScenarioScript::new("postgres_killed", judge)
        .play(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    let away = pause(&mut cluster.random, 0.0, config.either(1.0, 6.0));
                    cluster.crash(ServiceKind::Postgres, away).await?;
                    let next = cluster.next_dispatch(now()).await?;
                    measurements.at_most("next_dispatch_s", next, 8.0);
                    let breath = pause(&mut cluster.random, 3.0, config.either(4.0, 8.0));
                    cluster.run_for(breath).await;
                }
                Ok(())
            },
        )
        .await
}
