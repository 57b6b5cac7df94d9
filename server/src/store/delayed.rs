//! Delayed occurrences, whose next attempt must not start yet.
//!
//! A quarantined occurrence is delayed too, until no other quarantined run of its worker is under way
//! (`domain::quarantine`).

use chrono::{DateTime, Utc};

use super::{Result, Store, create::update_queued_runs};
use crate::domain::{message::QueuedRun, quarantine::MAX_RELEASE_WAIT};

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
    /// Returns those whose messages can be sent. The others wait for a slot now.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was released.
    pub async fn release_delayed(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<QueuedRun>> {
        // An enqueued occurrence of a job with a limit joins the queue of its group now; see enqueue.sql. It gets the limits
        // that its job has by now, or keeps its own if the job was deleted.
        let mut released = update_queued_runs!(
            self.pool(),
            "UPDATE runs r
                SET not_before = NULL, publish_after = CASE WHEN has_slot THEN $1 END, version = version + 1,
                    slot_group = CASE WHEN has_slot THEN slot_group ELSE job_id END,
                    (slot_limit, slot_key, slot_key_limit, replaces) = (
                        SELECT CASE WHEN j.id IS NULL THEN r.slot_limit
                                    WHEN j.overlap_policy <> 2 THEN 1 ELSE j.max_concurrent END,
                               CASE WHEN j.id IS NULL THEN r.slot_key ELSE j.concurrency_key END,
                               CASE WHEN j.id IS NULL THEN r.slot_key_limit ELSE j.concurrency_key_limit END,
                               r.replaces AND coalesce(j.overlap_policy = 3, true)
                          FROM (VALUES (r.job_id)) v (id) LEFT JOIN jobs j ON j.id = v.id AND NOT r.has_slot)
              WHERE id = ANY (ARRAY (
                    SELECT id FROM runs
                     WHERE not_before <= $1 AND NOT is_quarantined AND NOT EXISTS (SELECT 1 FROM cluster_pause)
                     ORDER BY not_before LIMIT $2 FOR UPDATE SKIP LOCKED))",
            now,
            limit
        );
        released.retain(|queued| !queued.is_held);
        Ok(released)
    }

    /// Releases the oldest quarantined occurrence of each worker that has no other quarantined run under way. Releases
    /// none while the cluster is paused.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was released.
    pub async fn release_quarantined(&self, now: DateTime<Utc>) -> Result<Vec<QueuedRun>> {
        let mut tx = self.pool().begin().await?;
        // A separate statement, so that the next one sees the changes of the server that held the lock before.
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('milvaion.quarantine'))").execute(&mut tx).await?;
        // Rows are locked in the order of ids, as everywhere. `coalesce` keeps the planner from reading every delayed
        // occurrence for a few ids, as in `mark_published`.
        let released = update_queued_runs!(
            &mut tx,
            "WITH oldest AS (
                SELECT DISTINCT ON (w.worker_id) w.id FROM runs w
                 WHERE w.not_before <= $1 AND w.is_quarantined AND NOT EXISTS (SELECT 1 FROM cluster_pause)
                   AND NOT EXISTS (
                       SELECT 1 FROM runs r
                        WHERE (r.status <> 'queued' OR r.is_quarantined) AND r.is_quarantined
                          AND r.not_before IS NULL AND r.worker_id = w.worker_id
                          -- One that no instance starts, because none offers its job type, is not waited for.
                          AND (r.status <> 'queued' OR coalesce(r.published_at, r.publish_after) > $2))
                 ORDER BY w.worker_id, w.id
             )
             UPDATE runs
                SET not_before = NULL, publish_after = CASE WHEN has_slot THEN $1 END, version = version + 1
              WHERE id = ANY (ARRAY (
                    SELECT id FROM runs
                     WHERE id = ANY (ARRAY (SELECT id FROM oldest)) AND coalesce(not_before, 'infinity') < 'infinity'
                     ORDER BY id FOR UPDATE))",
            now,
            now - MAX_RELEASE_WAIT
        );
        tx.commit().await?;
        Ok(released)
    }

    /// Returns the next instants at which delayed occurrences can be released, outside quarantine and in it; `None`
    /// where there are none, or while the cluster is paused.
    pub async fn next_delayed_times(&self) -> Result<NextDelayedTimes> {
        // Behind OFFSET 0 the minimum is not looked up in the index of all delayed runs: with a plan from a time when that
        // index was short, millions of delayed runs cost seconds.
        let row = sqlx::query!(
            "SELECT (SELECT not_before FROM runs WHERE not_before IS NOT NULL AND NOT is_quarantined
                        AND NOT EXISTS (SELECT 1 FROM cluster_pause) ORDER BY not_before LIMIT 1) AS plain,
                    (SELECT min(not_before)
                       FROM (SELECT not_before FROM runs WHERE (status <> 'queued' OR is_quarantined) AND is_quarantined
                                AND NOT EXISTS (SELECT 1 FROM cluster_pause) OFFSET 0) q) AS quarantined"
        )
        .fetch_one(self.pool())
        .await?;
        Ok(NextDelayedTimes { outside_quarantine: row.plain, in_quarantine: row.quarantined })
    }
}
