//! Occurrences whose next attempt is not to begin yet, and how what is queued is read to be sent.

use chrono::{DateTime, Utc};

use super::{Result, Store};
use crate::domain::message::QueuedOccurrence;

/// What a message needs, out of what a statement returned. Every checked statement has a row type of its own, so this is
/// no function.
macro_rules! queued_occurrence {
    ($row:expr) => {
        $crate::domain::message::QueuedOccurrence {
            id: milvaion_protocol::id::OccurrenceId($row.id),
            job_id: milvaion_protocol::id::JobId($row.job_id),
            job_name: $row.job_name,
            worker_id: $row.worker_id,
            job_type: $row.job_type,
            job_data: $row.job_data,
            scheduled_for: $row.scheduled_for,
            attempt: $row.attempt,
            failures: $row.failures,
            max_retries: $row.max_retries,
            priority: $row.priority,
            timeout_seconds: $row.timeout_seconds,
        }
    };
}
pub(super) use queued_occurrence;

/// Until when there is nothing to let go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextDelayedTimes {
    /// Of those that only wait for their time.
    pub plain: Option<DateTime<Utc>>,
    /// Of those that take turns then.
    pub in_lane: Option<DateTime<Utc>>,
}

impl Store {
    /// Lets go what has waited long enough and is in no lane, at most `limit`, longest overdue first. Nothing while the
    /// cluster is paused. Several servers may ask at once; each gets others.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was let go.
    pub async fn release_delayed(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<QueuedOccurrence>> {
        // What was cancelled meanwhile, or dropped with its day, loses its place here and nothing else.
        let rows = sqlx::query!(
            "WITH due AS (
                 DELETE FROM waits w
                  USING (SELECT occurrence_id FROM waits
                          WHERE until <= $1 AND lane IS NULL AND NOT EXISTS (SELECT 1 FROM cluster_pause)
                          ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED) d
                  WHERE w.occurrence_id = d.occurrence_id
                 RETURNING w.occurrence_id, w.created_at
             )
             UPDATE occurrences o SET is_held = false, waits_until = NULL, version = o.version + 1
               FROM due d
              WHERE o.id = d.occurrence_id AND o.created_at = d.created_at AND o.status = 0 AND o.is_held
             RETURNING o.id, o.job_id, o.job_name, o.worker_id, o.job_type, o.job_data, o.scheduled_for, o.attempt,
                       o.failures, o.max_retries, o.priority, o.timeout_seconds",
            now,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| queued_occurrence!(row)).collect())
    }

    /// When the next one is to be let go, and from when on the next one in a lane waits for its turn; none while there is
    /// no such, or the cluster is paused.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn next_delayed_times(&self) -> Result<NextDelayedTimes> {
        Ok(sqlx::query_as!(
            NextDelayedTimes,
            "SELECT (SELECT min(until) FROM waits WHERE lane IS NULL AND NOT EXISTS (SELECT 1 FROM cluster_pause)) AS plain,
                    (SELECT min(until) FROM waits WHERE lane IS NOT NULL AND NOT EXISTS (SELECT 1 FROM cluster_pause)) AS in_lane"
        )
        .fetch_one(self.pool())
        .await?)
    }
}
