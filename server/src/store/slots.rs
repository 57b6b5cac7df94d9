//! Slots: open occurrences that are counted against each other.
//!
//! A job with a limit, or one that shares a key, makes its occurrences *held*; here they are let go. All of them are
//! looked at together, by one server at a time, so that a limit is never exceeded and the claim of due jobs, which is
//! the hot statement, never counts anything.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{JobId, OccurrenceId};

use super::{Result, Store, delayed::queued_occurrence};
use crate::domain::message::QueuedOccurrence;

impl Store {
    /// Lets go what may run now, at most `limit`. Nothing while the cluster is paused.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was let go.
    pub async fn grant_slots(&self, limit: i64) -> Result<Vec<QueuedOccurrence>> {
        let waits = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT 1 FROM slots WHERE NOT is_taken) AND NOT EXISTS (SELECT 1 FROM cluster_pause) AS "waits!""#
        )
        .fetch_one(self.pool())
        .await?;
        if !waits {
            return Ok(Vec::new());
        }
        let mut tx = self.pool().begin().await?;
        // A statement of its own: the next one must see what whoever held the lock has done.
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('milvaion.slots'))").execute(&mut *tx).await?;
        let rows = sqlx::query_file!("src/store/release.sql", limit).fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(rows.into_iter().map(|row| queued_occurrence!(row)).collect())
    }

    /// Open occurrences whose job has a younger one waiting that is to replace them, oldest first.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// Whether a run of the job is open.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// Makes jobs due again whose pause counts from the end of a run, when no run of theirs is open any more, by hand or
    /// not. However a run has ended, and whoever noticed, this is the one place where its pause begins.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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
