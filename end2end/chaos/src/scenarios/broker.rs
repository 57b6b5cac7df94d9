//! Faults of RabbitMQ: it is killed, loses its data or a queue, or its publisher confirms are lost.

use std::collections::HashMap;

use lapin::{Connection, ConnectionProperties, options::QueueDeleteOptions, types::FieldTable};
use milvaion_protocol::topology::Topology;
use milvaion_test_support::private_service::ServiceKind;
use serde_json::{Value, json};

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript, random_seconds};
use crate::{
    cluster::ChaosCluster,
    evidence::now,
    harness::ServiceHarness,
    workload::{JobPlan, WORKER_ID},
};

pub(super) const RABBITMQ_KILLED: Scenario = Scenario {
    id: "rabbitmq_killed",
    title: "RabbitMQ is killed and started again",
    smoke: None,
    short: 1,
    long: 5,
    run: |harness, config| Box::pin(killed(harness, config)),
};

/// Returns the checker's limits while RabbitMQ is killed: no run can start, but every occurrence is created on time.
pub(super) fn kill_limits() -> Value {
    json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 4_500, "recovery_ms": 30_000, "orphan_ms": null})
}

async fn killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    ScenarioScript::new("rabbitmq_killed", kill_limits())
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    // With the time RabbitMQ takes to start, alternately less and more than the heartbeat timeout.
                    let (from, to) = if round % 2 == 0 { (0.0, 1.0) } else { (8.0, 12.0) };
                    let outage_seconds = random_seconds(&mut cluster.random, from, to);
                    kill_broker(cluster, measurements, outage_seconds).await?;
                    cluster.run_for(config.either(2.0, 6.0)).await;
                }
                Ok(())
            },
        )
        .await
}

/// Kills RabbitMQ, starts it again after `outage_seconds`, and waits until everything that waited for it is published.
pub(super) async fn kill_broker(
    cluster: &mut ChaosCluster<'_>,
    measurements: &mut ScenarioMeasurements,
    outage_seconds: f64,
) -> anyhow::Result<()> {
    cluster.crash(ServiceKind::RabbitMq, outage_seconds).await?;
    let ready = now();
    cluster
        .wait_until("an empty backlog of messages", async |cluster| {
            let behind = "SELECT count(*) FROM runs WHERE publish_after < now() - interval '1 second'";
            Ok(sqlx::query_scalar::<_, i64>(behind).fetch_one(&cluster.pool).await? == 0)
        })
        .await?;
    measurements.at_most("backlog_published_s", (now() - ready) as f64 / 1e6, 30.0);
    Ok(())
}

pub(super) const RABBITMQ_WIPED: Scenario = Scenario {
    id: "rabbitmq_wiped",
    title: "RabbitMQ loses everything while 500 occurrences are queued",
    smoke: None,
    short: 0,
    long: 2,
    run: |harness, config| Box::pin(wiped(harness, config)),
};

async fn wiped(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({
        "allowance_ms": 90_000, "dispatch_allowance_ms": 4_500, "recovery_ms": 60_000, "orphan_ms": null,
    });
    let mut script = ScenarioScript::new("rabbitmq_wiped", limits);
    script.more_jobs = (0..40).map(|_| JobPlan::every("quick", 1)).collect();
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    let mut faults = Vec::new();
                    for worker in &mut cluster.workers {
                        faults.push(cluster.evidence.begin_fault(
                            "terminate",
                            worker.name(),
                            "so that a backlog grows",
                        ));
                        worker.terminate().await?;
                    }
                    cluster
                        .wait_until("500 queued occurrences", async |cluster| {
                            let queued =
                                "SELECT count(*) FROM runs WHERE status = 'queued' AND published_at IS NOT NULL";
                            Ok(sqlx::query_scalar::<_, i64>(queued).fetch_one(&cluster.pool).await? >= 500)
                        })
                        .await?;
                    let fault = cluster.evidence.begin_fault("wipe", "rabbitmq", "SIGKILL, and everything deleted");
                    cluster.harness.rabbitmq.kill().await?;
                    cluster.harness.rabbitmq.wipe()?;
                    cluster.harness.rabbitmq.start().await?;
                    cluster.evidence.end_fault(fault);
                    let (ready, before) = (now(), cluster.witness.starts());
                    for worker in &mut cluster.workers {
                        worker.start().await?;
                    }
                    for fault in faults {
                        cluster.evidence.end_fault(fault);
                    }
                    cluster.wait_until("a start", async |cluster| Ok(cluster.witness.starts() > before)).await?;
                    measurements.at_most("topology_back_s", (now() - ready) as f64 / 1e6, 15.0);
                    cluster
                        .wait_until(
                            "an end of the backlog",
                            async |cluster| Ok(cluster.open_occurrences().await? < 300),
                        )
                        .await?;
                }
                Ok(())
            },
        )
        .await
}

pub(super) const QUEUE_REMOVED: Scenario = Scenario {
    id: "queue_removed",
    title: "A queue that messages are published to loses its binding, or is deleted",
    smoke: None,
    short: 0,
    long: 6,
    run: |harness, config| Box::pin(unbound(harness, config)),
};

async fn unbound(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    // A message that no queue takes is returned at once. The messages of a deleted queue, which is every other round,
    // are republished when they are 15 s old (REQUEUE_AFTER_SECONDS); the republisher looks for them every 7.5 s.
    let allowance = if config.count > 1 { 25_000 } else { 15_000 };
    let limits = json!({
        "allowance_ms": allowance, "dispatch_allowance_ms": 3_000, "recovery_ms": 10_000, "orphan_ms": null,
    });
    ScenarioScript::new("queue_removed", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, _: &mut ScenarioMeasurements| {
                for round in 0..config.count {
                    let queue = cluster.names.job_queue(WORKER_ID, "quick");
                    let connection =
                        Connection::connect(cluster.harness.rabbitmq.url(), ConnectionProperties::default()).await?;
                    let channel = connection.create_channel().await?;
                    if round % 2 == 0 {
                        let (exchange, key) =
                            (cluster.names.jobs_exchange(), Topology::job_binding(WORKER_ID, "quick"));
                        let (queue, exchange, key) =
                            (queue.as_str().into(), exchange.as_str().into(), key.as_str().into());
                        channel.queue_unbind(queue, exchange, key, FieldTable::default()).await?;
                        cluster.evidence.record_fault("unbind", "rabbitmq", "the queue of quick");
                    } else {
                        channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?;
                        cluster.evidence.record_fault("delete-queue", "rabbitmq", "the queue of quick");
                    }
                    let _ = connection.close(200, "done".into()).await;
                    let pause_seconds = random_seconds(&mut cluster.random, 12.0, 15.0);
                    cluster.run_for(pause_seconds).await;
                }
                Ok(())
            },
        )
        .await
}

pub(super) const CONFIRMS_LOST: Scenario = Scenario {
    id: "confirms_lost",
    title: "Publisher confirms, or messages, are lost with the connection",
    smoke: None,
    short: 10,
    long: 200,
    run: |harness, config| Box::pin(unconfirmed(harness, config)),
};

/// Returns the checker's limits while confirms or messages are lost.
pub(super) fn loss_limits() -> Value {
    json!({"allowance_ms": 8_000, "dispatch_allowance_ms": 6_000, "recovery_ms": 10_000, "orphan_ms": null})
}

async fn unconfirmed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    ScenarioScript::new("confirms_lost", loss_limits())
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                lose_confirms_and_messages(cluster, measurements, config.count, 4, config.either(0.6, 0.8)).await?;
                cluster.run_for(6.0).await;
                let copies = cluster.duplicate_deliveries();
                measurements.at_least("copies_delivered", copies as f64, f64::from(config.count) / 10.0);
                Ok(())
            },
        )
        .await
}

/// Loses publisher confirms of the leading server, `confirms` or a few more, and after each `per_message` of them a message
/// in flight. Between two losses it pauses for at most `pause_seconds`.
pub(super) async fn lose_confirms_and_messages(
    cluster: &mut ChaosCluster<'_>,
    measurements: &mut ScenarioMeasurements,
    confirms: u32,
    per_message: u32,
    pause_seconds: f64,
) -> anyhow::Result<()> {
    let (mut confirms_lost, mut messages_lost) = (0, 0);
    while confirms_lost < confirms {
        let leader = cluster.wait_for_leader().await?;
        let name = format!("{}>rabbitmq", cluster.servers[leader].name());
        let count = 1 + confirms_lost % 3;
        cluster.lose_confirms(&name, count).await?;
        confirms_lost += count;
        let pause_seconds = random_seconds(&mut cluster.random, 0.1, pause_seconds);
        cluster.run_for(pause_seconds).await;
        // For the sender this is the same, a missing confirm, but the broker does not have the message.
        if confirms_lost >= (messages_lost + 1) * per_message {
            cluster.lose_publish(&name).await?;
            messages_lost += 1;
        }
    }
    measurements.figures.insert("confirmations_lost", f64::from(confirms_lost));
    measurements.figures.insert("messages_lost", f64::from(messages_lost));
    Ok(())
}

impl ChaosCluster<'_> {
    /// Loses publisher confirms on a link, and the connection after the last one.
    async fn lose_confirms(&mut self, link: &str, count: u32) -> anyhow::Result<()> {
        let fault = self.evidence.begin_fault("drop-confirm", link, format!("{count} lost, then a reset"));
        let before = self.link(link)?.dropped();
        self.link(link)?.drop_confirms(count);
        self.wait_until("a lost publisher confirm", async |cluster| {
            Ok(cluster.link(link)?.dropped() >= before + u64::from(count))
        })
        .await?;
        self.evidence.end_fault(fault);
        Ok(())
    }

    /// Loses a message on a link, and the connection with it.
    async fn lose_publish(&mut self, link: &str) -> anyhow::Result<()> {
        let fault = self.evidence.begin_fault("lose-publish", link, "a reset with the message in flight".to_owned());
        let before = self.link(link)?.swallowed();
        self.link(link)?.lose_next_publish();
        self.wait_until("a lost message", async |cluster| Ok(cluster.link(link)?.swallowed() > before)).await?;
        self.evidence.end_fault(fault);
        Ok(())
    }

    /// Returns the number of occurrences whose message was delivered more than once.
    pub(super) fn duplicate_deliveries(&self) -> usize {
        let mut times = HashMap::<String, u32>::new();
        for link in &self.links {
            for (occurrence, count) in link.delivered() {
                *times.entry(occurrence).or_default() += count;
            }
        }
        times.values().filter(|count| **count > 1).count()
    }
}
