//! Runs that fail in a special way: one that crashes its worker each time, and runs that are cancelled.

use std::time::Duration;

use anyhow::{Context, ensure};
use rand::RngExt;
use serde_json::json;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript};
use crate::{
    api::ApiReply,
    cluster::{ChaosCluster, WAIT_TIMEOUT},
    harness::ServiceHarness,
    workload::{JobPlan, JobTiming},
};

pub(super) const POISON_RUN: Scenario = Scenario {
    id: "poison_run",
    title: "A job aborts its worker each time it runs, beside innocent runs",
    smoke: None,
    short: 0,
    long: 3,
    run: |harness, config| Box::pin(poisoned(harness, config)),
};

async fn poisoned(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 20_000});
    let mut script = ScenarioScript::new("poison_run", limits);
    script.more_jobs = vec![JobPlan::new("crasher", JobTiming::Manual)];
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let job = cluster.driver.manual_job("crasher")?;
                for number in 0..config.count {
                    let occurrence = cluster.driver.trigger(&job, &format!("crasher-{number}")).await;
                    let occurrence = occurrence.context("the poison run was not accepted")?;
                    let (mut crashes, begun) = (0.0, tokio::time::Instant::now());
                    loop {
                        ensure!(
                            begun.elapsed() < WAIT_TIMEOUT,
                            "occurrence {occurrence} has crashed {crashes} workers and is still open"
                        );
                        for number in 0..cluster.workers.len() {
                            if cluster.workers[number].has_ended() {
                                crashes += 1.0;
                                let crash =
                                    cluster.evidence.begin_fault("kill", cluster.workers[number].name(), "by its job");
                                cluster.workers[number].ended().await?;
                                cluster.run_for(0.5).await;
                                cluster.workers[number].start().await?;
                                cluster.evidence.end_fault(crash);
                            }
                        }
                        let open = "SELECT count(*) FROM runs WHERE id = $1::uuid";
                        let open: i64 = sqlx::query_scalar(open).bind(&occurrence).fetch_one(&cluster.pool).await?;
                        if open == 0 {
                            break;
                        }
                        cluster.run_for(0.1).await;
                    }
                    // The first attempt, and three after it was lost.
                    measurements.at_most("deaths_by_one_run", crashes, 4.0);
                    // If an innocent run that shared the worker met the next poison run, the crashes of both would count
                    // against it. It may wait for others in the quarantine first.
                    let (since, open) = (tokio::time::Instant::now(), "SELECT count(*) FROM runs WHERE requeues > 0");
                    loop {
                        let open: i64 = sqlx::query_scalar(open).fetch_one(&cluster.pool).await?;
                        if open == 0 {
                            break;
                        }
                        ensure!(since.elapsed() < WAIT_TIMEOUT, "{open} runs that were lost are still open");
                        cluster.run_for(0.5).await;
                    }
                }
                Ok(())
            },
        )
        .await
}

pub(super) const RUNS_CANCELLED: Scenario = Scenario {
    id: "runs_cancelled",
    title: "Runs are cancelled at random moments (count: hundreds)",
    smoke: None,
    short: 0,
    long: 5,
    run: |harness, config| Box::pin(cancelled(harness, config)),
};

async fn cancelled(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    ScenarioScript::new("runs_cancelled", json!({"slo_ms": 3_000}))
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let job = cluster.driver.manual_job("obedient")?;
                let mut cancellations = tokio::task::JoinSet::new();
                for number in 0..config.count * 100 {
                    let (driver, job) = (cluster.driver.clone(), job.clone());
                    let wait = Duration::from_millis(cluster.random.random_range(0..1_500));
                    cancellations.spawn(async move {
                        let occurrence = driver.trigger(&job, &format!("storm-{number}")).await?;
                        tokio::time::sleep(wait).await;
                        let at = std::time::Instant::now();
                        matches!(driver.cancel(&job, &occurrence).await, ApiReply::Done(_)).then_some((occurrence, at))
                    });
                    // At most 40 at once.
                    if cancellations.len() >= 40 {
                        wait_for_end(cluster, measurements, cancellations.join_next().await).await?;
                    }
                }
                while let Some(cancelled) = cancellations.join_next().await {
                    wait_for_end(cluster, measurements, Some(cancelled)).await?;
                }
                Ok(())
            },
        )
        .await
}

/// Waits until a cancelled run has ended, and records the time it took.
async fn wait_for_end(
    cluster: &ChaosCluster<'_>,
    measurements: &mut ScenarioMeasurements,
    cancelled: Option<Result<Option<(String, std::time::Instant)>, tokio::task::JoinError>>,
) -> anyhow::Result<()> {
    let Some((occurrence, at)) = cancelled.transpose()?.flatten() else { return Ok(()) };
    cluster
        .wait_until("the end of a cancelled run", async |cluster| {
            let open = "SELECT count(*) FROM runs WHERE id = $1::uuid";
            Ok(sqlx::query_scalar::<_, i64>(open).bind(&occurrence).fetch_one(&cluster.pool).await? == 0)
        })
        .await?;
    measurements.at_most("cancel_to_end_s", at.elapsed().as_secs_f64(), 5.0);
    *measurements.figures.entry("cancelled").or_default() += 1.0;
    Ok(())
}
