//! Slots: open occurrences that count against a concurrency limit.
//!
//! Jobs with a limit, and jobs that share a concurrency key, insert their occurrences without a slot (`has_slot`); this
//! module grants the slots. One server at a time considers the slots of a group together, so a limit is never exceeded.
//! The dispatch of due jobs, which is the most frequent statement, never counts slots.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{JobId, OccurrenceId};

use super::{Result, Store, delayed::queued_occurrence};
use crate::domain::message::QueuedOccurrence;

impl Store {
    /// Grants at most `limit` slots to waiting occurrences. Grants none while the cluster is paused.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then no slot was granted.
    pub async fn grant_slots(&self, limit: i64, now: DateTime<Utc>) -> Result<Vec<QueuedOccurrence>> {
        let has_waiting = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT 1 FROM runs WHERE slot_group IS NOT NULL AND NOT has_slot) AND NOT EXISTS (SELECT 1 FROM cluster_pause) AS "waits!""#
        )
        .fetch_one(self.pool())
        .await?;
        if !has_waiting {
            return Ok(Vec::new());
        }
        let mut tx = self.pool().begin().await?;
        // A separate statement, so that the next one sees the changes of the server that held the lock before.
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('milvaion.slots'))").execute(&mut tx).await?;
        let rows = sqlx::query_file!("src/store/grant.sql", limit, now).fetch_all(&mut tx).await?;
        tx.commit().await?;
        Ok(rows.into_iter().map(|row| queued_occurrence!(row)).collect())
    }

    /// Returns open occurrences, oldest first, each with the newer waiting occurrence of its job that replaces it.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn occurrences_to_replace(&self, limit: i64) -> Result<Vec<(OccurrenceId, OccurrenceId)>> {
        let rows = sqlx::query!(
            r#"WITH RECURSIVE groups AS (
                   (SELECT slot_group FROM runs WHERE slot_group IS NOT NULL ORDER BY slot_group LIMIT 1)
                   UNION ALL
                   SELECT (SELECT r.slot_group FROM runs r WHERE r.slot_group > g.slot_group ORDER BY r.slot_group LIMIT 1)
                     FROM groups g WHERE g.slot_group IS NOT NULL
               )
               SELECT o.id AS "old!", w.id AS "new!"
                 FROM groups g
                CROSS JOIN LATERAL (
                      SELECT id FROM runs r WHERE r.slot_group = g.slot_group AND NOT r.has_slot AND r.replaces
                       ORDER BY r.id DESC LIMIT 1) w
                CROSS JOIN LATERAL (
                      SELECT id FROM runs o WHERE o.slot_group = g.slot_group AND o.id < w.id LIMIT $1) o
                WHERE g.slot_group IS NOT NULL
                ORDER BY o.id LIMIT $1"#,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (OccurrenceId(row.old), OccurrenceId(row.new))).collect())
    }

    /// Returns true if a run of the job is open.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn has_open_run(&self, id: JobId) -> Result<bool> {
        Ok(sqlx::query_scalar!(r#"SELECT EXISTS (SELECT 1 FROM runs WHERE job_id = $1) AS "open!""#, id.0)
            .fetch_one(self.pool())
            .await?)
    }

    /// Schedules jobs whose pause counts from the end of a run, as soon as they have no open run, scheduled or manual.
    /// This is the only place where such a pause begins, however the run ended. Returns the jobs with their due times.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn schedule_after_end(&self, now: DateTime<Utc>) -> Result<Vec<(JobId, DateTime<Utc>)>> {
        let rows = sqlx::query!(
            r#"UPDATE job_due d SET next_fire_at = n.at
                 FROM (SELECT j.id, j.version, greatest(j.start_at,
                              $1::timestamptz + make_interval(secs => (j.schedule ->> 'seconds')::bigint)) AS at
                         FROM jobs j
                        WHERE j.is_active AND j.schedule ->> 'from' = 'end'
                          AND (j.end_at IS NULL
                               OR j.end_at > greatest(j.start_at,
                                                      $1::timestamptz + make_interval(secs => (j.schedule ->> 'seconds')::bigint)))
                          AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id)) n
                WHERE d.job_id = n.id AND d.version = n.version AND d.next_fire_at IS NULL
            RETURNING n.id, n.at AS "at!""#,
            now
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.at)).collect())
    }
}
