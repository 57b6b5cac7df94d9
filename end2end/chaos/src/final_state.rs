//! The end of a scenario: everything comes to rest, and what there is then is read twice, from the database and from a
//! server's own interface.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::Context;
use chrono::{DateTime, Utc};
use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
use milvaion_api::{
    page::{ListPage, MAX_PAGE_ROWS},
    views::OccurrenceRow,
};
use milvaion_protocol::status::OccurrenceStatus;
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::Row;

use crate::{
    cluster::{ChaosCluster, metric},
    evidence::now,
    workload::WORKER_ID,
};

/// How long what is open may take to end after the last fault.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long what lies around may take to be put away after that.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(15);

impl ChaosCluster<'_> {
    /// Takes all jobs out of the schedule, waits until everything has come to rest, and reads what there is. Returns how
    /// long the rest took to come.
    pub(crate) async fn settle(&self) -> anyhow::Result<Duration> {
        // What never comes up to date is stuck or lost, which is for the checker to say.
        let _ = self.wait_until_current().await;
        // What is due right now is to be fired before its job is taken out.
        self.run_for(2.0).await;
        let cut = now();
        self.driver.retire_all().await?;
        let begun = tokio::time::Instant::now();
        while self.open_occurrences().await.unwrap_or(1) > 0 && begun.elapsed() < QUIESCE_TIMEOUT {
            self.run_for(0.2).await;
        }
        let took = begun.elapsed();
        let read = now();
        let leftovers = self.tidy().await?;
        self.read_database().await?;
        self.read_interface().await?;
        self.evidence.write("leftovers.json", &leftovers)?;
        self.loudness()?;
        self.write_run_json(cut, read)?;
        Ok(took)
    }

    /// Waits until nothing lies around, or for as long as that may take.
    async fn tidy(&self) -> anyhow::Result<Value> {
        let begun = tokio::time::Instant::now();
        loop {
            let leftovers = self.leftovers().await?;
            let sum: i64 = ["queues", "outboxes"]
                .iter()
                .filter_map(|name| leftovers[name].as_object())
                .flat_map(|counts| counts.values().filter_map(Value::as_i64))
                .chain(["unpublished", "waits", "open_transactions"].iter().filter_map(|name| leftovers[name].as_i64()))
                .sum();
            if sum == 0 || begun.elapsed() > CLEANUP_TIMEOUT {
                return Ok(leftovers);
            }
            self.run_for(0.3).await;
        }
    }

    async fn leftovers(&self) -> anyhow::Result<Value> {
        let count = async |what: &'static str| -> anyhow::Result<i64> {
            Ok(sqlx::query_scalar(what).fetch_one(&self.pool).await?)
        };
        let mut outboxes = BTreeMap::new();
        for (name, port) in self.health_ports() {
            let waiting = match (
                metric(port, "milvaion_worker_reports_waiting").await,
                metric(port, "milvaion_worker_lines_waiting").await,
            ) {
                (Some(reports), Some(lines)) => reports + lines,
                // What lies in the outbox of one that does not answer nobody can count, but it is not nothing.
                _ => 1.0,
            };
            outboxes.insert(name, waiting as i64);
        }
        Ok(json!({
            "queues": self.queues().await?,
            "outboxes": outboxes,
            "unpublished": count("SELECT count(*) FROM occurrences WHERE published_at IS NULL AND status = 0").await?,
            "waits": count("SELECT count(*) FROM waits").await?,
            "open_transactions": count(
                "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
            )
            .await?,
            "heard": self.streamed_ends(),
        }))
    }

    /// How many messages lie in each queue.
    pub(crate) async fn queues(&self) -> anyhow::Result<BTreeMap<String, u32>> {
        let mut names = vec![
            self.names.status(),
            self.names.logs(),
            self.names.registration(),
            self.names.claims(),
            self.names.dead_letter_queue(),
        ];
        for kind in ["quick", "flaky", "failing", "panics", "long", "crasher", "obedient"] {
            names.push(self.names.job_queue(WORKER_ID, kind));
        }
        let connection = Connection::connect(self.harness.rabbitmq.url(), ConnectionProperties::default()).await?;
        let mut depths = BTreeMap::new();
        for name in names {
            let channel = connection.create_channel().await?;
            let look = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let queue = channel.queue_declare(name.as_str().into(), look, FieldTable::default()).await;
            let queue = queue.with_context(|| format!("the queue {name} cannot be asked"))?;
            depths.insert(name, queue.message_count());
        }
        // A channel that is just being closed by its end of life is taken for an error; the connection ends all the same.
        let _ = connection.close(200, "read".into()).await;
        Ok(depths)
    }

    /// What the database holds, past every server.
    async fn read_database(&self) -> anyhow::Result<()> {
        let query =
            "SELECT o.id::text AS id, o.job_id::text AS job_id, o.scheduled_for, o.trigger, o.status, o.attempt,
                            o.started_at, o.ended_at, o.note, o.instance_id, o.created_at, o.failures::int8 AS failures,
                            o.duplicate_starts::int8 AS duplicate_starts, o.status_changes, k.key
                       FROM occurrences o LEFT JOIN trigger_keys k ON k.occurrence_id = o.id
                      ORDER BY o.id";
        for row in sqlx::query(query).fetch_all(&self.pool).await? {
            let changes: Value = row.try_get("status_changes")?;
            let changes =
                changes.as_array().context("a life is a list")?.iter().map(change).collect::<Option<Vec<_>>>();
            let line = json!({
                "occurrence": row.try_get::<String, _>("id")?,
                "job": row.try_get::<String, _>("job_id")?,
                "scheduled_for": micros(row.try_get("scheduled_for")?),
                "trigger": row.try_get::<String, _>("trigger")?,
                "status": status(row.try_get("status")?)?,
                "attempt": row.try_get::<i32, _>("attempt")?,
                "started_at": row.try_get::<Option<DateTime<Utc>>, _>("started_at")?.map(micros),
                "ended_at": row.try_get::<Option<DateTime<Utc>>, _>("ended_at")?.map(micros),
                "note": row.try_get::<Option<String>, _>("note")?,
                "instance": row.try_get::<Option<String>, _>("instance_id")?,
                "created_at": micros(row.try_get("created_at")?),
                "failures": row.try_get::<i64, _>("failures")?,
                "duplicate_starts": row.try_get::<i64, _>("duplicate_starts")?,
                "trigger_key": row.try_get::<Option<String>, _>("key")?,
                "changes": changes.context("a step of a life cannot be read")?,
            });
            self.evidence.append("sql.jsonl", &line);
        }
        Ok(())
    }

    /// What a server says, page by page, as a browser asks.
    async fn read_interface(&self) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct OccurrenceListRequest {
            filter: OccurrenceListFilter,
        }
        // Left-out members are defaults; an empty one would be a value.
        #[derive(Serialize)]
        struct OccurrenceListFilter {
            limit: u32,
            #[serde(skip_serializing_if = "Option::is_none")]
            before: Option<String>,
        }
        let server = self.servers.iter().position(|server| server.is_running()).context("no server runs")?;
        let mut before = None;
        loop {
            let ask = OccurrenceListRequest { filter: OccurrenceListFilter { limit: MAX_PAGE_ROWS, before } };
            let page: ListPage<OccurrenceRow> =
                serde_json::from_value(self.driver.api.get(server, "occurrences", &ask).await?)?;
            for row in &page.rows {
                let line = json!({
                    "occurrence": row.id, "job": row.job_id, "scheduled_for": micros(row.scheduled_for),
                    "trigger": row.trigger.as_str(), "status": status_name(row.status), "attempt": row.attempt,
                    "started_at": row.started_at.map(micros), "ended_at": row.ended_at.map(micros), "note": row.note,
                    "instance": row.instance_id,
                });
                self.evidence.append("api.jsonl", &line);
            }
            match page.next {
                Some(next) => before = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// How many warnings and errors each process wrote in each second, by what they say.
    fn loudness(&self) -> anyhow::Result<()> {
        for process in &self.servers {
            let mut counts = BTreeMap::<(String, i64), u64>::new();
            for line in fs::read_to_string(process.log())?.lines() {
                let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
                if !matches!(line["level"].as_str(), Some("WARN" | "ERROR")) {
                    continue;
                }
                let second = line["timestamp"].as_str().and_then(|text| text.parse::<DateTime<Utc>>().ok());
                let said = line["fields"]["message"].as_str().unwrap_or_default().to_owned();
                *counts.entry((said, second.map_or(0, |at| at.timestamp()))).or_default() += 1;
            }
            for ((said, second), lines) in counts {
                let line = json!({"process": process.name(), "loop": said, "second": second, "lines": lines});
                self.evidence.append("loglines.jsonl", &line);
            }
        }
        Ok(())
    }
}

/// A status as evidence names it.
pub(crate) fn status_name(status: OccurrenceStatus) -> &'static str {
    match status {
        OccurrenceStatus::Queued => "queued",
        OccurrenceStatus::Running => "running",
        OccurrenceStatus::Completed => "completed",
        OccurrenceStatus::Failed => "failed",
        OccurrenceStatus::Cancelled => "cancelled",
        OccurrenceStatus::TimedOut => "timed-out",
        OccurrenceStatus::Unknown => "unknown",
        OccurrenceStatus::Skipped => "skipped",
    }
}

fn status(code: i16) -> anyhow::Result<&'static str> {
    OccurrenceStatus::from_code(code).map(status_name).with_context(|| format!("there is no status {code}"))
}

fn micros(at: DateTime<Utc>) -> i64 {
    at.timestamp_micros()
}

fn change(step: &Value) -> Option<Value> {
    let code = i16::try_from(step["status"].as_i64()?).ok()?;
    let at: DateTime<Utc> = step["at"].as_str()?.parse().ok()?;
    Some(json!({
        "status": status(code).ok()?, "at": micros(at), "attempt": step["attempt"], "by": step["by"], "note": step["note"],
    }))
}
