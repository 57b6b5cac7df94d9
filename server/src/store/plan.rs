//! Firing due jobs: the hottest statement, and the one that must never be wrong.

use chrono::{DateTime, Utc};
use protocol::{
    id::{JobId, OccurrenceId},
    schedule::Schedule,
};
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store, StoreError};
use crate::domain::message::Queued;

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
    /// Not due from here on.
    pub end_at: Option<DateTime<Utc>>,
    /// The definition's version that was read.
    pub version: i32,
    /// 1 to 5.
    pub priority: i16,
    /// Attempts after the first.
    pub max_retries: i16,
    /// When a run is ended.
    pub timeout_seconds: Option<i32>,
}

/// One fire that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Fire {
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
}

impl Store {
    /// Jobs due at `now`, longest due first, at most `limit`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn due(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<DueJob>> {
        let rows = sqlx::query!(
            r#"SELECT id, display_name, worker_id, job_type, job_data, schedule, next_fire_at AS "next_fire_at!", end_at,
                      version, priority, max_retries, timeout_seconds
                 FROM jobs
                WHERE next_fire_at IS NOT NULL AND next_fire_at <= $1
                ORDER BY next_fire_at
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
                end_at: row.end_at,
                version: row.version,
                priority: row.priority,
                max_retries: row.max_retries,
                timeout_seconds: row.timeout_seconds,
            })
            .collect())
    }

    /// Fires: moves each job's due instant by compare-and-swap and makes its occurrence, all or nothing. Returns the
    /// occurrences that were made; a job that somebody else fired, edited or paused meanwhile is not among them.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was fired.
    pub async fn fire(&self, fires: &[Fire], now: DateTime<Utc>) -> Result<Vec<OccurrenceId>> {
        let jobs: Vec<Uuid> = fires.iter().map(|fire| fire.job_id.0).collect();
        let versions: Vec<i32> = fires.iter().map(|fire| fire.version).collect();
        let due: Vec<DateTime<Utc>> = fires.iter().map(|fire| fire.due).collect();
        let next: Vec<Option<DateTime<Utc>>> = fires.iter().map(|fire| fire.next_fire_at).collect();
        let ids: Vec<Uuid> = fires.iter().map(|fire| fire.occurrence_id.0).collect();
        let created: Vec<DateTime<Utc>> = fires.iter().map(|fire| fire.occurrence_id.created_at()).collect();
        let made = sqlx::query_scalar!(
            r#"
            WITH wanted AS (
                SELECT * FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::uuid[], $6::timestamptz[])
                           AS w (job_id, version, due, next_fire_at, occurrence_id, created_at)
            ),
            -- The compare. SKIP LOCKED: a job that another server fires right now is that server's; waiting for it
            -- could only end in a deadlock or in finding it already fired.
            locked AS (
                SELECT j.id FROM jobs j JOIN wanted w ON w.job_id = j.id
                 WHERE j.next_fire_at = w.due AND j.version = w.version
                   FOR UPDATE OF j SKIP LOCKED
            ),
            -- The swap.
            moved AS (
                UPDATE jobs j SET next_fire_at = w.next_fire_at, last_fire_at = w.due
                  FROM wanted w JOIN locked l ON l.id = w.job_id
                 WHERE j.id = w.job_id AND j.next_fire_at = w.due
                RETURNING w.occurrence_id, w.created_at, w.due, j.id, j.display_name, j.version, j.worker_id, j.job_type,
                          j.job_data, j.priority, j.max_retries, j.timeout_seconds
            ),
            made AS (
                INSERT INTO occurrences (id, created_at, job_id, job_name, job_version, worker_id, job_type, job_data,
                                         scheduled_for, trigger, status, priority, max_retries, timeout_seconds, status_changes)
                SELECT occurrence_id, created_at, id, display_name, version, worker_id, job_type, job_data,
                       due, 'schedule', 0, priority, max_retries, timeout_seconds,
                       jsonb_build_array(jsonb_build_object('status', 0, 'at', $7::timestamptz, 'attempt', 1))
                  FROM moved
                RETURNING id
            ),
            counted AS (
                INSERT INTO stats_minute AS s (minute, status, shard, count)
                SELECT date_trunc('minute', $7::timestamptz), 0, $8, count(*) FROM made HAVING count(*) > 0
                ON CONFLICT (minute, status, shard) DO UPDATE SET count = s.count + excluded.count
            )
            SELECT id AS "id!" FROM made
            "#,
            &jobs,
            &versions,
            &due,
            &next as &[Option<DateTime<Utc>>],
            &ids,
            &created,
            now,
            self.shard()
        )
        .fetch_all(self.pool())
        .await?;
        Ok(made.into_iter().map(OccurrenceId).collect())
    }

    /// Marks occurrences as confirmed by the broker.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then they will be published again, which is harmless.
    pub async fn mark_published(&self, ids: &[OccurrenceId], now: DateTime<Utc>) -> Result<u64> {
        let created: Vec<DateTime<Utc>> = ids.iter().map(|id| id.created_at()).collect();
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let done = sqlx::query!(
            "UPDATE occurrences o SET published_at = $3
               FROM unnest($1::uuid[], $2::timestamptz[]) AS p (id, created_at)
              WHERE o.id = p.id AND o.created_at = p.created_at AND o.published_at IS NULL",
            &ids,
            &created,
            now
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }

    /// Queued occurrences created before `before` whose message was never confirmed, oldest first.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn unpublished(&self, before: DateTime<Utc>, limit: i64) -> Result<Vec<Queued>> {
        let rows = sqlx::query!(
            "SELECT id, job_id, job_name, worker_id, job_type, job_data, scheduled_for, attempt, max_retries, priority,
                    timeout_seconds
               FROM occurrences
              WHERE published_at IS NULL AND status = 0 AND created_at < $1
              ORDER BY created_at
              LIMIT $2",
            before,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Queued {
                id: OccurrenceId(row.id),
                job_id: JobId(row.job_id),
                job_name: row.job_name,
                worker_id: row.worker_id,
                job_type: row.job_type,
                job_data: row.job_data,
                scheduled_for: row.scheduled_for,
                attempt: row.attempt,
                max_retries: row.max_retries,
                priority: row.priority,
                timeout_seconds: row.timeout_seconds,
            })
            .collect())
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
    pub async fn due_instants(&self, ids: &[Uuid]) -> Result<Vec<(JobId, DateTime<Utc>)>> {
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
    pub async fn earliest_due(&self) -> Result<Option<DateTime<Utc>>> {
        Ok(sqlx::query_scalar!("SELECT min(next_fire_at) FROM jobs WHERE next_fire_at IS NOT NULL")
            .fetch_one(self.pool())
            .await?)
    }

    /// Takes a job out of the schedule because its row cannot be read; says why on the job.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn park(&self, id: JobId, reason: &str) -> Result<()> {
        sqlx::query!(
            "UPDATE jobs SET is_active = false, next_fire_at = NULL, paused_reason = $2, version = version + 1 WHERE id = $1",
            id.0,
            reason
        )
        .execute(self.pool())
        .await
        .map_err(StoreError::from)?;
        Ok(())
    }
}
