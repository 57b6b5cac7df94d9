//! The dispatch of due jobs: the most frequent statement, and the one in which an error would lose or duplicate runs.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store, StoreError, delayed::queued_occurrence, occurrences::status, rules::rules_in};
use crate::{domain::message::QueuedOccurrence, faults};
use milvaion_schedule::due::DueAction;

/// A due job with the fields that its message needs.
#[derive(Clone, Debug)]
pub struct DueJob {
    /// Identifier.
    pub id: JobId,
    /// Display name.
    pub display_name: String,
    /// The worker it is addressed to.
    pub worker_id: String,
    /// The job type it runs.
    pub job_type: String,
    /// Its input.
    pub job_data: Value,
    /// Schedule; none if this version cannot read it.
    pub schedule: Option<Schedule>,
    /// The due time that was read: the expected value of the compare-and-swap.
    pub next_fire_at: DateTime<Utc>,
    /// The job's rules.
    pub rules: Rules,
    /// The version of the definition that was read.
    pub version: i32,
    /// Priority, from 1 (idle) to 5 (critical).
    pub priority: i16,
    /// Run timeout in seconds; none means the job type's default.
    pub timeout_seconds: Option<i32>,
}

/// A scheduled occurrence to insert, with the move of its job's due time.
#[derive(Clone, Debug)]
pub struct NewScheduledRun {
    /// The job.
    pub job_id: JobId,
    /// The job's version as it was read.
    pub version: i32,
    /// The job's due time as it was read, which is also the due time of the occurrence.
    pub due: DateTime<Utc>,
    /// The job's next due time.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Identifier of the occurrence.
    pub occurrence_id: OccurrenceId,
    /// The decision to run or to skip it.
    pub action: DueAction,
    /// Reason for a skip, or the misfires that the occurrence stands for.
    pub note: Option<String>,
}

/// A scheduled occurrence that was inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledRunResult {
    /// Identifier.
    pub id: OccurrenceId,
    /// Queued or Skipped.
    pub status: OccurrenceStatus,
    /// True if it is queued and waits for a slot.
    pub is_held: bool,
    /// Reason for a skip.
    pub note: Option<String>,
}

impl Store {
    /// Returns at most `limit` jobs due at `now`, by descending priority, then longest overdue first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn due_jobs(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<DueJob>> {
        // One index probe for each priority, as many as it takes to fill the batch: sorting all due jobs would take
        // longer the longer the backlog is.
        let rows = sqlx::query!(
            r#"SELECT j.id, j.display_name, j.worker_id, j.job_type, j.job_data, j.schedule, j.next_fire_at AS "next_fire_at!",
                      j.version, j.priority, j.timeout_seconds, j.start_at, j.end_at, j.jitter_seconds, j.calendars,
                      j.blackout, j.misfire_policy, j.catch_up_limit, j.catch_up_window_seconds, j.overlap_policy,
                      j.max_concurrent, j.concurrency_key, j.concurrency_key_limit, j.max_retries,
                      j.base_retry_delay_seconds, j.retry_jitter_percent, j.heartbeat_timeout_seconds, j.on_lost,
                      j.auto_disable
                 FROM (VALUES (5::smallint), (4), (3), (2), (1)) AS p (priority)
                CROSS JOIN LATERAL (
                      SELECT * FROM jobs
                       WHERE priority = p.priority AND next_fire_at IS NOT NULL AND next_fire_at <= $1
                       ORDER BY next_fire_at LIMIT $2) j
                LIMIT $2"#,
            now,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| DueJob {
                id: JobId(row.id),
                display_name: row.display_name,
                worker_id: row.worker_id,
                job_type: row.job_type,
                job_data: row.job_data,
                schedule: serde_json::from_value(row.schedule).ok(),
                next_fire_at: row.next_fire_at,
                version: row.version,
                priority: row.priority,
                timeout_seconds: row.timeout_seconds,
                rules: rules_in!(row),
            })
            .collect())
    }

    /// Dispatches jobs: moves each job's due time by compare-and-swap and inserts its occurrence, all or nothing.
    /// Returns the inserted occurrences; a job that was dispatched, edited or paused meanwhile is not included. Inserts
    /// nothing while the cluster is paused, nor for a leader whose `epoch` is no longer the newest.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then nothing was dispatched.
    pub async fn create_scheduled_runs(
        &self,
        runs: &[NewScheduledRun],
        epoch: Option<i64>,
        now: DateTime<Utc>,
    ) -> Result<Vec<ScheduledRunResult>> {
        let jobs: Vec<Uuid> = runs.iter().map(|run| run.job_id.0).collect();
        let versions: Vec<i32> = runs.iter().map(|run| run.version).collect();
        let due: Vec<DateTime<Utc>> = runs.iter().map(|run| run.due).collect();
        let next: Vec<Option<DateTime<Utc>>> = runs.iter().map(|run| run.next_fire_at).collect();
        let ids: Vec<Uuid> = runs.iter().map(|run| run.occurrence_id.0).collect();
        let created: Vec<DateTime<Utc>> = runs.iter().map(|run| run.occurrence_id.created_at()).collect();
        let skipped: Vec<bool> = runs.iter().map(|run| run.action == DueAction::Skip).collect();
        let notes: Vec<Option<String>> = runs.iter().map(|run| run.note.clone()).collect();
        if faults::is_sabotaged("skip_compare_and_swap") {
            self.restore_due_times(&jobs, &versions, &due).await?;
        }
        let rows = sqlx::query_file!(
            "src/store/fire.sql",
            &jobs,
            &versions,
            &due,
            &next as &[Option<DateTime<Utc>>],
            &ids,
            &created,
            &skipped,
            &notes as &[Option<String>],
            now,
            epoch,
            due.iter().min(),
            due.iter().max()
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(ScheduledRunResult {
                    id: OccurrenceId(row.id),
                    status: status(row.status)?,
                    is_held: row.is_held,
                    note: row.note,
                })
            })
            .collect()
    }

    /// Writes back the due times that were read, so that every compare matches. A test injects this fault
    /// (`skip_compare_and_swap`).
    async fn restore_due_times(&self, jobs: &[Uuid], versions: &[i32], due: &[DateTime<Utc>]) -> Result<()> {
        sqlx::query(
            "UPDATE jobs j SET next_fire_at = w.due
               FROM unnest($1::uuid[], $2::int[], $3::timestamptz[]) AS w (id, version, due)
              WHERE j.id = w.id AND j.version = w.version AND j.is_active AND j.next_fire_at IS DISTINCT FROM w.due",
        )
        .bind(jobs.to_vec())
        .bind(versions.to_vec())
        .bind(due.to_vec())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Marks occurrences as confirmed by the broker, each only if it is still in the attempt whose message was
    /// confirmed.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then the messages are published again, which is harmless.
    pub async fn mark_published(&self, sent: &[(OccurrenceId, i32)], now: DateTime<Utc>) -> Result<u64> {
        let created: Vec<DateTime<Utc>> = sent.iter().map(|(id, _)| id.created_at()).collect();
        let ids: Vec<Uuid> = sent.iter().map(|(id, _)| id.0).collect();
        let attempts: Vec<i32> = sent.iter().map(|(_, attempt)| *attempt).collect();
        let oldest = created.iter().min().copied().unwrap_or(now);
        let newest = created.iter().max().copied().unwrap_or(now);
        // A row that a report has locked is skipped, because the report marks it. The condition on `p` is explained in
        // `apply.sql`.
        let result = sqlx::query!(
            "WITH p AS (
                SELECT l.* FROM unnest($1::uuid[], $2::timestamptz[], $6::int[]) AS p (id, created_at, attempt)
                 CROSS JOIN LATERAL (
                    SELECT o.id, o.created_at FROM occurrences o
                     WHERE o.id = p.id AND o.created_at = p.created_at AND o.attempt = p.attempt AND o.published_at IS NULL
                       AND o.created_at BETWEEN $4 AND $5
                       FOR UPDATE SKIP LOCKED) l
             )
             UPDATE occurrences o SET published_at = $3 FROM p
              WHERE o.id = p.id AND o.created_at = p.created_at AND o.created_at BETWEEN $4 AND $5
                AND p.created_at BETWEEN $4 AND $5",
            &ids,
            &created,
            now,
            oldest,
            newest,
            &attempts
        )
        .execute(self.pool())
        .await?;
        if !sent.is_empty() {
            faults::crash_point("publisher.after_mark");
        }
        Ok(result.rows_affected())
    }

    /// Returns unsent occurrences, which are queued and whose message was never confirmed: those created before
    /// `before` and those in `known_unsent`, oldest first. While the cluster is paused, returns only manual runs and
    /// retries, because a user may have forced them.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn unsent_occurrences(
        &self,
        before: DateTime<Utc>,
        known_unsent: &[OccurrenceId],
        limit: i64,
    ) -> Result<Vec<QueuedOccurrence>> {
        let known_unsent: Vec<Uuid> = known_unsent.iter().map(|id| id.0).collect();
        let rows = sqlx::query!(
            "SELECT id, job_id, job_name, worker_id, job_type, job_data, scheduled_for, attempt, failures, max_retries,
                    priority, timeout_seconds
               FROM occurrences
              WHERE published_at IS NULL AND status = 0 AND NOT is_held AND (created_at < $1 OR id = ANY($3))
                AND (trigger <> 'schedule' OR NOT EXISTS (SELECT 1 FROM cluster_pause))
              ORDER BY created_at
              LIMIT $2",
            before,
            limit,
            &known_unsent
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| queued_occurrence!(row)).collect())
    }

    /// Returns the ids and due times of the next `limit` active jobs after `after`, in the order of ids. The due index
    /// is rebuilt from them.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn schedule_slice(&self, after: JobId, limit: i64) -> Result<Vec<(JobId, DateTime<Utc>)>> {
        let rows = sqlx::query!(
            r#"SELECT id, next_fire_at AS "at!" FROM jobs WHERE next_fire_at IS NOT NULL AND id > $1 ORDER BY id LIMIT $2"#,
            after.0,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.at)).collect())
    }

    /// Returns the stored due times of some jobs; jobs without a due time are not included.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn due_times(&self, ids: &[Uuid]) -> Result<Vec<(JobId, DateTime<Utc>)>> {
        let rows = sqlx::query!(
            r#"SELECT id, next_fire_at AS "at!" FROM jobs WHERE id = ANY($1) AND next_fire_at IS NOT NULL"#,
            ids
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.at)).collect())
    }

    /// Returns the earliest due time of all jobs.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn earliest_due_time(&self) -> Result<Option<DateTime<Utc>>> {
        Ok(sqlx::query_scalar!(
            "SELECT min(e.next_fire_at)
               FROM (VALUES (5::smallint), (4), (3), (2), (1)) AS p (priority)
              CROSS JOIN LATERAL (SELECT next_fire_at FROM jobs WHERE priority = p.priority AND next_fire_at IS NOT NULL
                                   ORDER BY next_fire_at LIMIT 1) e"
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Returns true if the cluster is paused.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn is_cluster_paused(&self) -> Result<bool> {
        Ok(sqlx::query_scalar!(r#"SELECT EXISTS (SELECT 1 FROM cluster_pause) AS "is_paused!""#)
            .fetch_one(self.pool())
            .await?)
    }

    /// Pauses a job whose row at `version` cannot be read, with the reason. A job that was edited meanwhile is
    /// unchanged.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn pause_unreadable_job(&self, id: JobId, version: i32, reason: &str) -> Result<()> {
        sqlx::query!(
            "UPDATE jobs SET is_active = false, next_fire_at = NULL, paused_reason = $2, version = version + 1
              WHERE id = $1 AND version = $3",
            id.0,
            reason,
            version
        )
        .execute(self.pool())
        .await
        .map_err(StoreError::from)?;
        Ok(())
    }
}
