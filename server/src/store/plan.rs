//! Firing due jobs: the hottest statement, and the one that must never be wrong.

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

/// A job that is due, with what its message needs.
#[derive(Clone, Debug)]
pub struct DueJob {
    /// Which.
    pub id: JobId,
    /// Its name.
    pub display_name: String,
    /// Whom it is addressed to.
    pub worker_id: String,
    /// What it runs.
    pub job_type: String,
    /// Its input.
    pub job_data: Value,
    /// When; none when this version cannot read it.
    pub schedule: Option<Schedule>,
    /// The due instant that was read: the compare of the compare-and-swap.
    pub next_fire_at: DateTime<Utc>,
    /// Everything else it wants.
    pub rules: Rules,
    /// The definition's version that was read.
    pub version: i32,
    /// 1 to 5.
    pub priority: i16,
    /// When a run is ended.
    pub timeout_seconds: Option<i32>,
}

/// One fire that is wanted.
#[derive(Clone, Debug)]
pub struct NewScheduledRun {
    /// Of which job.
    pub job_id: JobId,
    /// As it was read.
    pub version: i32,
    /// As it was read; also what the occurrence is for.
    pub due: DateTime<Utc>,
    /// What replaces it.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// The occurrence to make.
    pub occurrence_id: OccurrenceId,
    /// Whether it is to run.
    pub action: DueAction,
    /// Why it does not, or what else it stands for.
    pub note: Option<String>,
}

/// An occurrence that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledRunResult {
    /// Which.
    pub id: OccurrenceId,
    /// Queued, or Skipped.
    pub status: OccurrenceStatus,
    /// Queued, but it waits for a slot.
    pub is_held: bool,
    /// Why it was skipped.
    pub note: Option<String>,
}

impl Store {
    /// Jobs due at `now`, most urgent first and among those longest due first, at most `limit`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn due_jobs(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<DueJob>> {
        // One probe of the index for each priority, and only as many as it takes to fill the batch: sorting all that is
        // due would make a backlog slower the longer it is.
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

    /// Fires: moves each job's due instant by compare-and-swap and makes its occurrence, all or nothing. Returns the
    /// occurrences that were made; a job that somebody else fired, edited or paused meanwhile is not among them. Nothing
    /// is made while the cluster is paused, nor for a leader whose `epoch` is no longer the newest.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was fired.
    pub async fn create_scheduled_runs(
        &self,
        fires: &[NewScheduledRun],
        epoch: Option<i64>,
        now: DateTime<Utc>,
    ) -> Result<Vec<ScheduledRunResult>> {
        let jobs: Vec<Uuid> = fires.iter().map(|fire| fire.job_id.0).collect();
        let versions: Vec<i32> = fires.iter().map(|fire| fire.version).collect();
        let due: Vec<DateTime<Utc>> = fires.iter().map(|fire| fire.due).collect();
        let next: Vec<Option<DateTime<Utc>>> = fires.iter().map(|fire| fire.next_fire_at).collect();
        let ids: Vec<Uuid> = fires.iter().map(|fire| fire.occurrence_id.0).collect();
        let created: Vec<DateTime<Utc>> = fires.iter().map(|fire| fire.occurrence_id.created_at()).collect();
        let skipped: Vec<bool> = fires.iter().map(|fire| fire.action == DueAction::Skip).collect();
        let notes: Vec<Option<String>> = fires.iter().map(|fire| fire.note.clone()).collect();
        if faults::sabotaged("skip_compare_and_swap") {
            self.put_back(&jobs, &versions, &due).await?;
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
            self.shard(),
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

    /// Sabotage: makes every compare of the compare-and-swap match, by making what was read true again.
    async fn put_back(&self, jobs: &[Uuid], versions: &[i32], due: &[DateTime<Utc>]) -> Result<()> {
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

    /// Marks occurrences as confirmed by the broker, each if it is in the attempt whose message was confirmed.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then they will be published again, which is harmless.
    pub async fn mark_published(&self, sent: &[(OccurrenceId, i32)], now: DateTime<Utc>) -> Result<u64> {
        let created: Vec<DateTime<Utc>> = sent.iter().map(|(id, _)| id.created_at()).collect();
        let ids: Vec<Uuid> = sent.iter().map(|(id, _)| id.0).collect();
        let attempts: Vec<i32> = sent.iter().map(|(_, attempt)| *attempt).collect();
        let oldest = created.iter().min().copied().unwrap_or(now);
        let newest = created.iter().max().copied().unwrap_or(now);
        // What a report holds right now is marked by it in passing. What is said of `p` is true of all: see `apply.sql`.
        let done = sqlx::query!(
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
            faults::point("publisher.after_mark");
        }
        Ok(done.rows_affected())
    }

    /// Queued occurrences whose message was never confirmed, created before `before` or among `left`, oldest first. While
    /// the cluster is paused only those that somebody asked for, who may have insisted.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn unsent_occurrences(
        &self,
        before: DateTime<Utc>,
        left: &[OccurrenceId],
        limit: i64,
    ) -> Result<Vec<QueuedOccurrence>> {
        let left: Vec<Uuid> = left.iter().map(|id| id.0).collect();
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
            &left
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| queued_occurrence!(row)).collect())
    }

    /// Every active job's due instant, for rebuilding the index, in slices of `limit` after `after`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// When some jobs are due by the truth; those that are not due at all are not among them.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn due_times(&self, ids: &[Uuid]) -> Result<Vec<(JobId, DateTime<Utc>)>> {
        let rows = sqlx::query!(
            r#"SELECT id, next_fire_at AS "at!" FROM jobs WHERE id = ANY($1) AND next_fire_at IS NOT NULL"#,
            ids
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.at)).collect())
    }

    /// The earliest due instant of all.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// Whether the switch that stops every dispatcher is thrown.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn is_cluster_paused(&self) -> Result<bool> {
        Ok(sqlx::query_scalar!(r#"SELECT EXISTS (SELECT 1 FROM cluster_pause) AS "is_paused!""#)
            .fetch_one(self.pool())
            .await?)
    }

    /// Takes a job out of the schedule because its row, at `version`, cannot be read; says why on the job. Who has mended
    /// it meanwhile is left alone.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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
