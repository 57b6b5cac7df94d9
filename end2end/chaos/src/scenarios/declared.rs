//! Deployments of workers that declare schedules in their code, while the server that reconciles them is killed.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, random_seconds};
use crate::{cluster::ChaosCluster, harness::ServiceHarness, workload::WORKER_ID};

/// The number of schedules that every release declares, as in the worker of the suite.
const STEADY_SCHEDULES: usize = 10;

pub(super) const DECLARED_SCHEDULES: Scenario = Scenario {
    id: "declared_schedules",
    title: "Workers of a newer version register while the leading server is killed (count: number of releases)",
    smoke: None,
    short: 0,
    long: 6,
    run: |harness, config| Box::pin(releases(harness, config)),
};

async fn releases(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 20_000, "dispatch_allowance_ms": 15_000});
    ScenarioScript::new("declared_schedules", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for number in 0..cluster.workers.len() {
                    deploy(cluster, number, 1).await?;
                }
                await_release(cluster, 1).await?;
                for release in 2..=config.count + 1 {
                    deploy(cluster, 0, release).await?;
                    // The reconciliation has a period of 5 s, so the kill hits it before, during or after its work.
                    let pause_seconds = random_seconds(&mut cluster.random, 0.0, 6.0);
                    cluster.run_for(pause_seconds).await;
                    let leader = cluster.wait_for_leader().await?;
                    let fault = cluster.evidence.begin_fault("kill", cluster.servers[leader].name(), "SIGKILL");
                    cluster.servers[leader].kill().await?;
                    deploy(cluster, 1, release).await?;
                    cluster.servers[leader].start().await?;
                    cluster.evidence.end_fault(fault);
                    // One of the former version registers last, as during a deployment that is slow.
                    deploy(cluster, 2, release - 1).await?;
                    await_release(cluster, release).await?;
                    cluster.run_for(6.0).await;
                    for difference in cluster.declaration_differences(release).await? {
                        measurements.failures.push(format!("declared_wrong: release {release}: {difference}"));
                    }
                    deploy(cluster, 2, release).await?;
                }
                Ok(())
            },
        )
        .await
}

/// Restarts a worker in the version of a release.
async fn deploy(cluster: &mut ChaosCluster<'_>, number: usize, release: u32) -> anyhow::Result<()> {
    let name = cluster.workers[number].name().to_owned();
    let fault =
        cluster.evidence.begin_fault("terminate", name.as_str(), format!("to be replaced by release {release}"));
    cluster.workers[number].terminate().await?;
    std::fs::write(cluster.evidence.release_file(&name), release.to_string())?;
    cluster.workers[number].start().await?;
    cluster.evidence.end_fault(fault);
    Ok(())
}

/// Waits until the leader has carried out what a release declares. A release that is never carried out is reported by the
/// comparison that follows.
async fn await_release(cluster: &ChaosCluster<'_>, release: u32) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    while begun.elapsed().as_secs() < 45 {
        if cluster.declaration_differences(release).await.is_ok_and(|found| found.is_empty()) {
            return Ok(());
        }
        cluster.run_for(0.2).await;
    }
    Ok(())
}

/// The row of a job of a declared schedule: its name and the parts of a [`DeclaredJob`].
type DeclaredRow = (String, i16, Vec<String>, Option<i64>, bool);
/// A job of a declared schedule: its number of retries, its release as its only tag, its release as its input, and
/// whether it is active.
type DeclaredJob = (i16, Vec<String>, Option<i64>, bool);

impl ChaosCluster<'_> {
    /// Returns what differs between the jobs of declared schedules and the code of a release, one sentence each.
    async fn declaration_differences(&self, release: u32) -> anyhow::Result<Vec<String>> {
        let query = "SELECT display_name, max_retries, tags, (job_data ->> 'milliseconds')::int8, is_active
                       FROM jobs WHERE worker_id = $1 AND source = 'code' AND schedule <> '{\"type\": \"manual\"}'
                        AND display_name LIKE 'quick: %'";
        let rows: Vec<DeclaredRow> = sqlx::query_as(query).bind(WORKER_ID).fetch_all(&self.pool).await?;
        let mut jobs: BTreeMap<String, Vec<DeclaredJob>> = BTreeMap::new();
        for (name, retries, tags, input, is_active) in rows {
            jobs.entry(name).or_default().push((retries, tags, input, is_active));
        }
        let mut found = Vec::new();
        let steady = (0..STEADY_SCHEDULES).map(|number| format!("quick: steady-{number}"));
        for name in steady.chain([format!("quick: release-{release}")]) {
            let wanted = (i16::try_from(release)?, vec![format!("release-{release}")], Some(release.into()), true);
            match jobs.remove(&name).as_deref() {
                Some([job]) if *job == wanted => {}
                other => found.push(format!("the jobs of {name} are {other:?}, not one {wanted:?}")),
            }
        }
        // What an earlier release alone declared is retired, and exists once.
        for (name, others) in jobs {
            if others.len() != 1 || others.iter().any(|(.., is_active)| *is_active) {
                found.push(format!("the retired {name} is {others:?}"));
            }
        }
        Ok(found)
    }
}
