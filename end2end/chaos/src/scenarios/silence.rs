//! Faults in which workers that are alive go silent, or a dead one seems to be alive. The servers are idle and only long
//! runs are at work, so nothing but the fault tells a live worker from a dead one.

use anyhow::Context;
use chrono::SubsecRound;
use milvaion_server::clock::machine_now;
use milvaion_test_support::private_service::BrokerAlarm;
use serde_json::json;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript};
use crate::{
    cluster::ChaosCluster,
    evidence::now,
    harness::ServiceHarness,
    proxy::LinkMode,
    workload::{JobPlan, JobTiming},
};

/// The number of long runs.
const RUNS: usize = 12;

pub(super) const BROKER_ALARM: Scenario = Scenario {
    id: "broker_alarm",
    title: "RabbitMQ accepts no messages for lack of memory or disk while long runs continue; Redis is flushed in the middle",
    smoke: None,
    short: 1,
    long: 4,
    run: |harness, config| Box::pin(alarm(harness, config)),
};

async fn alarm(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits =
        json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 4_500, "recovery_ms": 30_000, "orphan_ms": null});
    ScenarioScript { is_idle: true, ..ScenarioScript::new("broker_alarm", limits) }
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    let seconds = config.either(24.0, if round < 2 { 60.0 } else { 600.0 });
                    let alarm = if round % 2 == 0 { BrokerAlarm::Memory } else { BrokerAlarm::Disk };
                    cluster.start_long_runs(seconds + 20.0, None).await?;
                    let fault = cluster.evidence.begin_fault("alarm", "rabbitmq", format!("{alarm:?} for {seconds} s"));
                    cluster.harness.rabbitmq.raise_alarm(alarm).await?;
                    cluster.run_for(seconds / 2.0).await;
                    cluster.evidence.record_fault("flush", "redis", "in the middle of the alarm");
                    cluster.harness.redis_command(&["FLUSHALL"]).await?;
                    cluster.run_for(seconds / 2.0).await;
                    cluster.harness.rabbitmq.clear_alarm(alarm).await?;
                    cluster.evidence.end_fault(fault);
                    let cleared = now();
                    cluster.wait_for_idle().await?;
                    measurements.at_most("reported_after_s", (now() - cleared) as f64 / 1e6, 60.0);
                    measurements.at_most("repeated_runs", cluster.repeated_runs().await? as f64, 0.0);
                }
                Ok(())
            },
        )
        .await
}

pub(super) const WORKER_UNREACHABLE: Scenario = Scenario {
    id: "worker_unreachable",
    title: "What a worker sends to RabbitMQ is held back, first for less and then for more than the unreachable timeout",
    smoke: None,
    short: 0,
    long: 2,
    run: |harness, config| Box::pin(unreachable(harness, config)),
};

/// The unreachable timeout of the runs, in seconds.
const UNREACHABLE_SECONDS: u32 = 40;

async fn unreachable(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({
        "allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 60_000, "orphan_ms": null,
        "tolerate": {"false_lost": "after the unreachable timeout, runs are revoked from a live worker"},
    });
    ScenarioScript { is_idle: true, ..ScenarioScript::new("worker_unreachable", limits) }
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    let is_revoked = round % 2 == 1;
                    let seconds = if is_revoked { 90.0 } else { 32.0 };
                    cluster.start_long_runs(seconds + 10.0, Some(UNREACHABLE_SECONDS)).await?;
                    let number = cluster.busiest_worker();
                    let name = cluster.workers[number].name().to_owned();
                    let running = cluster.witness.running(&name);
                    // The target is no link, so the checker excuses no second start beside the first one.
                    let fault = cluster.evidence.begin_fault(
                        "hold",
                        format!("messages of {name}"),
                        format!("for {seconds} s, {running} runs"),
                    );
                    let before = now();
                    cluster.link(&format!("{name}>rabbitmq"))?.set(LinkMode::Blackhole);
                    if is_revoked {
                        cluster
                            .wait_until("the revocation", async |cluster| Ok(cluster.witness.running(&name) == 0))
                            .await?;
                        let given_back = (now() - before) as f64 / 1e6;
                        measurements.at_least("given_back_s", given_back, f64::from(UNREACHABLE_SECONDS));
                        measurements.at_most("given_back_s", given_back, f64::from(UNREACHABLE_SECONDS) + 25.0);
                        let wanted = i64::try_from(running)?;
                        cluster
                            .wait_until("the next attempts", async |cluster| {
                                Ok(cluster.repeated_runs().await? >= wanted)
                            })
                            .await?;
                    } else {
                        cluster.run_for(seconds).await;
                        measurements.at_most("repeated_runs", cluster.repeated_runs().await? as f64, 0.0);
                    }
                    cluster.link(&format!("{name}>rabbitmq"))?.set(LinkMode::Pass);
                    cluster.evidence.end_fault(fault);
                    cluster.wait_for_idle().await?;
                }
                Ok(())
            },
        )
        .await
}

pub(super) const DEAD_WORKER_IN_REDIS: Scenario = Scenario {
    id: "dead_worker_in_redis",
    title: "A worker is killed, and its keys live for an hour more, as in a Redis whose clock was an hour ahead",
    smoke: None,
    short: 1,
    long: 3,
    run: |harness, config| Box::pin(dead_in_redis(harness, config)),
};

async fn dead_in_redis(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits =
        json!({"allowance_ms": 25_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 30_000, "orphan_ms": 25_000});
    ScenarioScript { is_idle: true, ..ScenarioScript::new("dead_worker_in_redis", limits) }
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    cluster.start_long_runs(config.either(24.0, 40.0), None).await?;
                    let number = cluster.busiest_worker();
                    let running = cluster.witness.running(cluster.workers[number].name());
                    let before = cluster.repeated_runs().await?;
                    let fault = cluster.evidence.begin_fault("kill", cluster.workers[number].name(), "SIGKILL");
                    cluster.workers[number].kill().await?;
                    let killed = now();
                    cluster.extend_heartbeats().await?;
                    let wanted = before + i64::try_from(running)?;
                    cluster
                        .wait_until("the next attempts", async |cluster| Ok(cluster.repeated_runs().await? >= wanted))
                        .await?;
                    measurements.at_most("found_s", (now() - killed) as f64 / 1e6, 22.0);
                    cluster.workers[number].start().await?;
                    cluster.evidence.end_fault(fault);
                    cluster.wait_for_idle().await?;
                }
                Ok(())
            },
        )
        .await
}

impl ChaosCluster<'_> {
    /// Starts [`RUNS`] long runs and waits until all have started. Each takes `seconds`.
    async fn start_long_runs(&mut self, seconds: f64, unreachable_seconds: Option<u32>) -> anyhow::Result<()> {
        let before = self.witness.starts();
        // A whole second, as the server stores it.
        let due = machine_now().trunc_subsecs(0) + chrono::TimeDelta::seconds(4);
        let milliseconds = (seconds * 1e3) as u64;
        let plan = || JobPlan {
            unreachable_seconds,
            // A run that is revoked must report its end to the witness, and only this type does.
            ..JobPlan::new("obedient", JobTiming::Once(due)).with_duration_ms(milliseconds)
        };
        self.define((0..RUNS).map(|_| plan()).collect()).await?;
        self.wait_until("long runs", async |cluster| Ok(cluster.witness.starts() >= before + RUNS)).await?;
        // The first heartbeats that list the runs.
        self.run_for(6.0).await;
        Ok(())
    }

    /// Waits until no occurrence is open.
    async fn wait_for_idle(&self) -> anyhow::Result<()> {
        self.wait_until("the end of all runs", async |cluster| Ok(cluster.open_occurrences().await? == 0)).await
    }

    /// Returns the number of occurrences with more than one attempt.
    async fn repeated_runs(&self) -> anyhow::Result<i64> {
        let repeated = "SELECT count(*) FROM occurrences WHERE attempt > 1";
        Ok(sqlx::query_scalar(repeated).fetch_one(&self.pool).await?)
    }

    /// Returns the index of the worker with the most runs.
    pub(super) fn busiest_worker(&self) -> usize {
        (0..self.workers.len()).max_by_key(|number| self.witness.running(self.workers[*number].name())).unwrap_or(0)
    }

    /// Gives an hour more to every heartbeat that is in Redis now. That of a live worker is written anew.
    async fn extend_heartbeats(&self) -> anyhow::Result<()> {
        let script =
            "for _, key in ipairs(redis.call('KEYS', '*heartbeat:*')) do redis.call('PEXPIRE', key, 3600000) end";
        self.harness.redis_command(&["EVAL", script, "0"]).await.context("Redis does not answer")
    }
}
