//! The guarded transition for worker reports: a change is applied only where the row's present status allows it.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use milvaion_api::views::OccurrenceRow;
use milvaion_protocol::id::OccurrenceId;
use serde_json::Value;
use uuid::Uuid;

use super::{
    Result, Store, StoreError,
    occurrences::{occurrence_row, status},
};
use crate::domain::{claim::RecordedAttempt, lost_run::LostRunRule, retry::RetryContext, transition::AttemptChange};

/// The effects of a batch of changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppliedChanges {
    /// The changed occurrences, as they are now.
    pub rows: Vec<OccurrenceRow>,
    /// The occurrences whose row named another instance for this attempt before.
    pub taken_over: HashSet<OccurrenceId>,
    /// True if a slot was freed.
    pub slot_freed: bool,
    /// True if failures were recorded.
    pub has_failures: bool,
    /// True if a run ended whose job counts its pause from the end of a run.
    pub starts_pause: bool,
    /// True if an occurrence is now delayed until its next attempt.
    pub has_delayed: bool,
}

impl Store {
    /// Applies changes where the row's present status allows them, and updates the statistics. Returns the effects; a
    /// late or repeated change, or one about an unknown occurrence, has none.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then nothing was applied.
    pub async fn apply(&self, changes: &[AttemptChange], now: DateTime<Utc>) -> Result<AppliedChanges> {
        let mut changes: Vec<&AttemptChange> = changes.iter().collect();
        changes.sort_by_key(|change| change.occurrence_id);
        let Some(newest) = changes.iter().map(|change| change.occurrence_id.created_at()).max() else {
            return Ok(AppliedChanges::default());
        };
        let oldest = changes.iter().map(|change| change.occurrence_id.created_at()).min().unwrap_or(newest);
        let ids: Vec<Uuid> = changes.iter().map(|change| change.occurrence_id.0).collect();
        let created: Vec<DateTime<Utc>> = changes.iter().map(|change| change.occurrence_id.created_at()).collect();
        let attempts: Vec<i32> = changes.iter().map(|change| change.attempt).collect();
        let statuses: Vec<i16> = changes.iter().map(|change| change.status.code()).collect();
        let instances: Vec<String> = changes.iter().map(|change| change.instance_id.clone()).collect();
        let started: Vec<Option<DateTime<Utc>>> = changes.iter().map(|change| change.started_at).collect();
        let ended: Vec<Option<DateTime<Utc>>> = changes.iter().map(|change| change.ended_at).collect();
        let durations: Vec<Option<i64>> = changes.iter().map(|change| change.duration_ms).collect();
        let results: Vec<Option<String>> = changes.iter().map(|change| change.result.clone()).collect();
        let exceptions: Vec<Option<String>> = changes.iter().map(|change| change.exception.clone()).collect();
        let notes: Vec<Option<String>> = changes.iter().map(|change| change.note.clone()).collect();
        let progress: Vec<Option<Value>> = changes
            .iter()
            .map(|change| change.progress.as_ref().and_then(|progress| serde_json::to_value(progress).ok()))
            .collect();
        let steps: Vec<Value> =
            changes.iter().map(|change| serde_json::to_value(&change.steps).unwrap_or_default()).collect();
        let fingerprints: Vec<Option<String>> = changes.iter().map(|change| change.fingerprint.clone()).collect();
        let causes: Vec<Option<String>> =
            changes.iter().map(|change| change.cause.map(|cause| cause.as_str().to_owned())).collect();
        let delayed_until: Vec<Option<DateTime<Utc>>> = changes.iter().map(|change| change.waits_until).collect();
        let failed: Vec<bool> = changes.iter().map(|change| change.counts_as_failure).collect();
        let requeued: Vec<bool> = changes.iter().map(|change| change.is_requeue).collect();
        let quarantined: Vec<bool> = changes.iter().map(|change| change.is_quarantined).collect();
        let rows = sqlx::query_file!(
            "src/store/apply.sql",
            &ids,
            &created,
            &attempts,
            &statuses,
            &instances,
            &started as &[Option<DateTime<Utc>>],
            &ended as &[Option<DateTime<Utc>>],
            &durations as &[Option<i64>],
            &results as &[Option<String>],
            &exceptions as &[Option<String>],
            &notes as &[Option<String>],
            &progress as &[Option<Value>],
            &steps,
            oldest,
            newest,
            now,
            &fingerprints as &[Option<String>],
            &causes as &[Option<String>],
            &delayed_until as &[Option<DateTime<Utc>>],
            &failed,
            &requeued,
            &quarantined
        )
        .fetch_all(self.pool())
        .await
        .map_err(StoreError::from)?;
        let mut applied = AppliedChanges::default();
        for row in rows {
            applied.slot_freed |= row.freed;
            applied.has_failures |= row.failed;
            applied.starts_pause |= row.pauses;
            applied.has_delayed |= row.waits_until.is_some();
            if row.was_elsewhere {
                applied.taken_over.insert(OccurrenceId(row.id));
            }
            applied.rows.push(occurrence_row!(row)?);
        }
        Ok(applied)
    }

    /// Returns the recorded attempts of some occurrences; unknown occurrences are not included.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn recorded_attempts(&self, wanted: &[OccurrenceId]) -> Result<HashMap<OccurrenceId, RecordedAttempt>> {
        let ids: Vec<Uuid> = wanted.iter().map(|id| id.0).collect();
        let created: Vec<DateTime<Utc>> = wanted.iter().map(|id| id.created_at()).collect();
        let rows = sqlx::query!(
            r#"SELECT o.id AS "id!", o.status AS "status!", o.attempt AS "attempt!", o.instance_id, o.is_held AS "is_held!"
                 FROM unnest($1::uuid[], $2::timestamptz[]) AS a (id, created_at)
                CROSS JOIN LATERAL (SELECT * FROM occurrences o WHERE o.id = a.id AND o.created_at = a.created_at) o"#,
            &ids,
            &created
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                let recorded = RecordedAttempt {
                    status: status(row.status)?,
                    attempt: row.attempt,
                    instance_id: row.instance_id,
                    is_held: row.is_held,
                };
                Ok((OccurrenceId(row.id), recorded))
            })
            .collect()
    }

    /// Returns the retry contexts of occurrences, each only if it is still in the given attempt.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn retry_contexts(&self, wanted: &[(OccurrenceId, i32)]) -> Result<HashMap<OccurrenceId, RetryContext>> {
        let ids: Vec<Uuid> = wanted.iter().map(|(id, _)| id.0).collect();
        let created: Vec<DateTime<Utc>> = wanted.iter().map(|(id, _)| id.created_at()).collect();
        let attempts: Vec<i32> = wanted.iter().map(|(_, attempt)| *attempt).collect();
        // The retry delay and its jitter are the job's present ones, so an edit of a job that keeps failing takes
        // effect for this failure too.
        let rows = sqlx::query!(
            r#"SELECT o.id AS "id!", o.failures AS "failures!", o.max_retries AS "max_retries!",
                      coalesce(j.base_retry_delay_seconds, 5) AS "base!",
                      coalesce(j.retry_jitter_percent, 0::smallint) AS "jitter!",
                      o.cancel_requested_at IS NOT NULL AS "is_cancelled!", o.on_lost AS "on_lost!",
                      o.rescues AS "rescues!", o.worker_id AS "worker_id!", o.started_at,
                      greatest(o.last_heartbeat,
                               CASE WHEN o.id = ANY(i.running_ids) THEN i.last_heartbeat_at END) AS sign,
                      EXISTS (SELECT 1 FROM waits w WHERE w.lane = o.worker_id) AS "lane_is_open!"
                 FROM unnest($1::uuid[], $2::timestamptz[], $3::int[]) AS a (id, created_at, attempt)
                CROSS JOIN LATERAL (
                      SELECT * FROM occurrences o
                       WHERE o.id = a.id AND o.created_at = a.created_at AND o.attempt = a.attempt) o
                 LEFT JOIN worker_instances i ON i.id = o.instance_id
                 LEFT JOIN jobs j ON j.id = o.job_id"#,
            &ids,
            &created,
            &attempts
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let context = RetryContext {
                    worker_id: row.worker_id,
                    failures: row.failures,
                    max_retries: row.max_retries,
                    base_delay: Duration::from_secs(u64::try_from(row.base).unwrap_or_default()),
                    jitter_percent: row.jitter,
                    is_cancelled: row.is_cancelled,
                    on_lost: LostRunRule::from_word(&row.on_lost),
                    requeues: row.rescues,
                    ran_for: row.sign.zip(row.started_at).map(|(last_seen, started)| last_seen - started),
                    quarantine_is_open: row.lane_is_open,
                };
                (OccurrenceId(row.id), context)
            })
            .collect())
    }
}
