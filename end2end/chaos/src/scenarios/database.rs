//! Faults of PostgreSQL: it is killed, and a session keeps a snapshot for a quarter of an hour.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, ensure};
use milvaion_server::{clock::machine_now, store::Store};
use milvaion_test_support::private_service::ServiceKind;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};
use tokio::{process::Command, time::Instant};

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, random_seconds};
use crate::{cluster::ChaosCluster, evidence::now, harness::ServiceHarness, workload::JobPlan};

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

pub(super) const SNAPSHOT_HELD: Scenario = Scenario {
    id: "snapshot_held",
    title: "A session holds a snapshot while dumps run and partitions are created",
    short: 0,
    long: 1,
    run: |harness, config| Box::pin(held(harness, config)),
};

/// The time for which the snapshot is held.
const HELD: Duration = Duration::from_secs(15 * 60);
/// The time after its end by which everything must be as before, in seconds.
const RECOVERY_SECONDS: f64 = 60.0;
/// The days that are partitioned in each round.
const DAYS_EACH_ROUND: i64 = 8;

async fn held(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let mut script = ScenarioScript::new("snapshot_held", json!({}));
    // Each fire leaves a dead row, which PostgreSQL may not remove.
    script.more_jobs = (0..100).map(|_| JobPlan::every("quick", 1)).collect();
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    hold(cluster, measurements).await?;
                }
                Ok(())
            },
        )
        .await
}

async fn hold(cluster: &mut ChaosCluster<'_>, measurements: &mut ScenarioMeasurements) -> anyhow::Result<()> {
    let mut session = PgConnection::connect(cluster.database_url()).await?;
    let fault = cluster.evidence.begin_fault("snapshot", ServiceKind::Postgres.name(), "held by a session");
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs").await?;
    let (since, store) = (Instant::now(), Store::from_pool(cluster.pool.clone()));
    let mut ahead = chrono::Duration::zero();
    while since.elapsed() < HELD {
        let mut dump = Command::new("pg_dump")
            .arg(format!("--dbname={}", cluster.database_url()))
            .arg("--file=/dev/null")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("pg_dump cannot be started")?;
        ahead += chrono::Duration::days(DAYS_EACH_ROUND);
        let begun = Instant::now();
        store.ensure_partitions(machine_now() + ahead).await?;
        measurements.at_most("partitions_s", begun.elapsed().as_secs_f64(), 4.0);
        let next = cluster.next_dispatch(now()).await?;
        measurements.at_most("next_dispatch_s", next, 3.0);
        ensure!(dump.wait().await?.success(), "pg_dump failed");
        cluster.run_for(10.0).await;
    }
    let warning = "dead rows accumulate";
    let warned = cluster
        .servers
        .iter()
        .any(|server| std::fs::read_to_string(server.log()).is_ok_and(|text| text.contains(warning)));
    ensure!(warned, "no server has warned of the session");
    session.close().await?;
    cluster.evidence.end_fault(fault);
    cluster.run_for(RECOVERY_SECONDS).await;
    let next = cluster.next_dispatch(now()).await?;
    measurements.at_most("next_dispatch_after_s", next, 1.5);
    Ok(())
}
