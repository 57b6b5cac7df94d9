//! Faults of PostgreSQL: it is killed, its connections are lost one by one, a session keeps a snapshot for a quarter of an
//! hour, and rows make a background task fail each time.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, ensure};
use milvaion_server::{clock::machine_now, store::Store};
use milvaion_test_support::private_service::ServiceKind;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};
use tokio::{
    process::Command,
    time::{Instant, timeout},
};

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, random_seconds, servers::LEASE_SECONDS};
use crate::{cluster::ChaosCluster, evidence::now, harness::ServiceHarness, workload::JobPlan};

pub(super) const POSTGRES_KILLED: Scenario = Scenario {
    id: "postgres_killed",
    title: "PostgreSQL is killed with all its child processes, and recovers",
    smoke: None,
    short: 1,
    long: 8,
    run: |harness, config| Box::pin(killed(harness, config)),
};

/// Returns the checker's limits while PostgreSQL is killed.
pub(super) fn kill_limits() -> Value {
    json!({"allowance_ms": 30_000, "dispatch_allowance_ms": 25_000, "recovery_ms": 10_000})
}

async fn killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    ScenarioScript::new("postgres_killed", kill_limits())
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    let outage_seconds = random_seconds(&mut cluster.random, 0.0, config.either(1.0, 6.0));
                    cluster.crash(ServiceKind::Postgres, outage_seconds).await?;
                    await_dispatch(cluster, measurements).await?;
                    let pause_seconds = random_seconds(&mut cluster.random, 3.0, config.either(4.0, 8.0));
                    cluster.run_for(pause_seconds).await;
                }
                Ok(())
            },
        )
        .await
}

/// Waits for the next dispatch after PostgreSQL is back, and judges the time it takes.
pub(super) async fn await_dispatch(
    cluster: &ChaosCluster<'_>,
    measurements: &mut ScenarioMeasurements,
) -> anyhow::Result<()> {
    let next = cluster.next_dispatch(now()).await?;
    measurements.at_most("next_dispatch_s", next, 8.0);
    Ok(())
}

pub(super) const SNAPSHOT_HELD: Scenario = Scenario {
    id: "snapshot_held",
    title: "A session holds a snapshot while dumps run and partitions are created",
    smoke: None,
    short: 0,
    long: 1,
    run: |harness, config| Box::pin(held(harness, config)),
};

/// The time for which the snapshot is held.
const HELD: Duration = Duration::from_secs(15 * 60);
/// The time after its end by which everything must be as before.
const RECOVERY: Duration = Duration::from_secs(60);
/// The time for which nothing is injected afterwards, which the checker judges as a time without faults.
const AFTERWARDS_SECONDS: f64 = 30.0;
/// The time that a dump may take.
const DUMP_LIMIT: Duration = Duration::from_secs(120);

async fn held(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({
        "allowance_ms": 4_000, "dispatch_allowance_ms": 3_000, "recovery_ms": RECOVERY.as_millis() as u64,
    });
    let mut script = ScenarioScript::new("snapshot_held", limits);
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
        ahead += chrono::Duration::days(1);
        let begun = Instant::now();
        store.ensure_partitions(machine_now() + ahead).await?;
        measurements.at_most("partitions_s", begun.elapsed().as_secs_f64(), 4.0);
        let dumped = timeout(DUMP_LIMIT, dump.wait()).await.context("pg_dump does not end")??;
        ensure!(dumped.success(), "pg_dump failed");
        cluster.run_for(20.0).await;
    }
    let warning = "dead rows accumulate";
    let warned = cluster
        .servers
        .iter()
        .any(|server| std::fs::read_to_string(server.log()).is_ok_and(|text| text.contains(warning)));
    ensure!(warned, "no server has warned of the session");
    session.close().await?;
    cluster.evidence.end_fault(fault);
    cluster.run_for(RECOVERY.as_secs_f64() + AFTERWARDS_SECONDS).await;
    Ok(())
}

pub(super) const CONNECTIONS_LOST: Scenario = Scenario {
    id: "connections_lost",
    title: "Each server's connections to PostgreSQL are lost one by one (count: times for each)",
    smoke: None,
    short: 0,
    long: 10,
    run: |harness, config| Box::pin(lost(harness, config)),
};

async fn lost(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 20_000, "dispatch_allowance_ms": 15_000});
    ScenarioScript::new("connections_lost", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let mut losses = 0;
                for _ in 0..config.count {
                    for name in ["server-1>postgres", "server-2>postgres"] {
                        let fault =
                            cluster.evidence.begin_fault("lost-connection", name, "one connection after another");
                        let link = cluster.link(name)?;
                        for _ in 0..link.open_connections() {
                            losses += u32::from(link.lose_connection());
                            cluster.run_for(1.0).await;
                        }
                        let next = cluster.next_dispatch(now()).await?;
                        measurements.at_most("next_dispatch_s", next, LEASE_SECONDS + 3.0);
                        cluster.evidence.end_fault(fault);
                    }
                }
                measurements.at_least("losses", f64::from(losses), f64::from(config.count) * 8.0);
                cluster.run_for(10.0).await;
                let next = cluster.next_dispatch(now()).await?;
                measurements.at_most("next_dispatch_after_s", next, 1.5);
                Ok(())
            },
        )
        .await
}

pub(super) const TASK_FAILING: Scenario = Scenario {
    id: "task_failing",
    title: "Rows make a background task of the leader fail each time (count: periods of 10 s)",
    smoke: None,
    short: 0,
    long: 60,
    run: |harness, config| Box::pin(failing(harness, config)),
};

async fn failing(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    // The limit of starts without any fault.
    let limits = json!({"allowance_ms": 1_500, "dispatch_allowance_ms": 1_000});
    ScenarioScript::new("task_failing", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let (leader, epoch) = (cluster.wait_for_leader().await?, cluster.epoch().await?);
                let fault = cluster.evidence.begin_fault("poison-rows", ServiceKind::Postgres.name(), "stats_deltas");
                // Their sum is out of range, whichever server folds them.
                let poison = "INSERT INTO stats_deltas (minute, status, count, duration_ms)
                              SELECT '2000-01-01Z', 'completed', 9223372036854775807, 0 FROM generate_series(1, 2)";
                cluster.pool.execute(poison).await?;
                for _ in 0..config.count {
                    cluster.run_for(10.0).await;
                }
                measurements.at_most("terms", (cluster.epoch().await? - epoch) as f64, 0.0);
                let log = std::fs::read_to_string(cluster.servers[leader].log())?;
                ensure!(log.contains("stats-folder"), "the leader has not logged that its task fails");
                cluster.pool.execute("DELETE FROM stats_deltas WHERE minute = '2000-01-01Z'").await?;
                cluster.evidence.end_fault(fault);
                let old = "SELECT count(*) FROM stats_deltas WHERE minute < now() - interval '3 minutes'";
                cluster
                    .wait_until("folded counts", async |cluster| {
                        Ok(sqlx::query_scalar::<_, i64>(old).fetch_one(&cluster.pool).await? == 0)
                    })
                    .await
            },
        )
        .await
}

impl ChaosCluster<'_> {
    /// Returns the number of terms of leadership so far.
    async fn epoch(&self) -> anyhow::Result<i64> {
        let epoch = "SELECT epoch FROM leases WHERE role = 'dispatcher'";
        Ok(sqlx::query_scalar(epoch).fetch_one(&self.pool).await?)
    }
}
