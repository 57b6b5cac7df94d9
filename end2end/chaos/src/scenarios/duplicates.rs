//! Duplicate deliveries, and reports that are replayed long after.

use anyhow::ensure;
use rand::seq::SliceRandom;
use serde_json::json;

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioScript};
use crate::{cluster::ChaosCluster, harness::ServiceHarness, tap::ExchangeTap, workload::JobPlan};

pub(super) const MESSAGES_DUPLICATED: Scenario = Scenario {
    id: "messages_duplicated",
    title: "Every message is published three more times (count: periods of 10 s)",
    smoke: None,
    short: 1,
    long: 6,
    run: |harness, config| Box::pin(doubled(harness, config)),
};

async fn doubled(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    ScenarioScript::new("messages_duplicated", json!({"slo_ms": 3_000}))
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let exchanges = [(cluster.names.jobs_exchange(), "#")];
                let tap = ExchangeTap::open(cluster.harness.rabbitmq.url(), &exchanges, 3).await?;
                let fault = cluster.evidence.begin_fault("copy", "rabbitmq", "each message three more times");
                cluster.run_for(f64::from(config.count) * 10.0).await;
                tap.stop_copying();
                cluster.evidence.end_fault(fault);
                cluster.run_for(2.0).await;
                let messages = tap.messages().len();
                tap.close().await?;
                measurements.figures.insert("messages", messages as f64);
                measurements.at_least("copies_delivered", cluster.duplicate_deliveries() as f64, messages as f64 / 2.0);
                Ok(())
            },
        )
        .await
}

pub(super) const REPORTS_REPLAYED: Scenario = Scenario {
    id: "reports_replayed",
    title: "Every report and log line is replayed three times in random order (count: periods of 10 s)",
    smoke: None,
    short: 0,
    long: 3,
    run: |harness, config| Box::pin(replayed(harness, config)),
};

async fn replayed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<super::ScenarioResult> {
    let mut script = ScenarioScript::new("reports_replayed", json!({"slo_ms": 3_000}));
    // Their second attempts run while the reports of the first ones are replayed.
    script.more_jobs = vec![JobPlan::every("flaky", 1).with_duration_ms(6_000)];
    script
        .run(
            harness,
            config,
            async |cluster: &mut ChaosCluster<'_>, config: &ScenarioConfig, measurements: &mut ScenarioMeasurements| {
                let (status, logs) = (cluster.names.status(), cluster.names.logs());
                let exchanges = [(status.clone(), status.as_str()), (logs.clone(), logs.as_str())];
                let tap = ExchangeTap::open(cluster.harness.rabbitmq.url(), &exchanges, 0).await?;
                cluster.run_for(f64::from(config.count) * 10.0).await;
                // The rows of ended occurrences must not change while their reports are replayed.
                let before = cluster.ended_rows().await?;
                let mut messages: Vec<_> = std::iter::repeat_n(tap.messages(), 3).flatten().collect();
                messages.shuffle(&mut cluster.random);
                let fault = cluster.evidence.begin_fault("replay", "rabbitmq", format!("{} messages", messages.len()));
                for message in &messages {
                    tap.replay(message).await?;
                }
                cluster
                    .wait_until("empty queues after the replay", async |cluster| {
                        Ok(cluster.queued_messages().await? == 0)
                    })
                    .await?;
                cluster.run_for(2.0).await;
                cluster.evidence.end_fault(fault);
                let after = cluster.ended_rows().await?;
                let changed = before.iter().filter(|row| !after.contains(*row)).count();
                tap.close().await?;
                measurements.figures.insert("messages_replayed", messages.len() as f64);
                measurements.figures.insert("rows_compared", before.len() as f64);
                measurements.at_most("rows_changed", changed as f64, 0.0);
                ensure!(!before.is_empty(), "no occurrence had ended before the replay");
                Ok(())
            },
        )
        .await
}

impl ChaosCluster<'_> {
    /// Returns the rows of the occurrences that have ended, each with its number of log lines.
    async fn ended_rows(&self) -> anyhow::Result<std::collections::HashSet<String>> {
        let query = "SELECT to_jsonb(o)::text || ' ' ||
                            (SELECT count(DISTINCT l.seq) FROM occurrence_logs l WHERE l.occurrence_id = o.id)::text
                       FROM occurrences o WHERE o.status IN ('completed', 'failed', 'cancelled', 'timed-out') AND o.ended_at < now() - interval '3 seconds'";
        Ok(sqlx::query_scalar::<_, String>(query).fetch_all(&self.pool).await?.into_iter().collect())
    }

    async fn queued_messages(&self) -> anyhow::Result<u32> {
        Ok(self.queues().await?.values().sum())
    }
}
