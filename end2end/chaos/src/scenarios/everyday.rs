//! The faults that every installation meets, one after the other on one cluster: the scenario that runs with every change.
//!
//! The faults are those of other scenarios, and so are the checker's limits, which apply to each fault alone. RabbitMQ is
//! killed last: its limits are the widest, and would excuse what is late after another fault.

use milvaion_test_support::private_service::ServiceKind;
use serde_json::{Value, json};

use super::{
    CLUSTER_END_SECONDS, CLUSTER_START_SECONDS, SHORT_COOL_DOWN_SECONDS, SHORT_WARM_UP_SECONDS, Scenario,
    ScenarioConfig, ScenarioMeasurements, ScenarioScript, SmokeRun, broker, database, random_seconds, redis_faults,
    servers, workers,
};
use crate::{
    cluster::ChaosCluster,
    evidence::now,
    harness::{self, ServiceHarness},
    workload::JobPlan,
};

/// The time in seconds after Redis was flushed. Workers hold back possible duplicates for 15 s, so the messages that the
/// next fault leaves are late by the rest of it.
const FLUSH_PAUSE_SECONDS: f64 = 6.0;
/// The longest time in seconds between a flush and the next dispatch.
const LONGEST_FLUSH_SECONDS: f64 = 4.5;
/// The number of publisher confirms that are lost, after which a message is lost too.
const CONFIRMS: u32 = 3;
/// The longest pause in seconds between two losses of confirms.
const CONFIRM_PAUSE_SECONDS: f64 = 0.6;
/// The longest time in seconds for which PostgreSQL or RabbitMQ is away, besides the time it takes to start.
const OUTAGE_SECONDS: f64 = 1.0;
/// The pause in seconds after each fault.
const PAUSE_SECONDS: f64 = 2.0;

/// The nominal duration of one run in seconds. It includes the start of the services, because this scenario is the first of
/// its set. For each fault it has the longest wait, or the usual duration in whole seconds of a wait for an event.
const NOMINAL_SECONDS: f64 = harness::START_SECONDS
    + CLUSTER_START_SECONDS
    + SHORT_WARM_UP_SECONDS
    + FLUSH_PAUSE_SECONDS
    // Leader: the lease of the killed one, and the restart.
    + (servers::LONGEST_TAKE_OVER_SECONDS + PAUSE_SECONDS)
    // Confirms: two connections and one message.
    + (4.0 + PAUSE_SECONDS)
    // Worker: the heartbeat timeout and the interval of the detection.
    + 17.0
    // PostgreSQL: its recovery and the first dispatch.
    + (OUTAGE_SECONDS + 7.0 + PAUSE_SECONDS)
    // RabbitMQ: its start and the backlog.
    + (OUTAGE_SECONDS + 11.0)
    + SHORT_COOL_DOWN_SECONDS
    + CLUSTER_END_SECONDS;

pub(super) const EVERYDAY_FAULTS: Scenario = Scenario {
    id: "everyday_faults",
    title: "Redis is flushed, the leader killed, confirms lost, a worker, PostgreSQL and RabbitMQ killed (count: rounds)",
    smoke: Some(SmokeRun { count: 1, nominal_seconds: NOMINAL_SECONDS }),
    short: 0,
    long: 0,
    run: |harness, config| Box::pin(everyday(harness, config)),
};

async fn everyday(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let limits = json!({"fault_limits": [
        limits_of("flush", "redis", redis_faults::flush_limits()),
        limits_of("kill", "server", servers::kill_limits()),
        limits_of("drop-confirm", "server", broker::loss_limits()),
        limits_of("lose-publish", "server", broker::loss_limits()),
        limits_of("kill", "worker", workers::kill_limits()),
        limits_of("kill", "postgres", database::kill_limits()),
        limits_of("kill", "rabbitmq", broker::kill_limits()),
    ]});
    let mut script = ScenarioScript::new("everyday_faults", limits);
    // Every worker has some of their runs at any time, so the kill of a worker hits at least one.
    script.more_jobs = vec![JobPlan::every("long", 1)];
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                for _ in 0..config.count {
                    flush(cluster, measurements).await?;
                    // The other server needs longer to lead, so the killed one starts when it does.
                    servers::kill_leader(cluster, measurements, 0.0).await?;
                    pause(cluster).await?;
                    broker::lose_confirms_and_messages(
                        cluster,
                        measurements,
                        CONFIRMS,
                        CONFIRMS,
                        CONFIRM_PAUSE_SECONDS,
                    )
                    .await?;
                    pause(cluster).await?;
                    kill_worker_and_database(cluster, measurements).await?;
                    pause(cluster).await?;
                    let outage_seconds = random_seconds(&mut cluster.random, 0.0, OUTAGE_SECONDS);
                    broker::kill_broker(cluster, measurements, outage_seconds).await?;
                }
                Ok(())
            },
        )
        .await
}

/// Returns limits as those for one kind of fault, of targets whose names begin with `target`.
fn limits_of(fault: &str, target: &str, mut limits: Value) -> Value {
    limits["fault"] = fault.into();
    limits["target"] = target.into();
    limits
}

/// Flushes Redis, and judges the time until the next dispatch.
async fn flush(cluster: &ChaosCluster<'_>, measurements: &mut ScenarioMeasurements) -> anyhow::Result<()> {
    let at = now();
    cluster.flush_redis().await?;
    let next = cluster.next_dispatch(at).await?;
    measurements.at_most("next_dispatch_after_flush_s", next, LONGEST_FLUSH_SECONDS);
    cluster.run_for((FLUSH_PAUSE_SECONDS - next).max(0.0)).await;
    cluster.wait_until_current().await
}

/// Kills a worker, and PostgreSQL when the worker's runs have started again. The worker starts while PostgreSQL is away.
async fn kill_worker_and_database(
    cluster: &mut ChaosCluster<'_>,
    measurements: &mut ScenarioMeasurements,
) -> anyhow::Result<()> {
    let (number, death) = workers::kill_busiest_worker(cluster, measurements).await?;
    let outage = cluster.kill_service(ServiceKind::Postgres).await?;
    cluster.workers[number].start().await?;
    cluster.evidence.end_fault(death);
    let outage_seconds = random_seconds(&mut cluster.random, 0.0, OUTAGE_SECONDS);
    cluster.run_for(outage_seconds).await;
    cluster.restart_service(ServiceKind::Postgres, outage).await?;
    database::await_dispatch(cluster, measurements).await
}

/// Lets everything run for a moment, and waits until every due run has started, so that the next fault hits no work that is
/// late because of this one: the checker judges each run by one fault.
async fn pause(cluster: &ChaosCluster<'_>) -> anyhow::Result<()> {
    cluster.run_for(PAUSE_SECONDS).await;
    cluster.wait_until_current().await?;
    cluster
        .wait_until("the start of every due run", async |cluster| {
            let waiting = "SELECT count(*) FROM runs WHERE status = 'queued' AND not_before IS NULL
                           AND scheduled_for < now() - interval '1 second'";
            Ok(sqlx::query_scalar::<_, i64>(waiting).fetch_one(&cluster.pool).await? == 0)
        })
        .await
}
