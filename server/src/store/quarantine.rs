//! Quarantine: runs that were lost with their worker too often are released one after the other.
//!
//! The decisions are in `domain::quarantine`. An advisory lock lets one server at a time make them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use milvaion_api::views::StatusChange;
use uuid::Uuid;

use super::{Result, Store, delayed::queued_occurrence, occurrences::status};
use crate::domain::{
    liveness,
    message::QueuedOccurrence,
    quarantine::{
        OccurrenceState, QuarantineDecision, QuarantineRelease, REQUEUES_AFTER_RELEASE, decide_quarantine,
        next_to_release,
    },
};

/// Maximum number of waiting runs that are considered for the next release.
const MAX_QUARANTINE_CANDIDATES: i64 = 500;

impl Store {
    /// Releases the next run of each quarantine whose last released run has ended or has run long enough without a
    /// crash. Where the poison run was failed, all waiting runs leave the quarantine; they are delayed occurrences from
    /// then on. Releases none while the cluster is paused.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was released.
    pub async fn release_quarantined(&self, now: DateTime<Utc>) -> Result<Vec<QueuedOccurrence>> {
        let mut tx = self.pool().begin().await?;
        // A separate statement, so that the next one sees the changes of the server that held the lock before.
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('milvaion.lanes'))").execute(&mut *tx).await?;
        let quarantines = sqlx::query!(
            r#"SELECT w.lane AS "lane!", t.attempt AS "attempt?", t.since AS "since?",
                      o.status AS "status?", o.attempt AS "present?", o.started_at AS "started_at?",
                      (SELECT f.failed_at FROM failed_occurrences f
                        WHERE f.occurrence_id = t.occurrence_id AND f.cause = 'poison') AS given_up_at,
                      EXISTS (SELECT 1 FROM worker_instances i
                               WHERE i.worker_id = w.lane AND i.stopped_at IS NULL AND i.last_heartbeat_at >= $2) AS "is_served!"
                 FROM (SELECT DISTINCT lane FROM waits
                        WHERE lane IS NOT NULL AND until <= $1 AND NOT EXISTS (SELECT 1 FROM cluster_pause)) w
                 LEFT JOIN lanes t ON t.worker_id = w.lane
                 LEFT JOIN occurrences o ON o.id = t.occurrence_id AND o.created_at = t.created_at"#,
            now,
            liveness::alive_since(now)
        )
        .fetch_all(&mut *tx)
        .await?;
        let mut ready = Vec::with_capacity(quarantines.len());
        let (mut cleared, mut cleared_until) = (Vec::new(), Vec::new());
        for row in quarantines {
            let present = match (row.status, row.present) {
                (Some(code), Some(attempt)) => {
                    Some(OccurrenceState { status: status(code)?, attempt, started_at: row.started_at })
                }
                _ => None,
            };
            let last_release = row.attempt.zip(row.since).map(|(attempt, since)| QuarantineRelease {
                attempt,
                since,
                state: present,
                poisoned_at: row.given_up_at,
                has_live_instance: row.is_served,
            });
            match decide_quarantine(last_release, now) {
                QuarantineDecision::Wait => {}
                QuarantineDecision::ReleaseNext => ready.push(row.lane),
                QuarantineDecision::ReleaseAll(at) => {
                    cleared.push(row.lane);
                    cleared_until.push(at);
                }
            }
        }
        if !cleared.is_empty() {
            // The record of the last release is deleted too, so a run that is quarantined later waits for no other run.
            sqlx::query!(
                "WITH a AS (SELECT * FROM unnest($1::text[], $2::timestamptz[]) AS a (lane, until)),
                      over AS (DELETE FROM lanes l USING a WHERE l.worker_id = a.lane),
                      free AS (UPDATE waits w SET lane = NULL FROM a WHERE w.lane = a.lane AND w.until <= a.until
                               RETURNING w.occurrence_id, w.created_at)
                 UPDATE occurrences o SET rescues = least(rescues, $3)
                   FROM free f WHERE o.id = f.occurrence_id AND o.created_at = f.created_at",
                &cleared,
                &cleared_until,
                REQUEUES_AFTER_RELEASE
            )
            .execute(&mut *tx)
            .await?;
        }
        let rows = sqlx::query!(
            r#"SELECT w.lane AS "lane!", w.occurrence_id, o.status_changes AS "steps?"
                 FROM waits w LEFT JOIN occurrences o ON o.id = w.occurrence_id AND o.created_at = w.created_at
                WHERE w.lane = ANY($1) AND w.until <= $2
                ORDER BY w.until LIMIT $3"#,
            &ready,
            now,
            MAX_QUARANTINE_CANDIDATES
        )
        .fetch_all(&mut *tx)
        .await?;
        let mut waiting: HashMap<String, Vec<(Uuid, Vec<StatusChange>)>> = HashMap::new();
        for row in rows {
            let steps = row.steps.map(serde_json::from_value).transpose().unwrap_or_default().unwrap_or_default();
            waiting.entry(row.lane).or_default().push((row.occurrence_id, steps));
        }
        let next: Vec<Uuid> = waiting.values().filter_map(|waiting| next_to_release(waiting)).collect();
        // An occurrence that was cancelled meanwhile, or whose partition was dropped, only loses its row in `waits`.
        let rows = sqlx::query!(
            "WITH first AS (
                 SELECT occurrence_id, created_at FROM waits WHERE occurrence_id = ANY($1)
             ),
             gone AS (
                 DELETE FROM waits w USING first f WHERE w.occurrence_id = f.occurrence_id
             ),
             begun AS (
                 UPDATE occurrences o SET is_held = false, waits_until = NULL, version = o.version + 1
                   FROM first f
                  WHERE o.id = f.occurrence_id AND o.created_at = f.created_at AND o.status = 0 AND o.is_held
                 RETURNING o.*
             ),
             turn AS (
                 INSERT INTO lanes AS l (worker_id, occurrence_id, created_at, attempt, since)
                 SELECT worker_id, id, created_at, attempt, $2 FROM begun
                 ON CONFLICT (worker_id) DO UPDATE
                    SET occurrence_id = excluded.occurrence_id, created_at = excluded.created_at,
                        attempt = excluded.attempt, since = excluded.since
             )
             SELECT id, job_id, job_name, worker_id, job_type, job_data, scheduled_for, attempt, failures, max_retries,
                    priority, timeout_seconds
               FROM begun",
            &next,
            now
        )
        .fetch_all(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(rows.into_iter().map(|row| queued_occurrence!(row)).collect())
    }
}
