//! Slots: open occurrences that count against a concurrency limit.
//!
//! Jobs with a limit, and jobs that share a concurrency key, insert their occurrences as waiting for a slot
//! (`is_held`); this module grants the slots. One server at a time considers all slots together, so a limit is never
//! exceeded. The dispatch of due jobs, which is the most frequent statement, never counts slots.

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
    pub async fn grant_slots(&self, limit: i64) -> Result<Vec<QueuedOccurrence>> {
        let has_waiting = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT 1 FROM slots WHERE NOT is_taken) AND NOT EXISTS (SELECT 1 FROM cluster_pause) AS "waits!""#
        )
        .fetch_one(self.pool())
        .await?;
        if !has_waiting {
            return Ok(Vec::new());
        }
        let mut tx = self.pool().begin().await?;
        // A separate statement, so that the next one sees the changes of the server that held the lock before.
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('milvaion.slots'))").execute(&mut *tx).await?;
        let rows = sqlx::query_file!("src/store/release.sql", limit).fetch_all(&mut *tx).await?;
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
            r#"SELECT s.occurrence_id AS "old!", max(w.occurrence_id::text) AS "new!"
                 FROM slots s
                 JOIN slots w ON w.job_id = s.job_id AND w.replaces AND NOT w.is_taken AND w.occurrence_id > s.occurrence_id
                GROUP BY s.occurrence_id ORDER BY s.occurrence_id LIMIT $1"#,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().filter_map(|row| Some((OccurrenceId(row.old), row.new.parse().ok()?))).collect())
    }

    /// Returns true if a run of the job is open.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn has_open_run(&self, id: JobId) -> Result<bool> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (
                   SELECT 1 FROM (SELECT status FROM occurrences WHERE job_id = $1 ORDER BY id DESC LIMIT 100) o
                    WHERE o.status IN (0, 1, 6)) AS "open!""#,
            id.0
        )
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
            r#"UPDATE jobs j
                  SET next_fire_at = greatest(j.start_at,
                                              $1::timestamptz + make_interval(secs => (j.schedule ->> 'seconds')::bigint))
                WHERE j.is_active AND j.next_fire_at IS NULL AND j.schedule ->> 'from' = 'end'
                  AND (j.end_at IS NULL
                       OR j.end_at > greatest(j.start_at,
                                              $1::timestamptz + make_interval(secs => (j.schedule ->> 'seconds')::bigint)))
                  AND NOT EXISTS (
                      SELECT 1 FROM (SELECT status FROM occurrences o WHERE o.job_id = j.id ORDER BY id DESC LIMIT 100) o
                       WHERE o.status IN (0, 1, 6))
            RETURNING j.id, j.next_fire_at AS "at!""#,
            now
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.at)).collect())
    }
}
