//! Faults while a program enqueues: no occurrence that it got confirmed may be missing, run twice, or lose its parent.

use std::time::Duration;

use milvaion_test_support::private_service::ServiceKind;
use serde_json::json;
use tokio::time::Instant;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript};
use crate::{
    cluster::ChaosCluster,
    enqueuer::{Awaited, Enqueuer},
    harness::ServiceHarness,
};

/// The delay of every tenth occurrence of a bulk.
const DELAY: Duration = Duration::from_secs(8);
/// The time in seconds from an enqueued message to its answer if a server dies meanwhile and the broker gives the message
/// to another one at once. The client itself would publish it again after ten.
const REDELIVERED_ANSWER_SECONDS: f64 = 5.0;
/// The number of occurrences in each message of `enqueue_redelivered`.
const MESSAGE_OCCURRENCES: usize = 50;
/// The number of messages until the armed server has certainly received one; two servers take them in turn.
const MAX_MESSAGES: usize = 40;

pub(super) const ENQUEUE_REDELIVERED: Scenario = Scenario {
    id: "enqueue_redelivered",
    title: "A server dies between the commit of new occurrences and the answer (count: number of deaths)",
    smoke: None,
    short: 2,
    long: 10,
    run: |harness, config| Box::pin(redelivered(harness, config)),
};

async fn redelivered(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    // A user's request that meets a dying server is repeated at the other one, and counts from the first attempt.
    let limits = json!({"allowance_ms": 20_000, "dispatch_allowance_ms": 20_000, "orphan_ms": null});
    ScenarioScript::new("enqueue_redelivered", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let enqueuer = cluster.enqueuer()?;
                let mut deaths = 0;
                for round in 0..config.count {
                    deaths +=
                        usize::from(die_after_commit(cluster, &enqueuer, (round % 2) as usize, measurements).await?);
                }
                measurements.at_least("deaths", deaths as f64, f64::from(config.count));
                Ok(())
            },
        )
        .await
}

/// Arms a server and enqueues until it has died, then starts it again. Returns true if it died.
async fn die_after_commit(
    cluster: &mut ChaosCluster<'_>,
    enqueuer: &Enqueuer,
    number: usize,
    measurements: &mut ScenarioMeasurements,
) -> anyhow::Result<bool> {
    let name = cluster.servers[number].name().to_owned();
    let arming = cluster.evidence.begin_fault("terminate", name.as_str(), "to be armed with enqueue.after_commit");
    cluster.servers[number].terminate().await?;
    cluster.servers[number].start_armed("enqueue.after_commit=return").await?;
    cluster.evidence.end_fault(arming);
    let fault = cluster.evidence.begin_fault("crash-point", name.as_str(), "enqueue.after_commit");
    cluster
        .wait_until("two consumers of new occurrences", async |cluster| Ok(cluster.ingest_consumers().await? >= 2))
        .await?;
    for _ in 0..MAX_MESSAGES {
        let begun = Instant::now();
        enqueuer.enqueue(Enqueuer::occurrences(MESSAGE_OCCURRENCES, DELAY)?, Awaited::Answer).await?;
        measurements.at_most("answer_s", begun.elapsed().as_secs_f64(), REDELIVERED_ANSWER_SECONDS);
        if cluster.servers[number].has_ended() {
            break;
        }
    }
    let has_died = cluster.servers[number].has_ended();
    if has_died {
        cluster.servers[number].ended().await?;
    } else {
        cluster.servers[number].terminate().await?;
    }
    cluster.servers[number].start().await?;
    cluster.evidence.end_fault(fault);
    cluster.wait_for_leader().await?;
    cluster.wait_until_current().await?;
    Ok(has_died)
}

pub(super) const ENQUEUE_FAULTS: Scenario = Scenario {
    id: "enqueue_faults",
    title: "Servers, RabbitMQ, Redis or the connection fail while thousands are enqueued (count: number of bulks)",
    smoke: None,
    short: 0,
    long: 8,
    run: |harness, config| Box::pin(bulks(harness, config)),
};

async fn bulks(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    // The bulk is a backlog of its own, behind which everything else waits.
    let limits = json!({
        "allowance_ms": null, "dispatch_allowance_ms": 20_000, "recovery_ms": 20_000, "orphan_ms": null,
    });
    ScenarioScript::new("enqueue_faults", limits)
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let size = config.either(4_000.0, 6_000.0) as usize;
                for round in 0..config.count {
                    let load = cluster.evidence.begin_fault("load", "client-1", format!("{size} occurrences"));
                    let (before, _) = cluster.enqueued().await?;
                    let (published, answered) = (cluster.enqueuer()?, cluster.enqueuer()?);
                    // The client repeats what is not answered, so only what the broker has confirmed can be lost.
                    let first = Enqueuer::occurrences(size / 4 * 3, DELAY)?;
                    let second = Enqueuer::occurrences(size / 4, DELAY)?;
                    let begun = Instant::now();
                    let bulk = tokio::spawn(async move {
                        tokio::try_join!(
                            published.enqueue(first, Awaited::Confirm),
                            answered.enqueue(second, Awaited::Answer)
                        )
                    });
                    cluster
                        .wait_until("the first of a bulk", async |cluster| Ok(cluster.enqueued().await?.0 > before))
                        .await?;
                    inject(cluster, round).await?;
                    bulk.await??;
                    measurements.at_most("bulk_s", begun.elapsed().as_secs_f64(), 60.0);
                    let ended = cluster
                        .wait_until("the end of the bulk", async |cluster| {
                            let (all, open) = cluster.enqueued().await?;
                            Ok(open == 0 && all >= before + i64::try_from(size)?)
                        })
                        .await;
                    // A lost occurrence never ends. The checker names it, so the scenario goes on.
                    measurements.at_least("ended", f64::from(u8::from(ended.is_ok())), 1.0);
                    measurements.at_most("drained_s", begun.elapsed().as_secs_f64(), 120.0);
                    cluster.evidence.end_fault(load);
                }
                Ok(())
            },
        )
        .await
}

/// Injects the fault of a round: servers, broker, Redis, or the connection of the program.
async fn inject(cluster: &mut ChaosCluster<'_>, round: u32) -> anyhow::Result<()> {
    match round % 4 {
        0 => {
            let mut faults = Vec::new();
            for server in &mut cluster.servers {
                faults.push(cluster.evidence.begin_fault("kill", server.name(), "SIGKILL, both of them"));
                server.kill().await?;
            }
            cluster.run_for(1.0).await;
            for (server, fault) in cluster.servers.iter_mut().zip(faults) {
                server.start().await?;
                cluster.evidence.end_fault(fault);
            }
        }
        1 => cluster.crash(ServiceKind::RabbitMq, 3.0).await?,
        2 => {
            for _ in 0..3 {
                cluster.flush_redis().await?;
                cluster.run_for(0.7).await;
            }
        }
        _ => {
            for _ in 0..5 {
                cluster.evidence.record_fault("cut", "client-1>rabbitmq", "every connection once");
                cluster.link("client-1>rabbitmq")?.cut();
                cluster.run_for(0.3).await;
            }
        }
    }
    Ok(())
}
