//! The final state of a scenario: waits until the system is idle, and reads it twice, from the database and from a
//! server's interface.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::Context;
use chrono::{DateTime, Utc};
use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
use milvaion_api::{
    page::{ListPage, MAX_PAGE_ROWS},
    views::OccurrenceRow,
};
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_test_support::http::metric;
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::Row;

use crate::{
    cluster::ChaosCluster,
    evidence::{now, status_name},
    workload::WORKER_ID,
};

/// The time open occurrences have to end after the last fault.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(120);
/// The time queues, outboxes and other leftovers have to become empty after that.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(15);

impl ChaosCluster<'_> {
    /// Disables all jobs, waits until the system is idle, and writes the final state as evidence. Returns the time from
    /// the last disabled job to the end of the last occurrence.
    pub(crate) async fn settle(&self) -> anyhow::Result<Duration> {
        // A dispatcher that never catches up leaves stuck or lost occurrences, which the checker reports.
        let _ = self.wait_until_current().await;
        // The jobs that are due at this moment get their occurrences before they are disabled.
        self.run_for(2.0).await;
        let cut = now();
        self.driver.retire_all().await?;
        let begun = tokio::time::Instant::now();
        while self.open_occurrences().await.unwrap_or(1) > 0 && begun.elapsed() < QUIESCE_TIMEOUT {
            self.run_for(0.2).await;
        }
        let took = begun.elapsed();
        let read = now();
        let leftovers = self.wait_for_cleanup().await?;
        self.record_enqueue_jobs().await?;
        self.read_database().await?;
        self.read_api().await?;
        self.evidence.write("leftovers.json", &leftovers)?;
        self.count_log_lines()?;
        self.write_run_json(cut, read)?;
        Ok(took)
    }

    /// Records the jobs that the servers keep for enqueued occurrences as lines of `jobs.jsonl`.
    async fn record_enqueue_jobs(&self) -> anyhow::Result<()> {
        let query = "SELECT job_id::text, job_type FROM declared_jobs WHERE worker_id = $1 AND name = ''";
        let jobs: Vec<(String, String)> = sqlx::query_as(query).bind(WORKER_ID).fetch_all(&self.pool).await?;
        for (job, job_type) in jobs {
            let line = json!({
                "job": job, "name": format!("{job_type}, enqueued"), "kind": "manual", "type": job_type,
                "max_retries": 0,
            });
            self.evidence.append("jobs.jsonl", &line);
        }
        Ok(())
    }

    /// Waits until nothing is left over, or until the time for that is over. Returns what is left over.
    async fn wait_for_cleanup(&self) -> anyhow::Result<Value> {
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
        let count = async |query: &'static str| -> anyhow::Result<i64> {
            Ok(sqlx::query_scalar(query).fetch_one(&self.pool).await?)
        };
        let mut outboxes = BTreeMap::new();
        for (name, port) in self.health_ports() {
            let waiting = match (
                metric(port, "milvaion_worker_reports_waiting").await,
                metric(port, "milvaion_worker_lines_waiting").await,
            ) {
                (Some(reports), Some(lines)) => reports + lines,
                // The outbox of a worker that does not respond cannot be counted; one row stands for it.
                _ => 1.0,
            };
            outboxes.insert(name, waiting as i64);
        }
        Ok(json!({
            "queues": self.queues().await?,
            "outboxes": outboxes,
            "unpublished": count("SELECT count(*) FROM runs WHERE publish_after IS NOT NULL").await?,
            "waits": count("SELECT count(*) FROM runs WHERE not_before IS NOT NULL").await?,
            "open_transactions": count(
                "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
            )
            .await?,
            "heard": self.streamed_ends(),
        }))
    }

    /// Returns the number of messages in each queue.
    pub(crate) async fn queues(&self) -> anyhow::Result<BTreeMap<String, u32>> {
        let mut names = vec![
            self.names.status(),
            self.names.logs(),
            self.names.registration(),
            self.names.claims(),
            self.names.ingest(),
            self.names.dead_letter_queue(),
        ];
        for kind in ["quick", "flaky", "failing", "panics", "long", "crasher", "obedient"] {
            names.push(self.names.job_queue(WORKER_ID, kind));
        }
        let connection = Connection::connect(self.harness.rabbitmq.url(), ConnectionProperties::default()).await?;
        let mut depths = BTreeMap::new();
        for name in names {
            let channel = connection.create_channel().await?;
            let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let queue = channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await;
            let queue = queue.with_context(|| format!("the queue {name} does not exist"))?;
            depths.insert(name, queue.message_count());
        }
        // Closing may report an error for a channel that is just being closed; the connection ends all the same.
        let _ = connection.close(200, "read".into()).await;
        Ok(depths)
    }

    /// Returns the number of servers that receive new occurrences.
    pub(crate) async fn ingest_consumers(&self) -> anyhow::Result<u32> {
        let connection = Connection::connect(self.harness.rabbitmq.url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(self.names.ingest().as_str().into(), options, FieldTable::default()).await?;
        let consumers = queue.consumer_count();
        let _ = connection.close(200, "read".into()).await;
        Ok(consumers)
    }

    /// Reads the occurrences from the database, past every server, into `sql.jsonl`.
    async fn read_database(&self) -> anyhow::Result<()> {
        let query = "SELECT o.id::text AS id, o.job_id::text AS job_id, o.scheduled_for, o.trigger, o.attempt,
                            (array_position(enum_range(NULL::run_status), o.status) - 1)::smallint AS status,
                            o.started_at, o.ended_at, o.note, o.instance_id, o.created_at, o.failures::int8 AS failures,
                            (SELECT count(*) FROM late_starts l
                              WHERE l.run_id = o.id AND NOT l.is_after_end) AS duplicate_starts, o.status_changes, k.key,
                            o.parent_id::text AS parent_id
                       FROM occurrences o LEFT JOIN trigger_keys k ON k.occurrence_id = o.id
                      ORDER BY o.id";
        for row in sqlx::query(query).fetch_all(&self.pool).await? {
            let changes: Value = row.try_get("status_changes")?;
            let changes = changes
                .as_array()
                .context("status_changes is not a list")?
                .iter()
                .map(change)
                .collect::<Option<Vec<_>>>();
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
                "parent": row.try_get::<Option<String>, _>("parent_id")?,
                "changes": changes.context("an entry of status_changes cannot be parsed")?,
            });
            self.evidence.append("sql.jsonl", &line);
        }
        Ok(())
    }

    /// Reads the occurrences from a server, page by page as a browser does, into `api.jsonl`.
    async fn read_api(&self) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct OccurrenceListRequest {
            filter: OccurrenceListFilter,
        }
        // Members that are left out have their defaults; an empty one would be a value.
        #[derive(Serialize)]
        struct OccurrenceListFilter {
            limit: u32,
            #[serde(skip_serializing_if = "Option::is_none")]
            before: Option<String>,
        }
        let server = self.servers.iter().position(|server| server.is_running()).context("no server runs")?;
        let mut before = None;
        loop {
            let request = OccurrenceListRequest { filter: OccurrenceListFilter { limit: MAX_PAGE_ROWS, before } };
            let page: ListPage<OccurrenceRow> =
                serde_json::from_value(self.driver.api.get(server, "occurrences", &request).await?)?;
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

    /// Counts the warnings and errors that each server logged in each second, by message, into `loglines.jsonl`.
    fn count_log_lines(&self) -> anyhow::Result<()> {
        for process in &self.servers {
            let mut counts = BTreeMap::<(String, i64), u64>::new();
            for line in fs::read_to_string(process.log())?.lines() {
                let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
                if !matches!(line["level"].as_str(), Some("WARN" | "ERROR")) {
                    continue;
                }
                let second = line["timestamp"].as_str().and_then(|text| text.parse::<DateTime<Utc>>().ok());
                let message = line["fields"]["message"].as_str().unwrap_or_default().to_owned();
                *counts.entry((message, second.map_or(0, |at| at.timestamp()))).or_default() += 1;
            }
            for ((message, second), lines) in counts {
                let line = json!({"process": process.name(), "loop": message, "second": second, "lines": lines});
                self.evidence.append("loglines.jsonl", &line);
            }
        }
        Ok(())
    }
}

fn status(code: i16) -> anyhow::Result<&'static str> {
    OccurrenceStatus::from_code(code).map(status_name).with_context(|| format!("there is no status {code}"))
}

fn micros(at: DateTime<Utc>) -> i64 {
    at.timestamp_micros()
}

/// Returns an entry of `status_changes` as an entry of `changes`, or none if it cannot be parsed.
fn change(step: &Value) -> Option<Value> {
    let code = i16::try_from(step["status"].as_i64()?).ok()?;
    let at: DateTime<Utc> = step["at"].as_str()?.parse().ok()?;
    Some(json!({
        "status": status(code).ok()?, "at": micros(at), "attempt": step["attempt"], "by": step["by"],
        "note": step["note"],
    }))
}
