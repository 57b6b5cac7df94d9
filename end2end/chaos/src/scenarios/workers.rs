//! Faults of the workers while they have runs: they are killed, frozen, partitioned or terminated.

use anyhow::Context;
use rand::RngExt;
use serde_json::{Value, json};

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, random_seconds};
use crate::{
    cluster::ChaosCluster,
    evidence::{OngoingFault, now},
    harness::ServiceHarness,
    proxy::LinkMode,
    tap::ExchangeTap,
    workload::JobPlan,
};

/// The time a worker gives its runs to end when it is terminated, in seconds, as `ClusterBuilder` sets it.
const SHUTDOWN_GRACE_SECONDS: f64 = 5.0;
/// The longest time in seconds between the death of a worker and the next attempts of its runs: the default of `orphan_ms`.
const LONGEST_LOSS_SECONDS: f64 = 20.0;

pub(super) const WORKER_KILLED: Scenario = Scenario {
    id: "worker_killed",
    title: "Workers are killed at random moments and start again at once, or so late that their runs are lost",
    smoke: None,
    short: 1,
    long: 9,
    run: |harness, config| Box::pin(killed(harness, config)),
};

/// Returns the checker's limits while a worker is killed.
pub(super) fn kill_limits() -> Value {
    json!({"allowance_ms": 25_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 20_000})
}

async fn killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let mut script = ScenarioScript::new("worker_killed", kill_limits());
    script.more_jobs = vec![JobPlan::every("long", 1).with_duration_ms(9_000)];
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, _: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    // The workers are killed in turn, so that each has been running for a while.
                    let number = round as usize % cluster.workers.len();
                    match round % 3 {
                        0 => kill_worker(cluster, number, 18.0).await?,
                        1 => kill_two_workers(cluster, number).await?,
                        _ => {
                            let outage_seconds = random_seconds(&mut cluster.random, 0.1, 3.0);
                            kill_worker(cluster, number, outage_seconds).await?;
                        }
                    }
                    let pause_seconds = random_seconds(&mut cluster.random, 1.0, 4.0);
                    cluster.run_for(pause_seconds).await;
                    if round % 3 == 2 {
                        // In one turn a run may lose three workers, which is as often as it is requeued. It must have
                        // ended before the next turn; those that were lost twice run one after another.
                        cluster.run_for(20.0).await;
                        cluster
                            .wait_until("an empty quarantine", async |cluster| Ok(cluster.quarantined().await? == 0))
                            .await?;
                    }
                }
                Ok(())
            },
        )
        .await
}

impl ChaosCluster<'_> {
    /// Returns the number of open occurrences that were lost twice.
    async fn quarantined(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("SELECT count(*) FROM runs WHERE is_quarantined").fetch_one(&self.pool).await?)
    }
}

/// Kills a worker and starts it again after `outage_seconds`.
async fn kill_worker(cluster: &mut ChaosCluster<'_>, number: usize, outage_seconds: f64) -> anyhow::Result<()> {
    let detail = format!("SIGKILL for {outage_seconds:.1} s");
    let fault = cluster.evidence.begin_fault("kill", cluster.workers[number].name(), detail);
    cluster.workers[number].kill().await?;
    cluster.run_for(outage_seconds).await;
    cluster.workers[number].start().await?;
    cluster.evidence.end_fault(fault);
    Ok(())
}

/// Kills the worker with the most runs, and waits until all of them have started again on other workers or were cancelled.
/// Returns its index and the fault, which lasts until it is started.
pub(super) async fn kill_busiest_worker(
    cluster: &mut ChaosCluster<'_>,
    measurements: &mut ScenarioMeasurements,
) -> anyhow::Result<(usize, OngoingFault)> {
    let number = cluster.busiest_worker();
    let name = cluster.workers[number].name().to_owned();
    let fault = cluster.evidence.begin_fault("kill", name.as_str(), "SIGKILL, until after its runs have started again");
    let at = now();
    cluster.workers[number].kill().await?;
    measurements.at_least("runs_killed", cluster.witness.running(&name) as f64, 1.0);
    cluster
        .wait_until("the next attempts of the killed runs", async |cluster| {
            let open = "SELECT count(*) FROM runs WHERE id::text = ANY($1)";
            let killed = cluster.witness.running_occurrences(&name);
            Ok(sqlx::query_scalar::<_, i64>(open).bind(killed).fetch_one(&cluster.pool).await? == 0)
        })
        .await?;
    measurements.at_most("started_again_s", (now() - at) as f64 / 1e6, LONGEST_LOSS_SECONDS);
    Ok((number, fault))
}

/// Kills a worker, and another one two seconds later. Of the requeued runs, those requeued later are then not always
/// the younger ones.
async fn kill_two_workers(cluster: &mut ChaosCluster<'_>, number: usize) -> anyhow::Result<()> {
    let other = (number + 1) % cluster.workers.len();
    let first = cluster.evidence.begin_fault("kill", cluster.workers[number].name(), "SIGKILL for 19 s");
    cluster.workers[number].kill().await?;
    cluster.run_for(2.0).await;
    let second = cluster.evidence.begin_fault("kill", cluster.workers[other].name(), "SIGKILL for 19 s");
    cluster.workers[other].kill().await?;
    cluster.run_for(17.0).await;
    cluster.workers[number].start().await?;
    cluster.evidence.end_fault(first);
    cluster.run_for(2.0).await;
    cluster.workers[other].start().await?;
    cluster.evidence.end_fault(second);
    Ok(())
}

pub(super) const WORKER_FROZEN: Scenario = Scenario {
    id: "worker_frozen",
    title: "A worker is frozen for twice the heartbeat timeout, and resumed",
    smoke: None,
    short: 0,
    long: 3,
    run: |harness, config| Box::pin(frozen(harness, config)),
};

async fn frozen(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 20_000});
    ScenarioScript::new("worker_frozen", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, _: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    let number = cluster.random.random_range(0..cluster.workers.len());
                    let fault =
                        cluster.evidence.begin_fault("freeze", cluster.workers[number].name(), "SIGSTOP for 30 s");
                    cluster.workers[number].freeze()?;
                    cluster.run_for(30.0).await;
                    cluster.workers[number].thaw()?;
                    cluster.evidence.end_fault(fault);
                    cluster.run_for(4.0).await;
                }
                Ok(())
            },
        )
        .await
}

pub(super) const WORKER_PARTITIONED: Scenario = Scenario {
    id: "worker_partitioned",
    title: "A worker cannot reach RabbitMQ while its runs continue",
    smoke: None,
    short: 1,
    long: 3,
    run: |harness, config| Box::pin(partitioned(harness, config)),
};

async fn partitioned(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits =
        json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 40_000, "orphan_ms": null});
    ScenarioScript::new("worker_partitioned", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    let number = cluster.random.random_range(0..cluster.workers.len());
                    let name = format!("{}>rabbitmq", cluster.workers[number].name());
                    let (kind, mode) = [
                        ("blackhole", LinkMode::Blackhole),
                        ("cut", LinkMode::Refuse),
                        ("half-open", LinkMode::HalfOpen),
                        ("latency", LinkMode::Slow(300)),
                    ][(round % 4) as usize];
                    let seconds = config.either(12.0, 60.0);
                    let running = cluster.witness.running(cluster.workers[number].name());
                    let fault =
                        cluster.evidence.begin_fault(kind, name.as_str(), format!("for {seconds} s, {running} runs"));
                    cluster.link(&name)?.set(mode);
                    cluster.run_for(seconds).await;
                    cluster.link(&name)?.set(LinkMode::Pass);
                    cluster.evidence.end_fault(fault);
                    measurements.figures.insert("runs_at_work", running as f64);
                    cluster.run_for(config.either(5.0, 15.0)).await;
                }
                Ok(())
            },
        )
        .await
}

pub(super) const PARTITIONED_WORKER_KILLED: Scenario = Scenario {
    id: "partitioned_worker_killed",
    title: "A worker cannot reach RabbitMQ, is killed, and is started again while it still cannot",
    smoke: None,
    short: 0,
    long: 2,
    run: |harness, config| Box::pin(partitioned_and_killed(harness, config)),
};

async fn partitioned_and_killed(
    harness: &mut ServiceHarness,
    config: ScenarioConfig,
) -> anyhow::Result<super::ScenarioResult> {
    let limits =
        json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 40_000, "orphan_ms": null});
    ScenarioScript::new("partitioned_worker_killed", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, _: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    let number = cluster.random.random_range(0..cluster.workers.len());
                    let name = format!("{}>rabbitmq", cluster.workers[number].name());
                    let fault = cluster.evidence.begin_fault("cut", name.as_str(), "until after the worker's restart");
                    cluster.link(&name)?.set(LinkMode::Refuse);
                    cluster.run_for(10.0).await;
                    let death = cluster.evidence.begin_fault(
                        "kill",
                        cluster.workers[number].name(),
                        "SIGKILL while partitioned",
                    );
                    cluster.workers[number].kill().await?;
                    cluster.run_for(2.0).await;
                    cluster.workers[number].start().await?;
                    cluster.evidence.end_fault(death);
                    cluster.run_for(10.0).await;
                    cluster.link(&name)?.set(LinkMode::Pass);
                    cluster.evidence.end_fault(fault);
                    cluster.run_for(15.0).await;
                }
                Ok(())
            },
        )
        .await
}

pub(super) const WORKER_TERMINATED: Scenario = Scenario {
    id: "worker_terminated",
    title: "A worker with short and long runs is terminated",
    smoke: None,
    short: 1,
    long: 8,
    run: |harness, config| Box::pin(terminated(harness, config)),
};

async fn terminated(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"allowance_ms": 8_000, "dispatch_allowance_ms": 3_000, "orphan_ms": 12_000});
    let mut script = ScenarioScript::new("worker_terminated", limits);
    script.more_jobs = vec![JobPlan::every("long", 1).with_duration_ms(12_000)];
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    let number = round as usize % cluster.workers.len();
                    let name = cluster.workers[number].name().to_owned();
                    let fault = cluster.evidence.begin_fault("terminate", name.as_str(), "SIGTERM");
                    let (status, took) = cluster.workers[number].terminate().await?;
                    measurements.at_most("exit_s", took.as_secs_f64(), SHUTDOWN_GRACE_SECONDS + 2.0);
                    if !status.success() {
                        measurements.failures.push(format!("{name} ended with {status}, not with status 0"));
                    }
                    cluster.workers[number].start().await?;
                    cluster.evidence.end_fault(fault);
                    cluster.run_for(config.either(3.0, 6.0)).await;
                }
                Ok(())
            },
        )
        .await
}

pub(super) const ALL_WORKERS_KILLED: Scenario = Scenario {
    id: "all_workers_killed",
    title: "Every worker is killed with thousands queued and running (count: thousands), and three new ones start",
    smoke: None,
    short: 0,
    long: 5,
    run: |harness, config| Box::pin(all_killed(harness, config)),
};

async fn all_killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    // Every queued occurrence is late until the backlog has been drained.
    let limits =
        json!({"allowance_ms": null, "dispatch_allowance_ms": 4_500, "recovery_ms": 120_000, "orphan_ms": 200_000});
    let mut script = ScenarioScript::new("all_workers_killed", limits);
    script.more_jobs = (0..100).map(|_| JobPlan::every("quick", 1)).collect();
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let wanted = i64::from(config.count) * 1_000;
                let mut faults = Vec::new();
                for worker in &mut cluster.workers {
                    faults.push(cluster.evidence.begin_fault("kill", worker.name(), "SIGKILL, all of them"));
                    worker.kill().await?;
                }
                // A worker that was killed last has rejected bundles of those before it, which are sent again at once.
                cluster.run_for(2.0).await;
                let exchanges = [(cluster.names.jobs_exchange(), "#")];
                let tap = ExchangeTap::open(cluster.harness.rabbitmq.url(), &exchanges, 0).await?;
                cluster
                    .wait_until("a backlog", async |cluster| Ok(cluster.open_occurrences().await? >= wanted))
                    .await?;
                // What waits at the broker is not lost, however long it waits and however many runs a message has.
                let messages = tap.messages();
                tap.close().await?;
                let needless = messages.iter().filter(|message| message.repeats_first_attempt()).count();
                measurements.at_most("needless_messages", needless as f64, 0.0);
                let bundles = messages.iter().filter(|message| message.is_bundle()).count();
                measurements.at_least("bundles", bundles as f64, 1.0);
                let orphans = cluster.open_occurrences().await?;
                let at = now();
                for worker in &mut cluster.workers {
                    worker.start().await?;
                }
                for fault in faults {
                    cluster.evidence.end_fault(fault);
                }
                // Only the occurrences that were open at that instant count; as many new ones are created meanwhile.
                let begun = chrono::DateTime::from_timestamp_micros(at).context("the instant is out of range")?;
                cluster
                    .wait_until("the end of the backlog", async |cluster| {
                        let left = "SELECT count(*) FROM runs WHERE created_at < $1";
                        Ok(sqlx::query_scalar::<_, i64>(left).bind(begun).fetch_one(&cluster.pool).await? == 0)
                    })
                    .await?;
                measurements.figures.insert("orphans", orphans as f64);
                measurements.at_most("drained_s", (now() - at) as f64 / 1e6, 120.0);
                Ok(())
            },
        )
        .await
}
