//! Delayed occurrences, whose next attempt must not start yet, and the conversion of rows to [`QueuedOccurrence`].

use chrono::{DateTime, Utc};

use super::{Result, Store};
use crate::domain::message::QueuedOccurrence;

/// Converts a row of a statement to a [`QueuedOccurrence`]. It is a macro because every checked statement has its own
/// row type.
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

/// The next instants at which delayed occurrences can be released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextDelayedTimes {
    /// The earliest among the occurrences outside quarantine.
    pub outside_quarantine: Option<DateTime<Utc>>,
    /// The earliest among the quarantined occurrences.
    pub in_quarantine: Option<DateTime<Utc>>,
}

impl Store {
    /// Releases at most `limit` occurrences whose delay has ended and that are not quarantined, longest overdue first.
    /// Releases none while the cluster is paused. Servers may call this concurrently; each gets different occurrences.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was released.
    pub async fn release_delayed(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<QueuedOccurrence>> {
        // An occurrence that was cancelled meanwhile, or whose partition was dropped, only loses its row in `waits`.
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

    /// Returns the next instants at which delayed occurrences can be released, outside quarantine and in it; `None`
    /// where there are none, or while the cluster is paused.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn next_delayed_times(&self) -> Result<NextDelayedTimes> {
        let row = sqlx::query!(
            "SELECT (SELECT min(until) FROM waits WHERE lane IS NULL AND NOT EXISTS (SELECT 1 FROM cluster_pause)) AS plain,
                    (SELECT min(until) FROM waits WHERE lane IS NOT NULL AND NOT EXISTS (SELECT 1 FROM cluster_pause)) AS in_lane"
        )
        .fetch_one(self.pool())
        .await?;
        Ok(NextDelayedTimes { outside_quarantine: row.plain, in_quarantine: row.in_lane })
    }
}
