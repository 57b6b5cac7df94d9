//! The one guarded transition: every change of an occurrence's status after its birth goes through this statement.

use chrono::{DateTime, Utc};
use protocol::view::OccurrenceRow;
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store, StoreError, occurrences::RawRow};
use crate::domain::transition::Change;

/// What came of a batch of changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// The changed rows, as they are now.
    pub rows: Vec<OccurrenceRow>,
    /// Whether a slot became free.
    pub freed: bool,
    /// Whether there are new failures.
    pub failed: bool,
    /// Whether a run has ended from whose end a job's pause is counted.
    pub pauses: bool,
}

impl Store {
    /// Applies changes where the row's present state allows them, and counts what was reached. Returns what came of
    /// it; a change that is late, repeated or about something unknown is simply not part of that.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was applied.
    pub async fn apply(&self, changes: &[Change], now: DateTime<Utc>) -> Result<Applied> {
        let mut changes: Vec<&Change> = changes.iter().collect();
        changes.sort_by_key(|change| change.occurrence_id);
        let Some(newest) = changes.iter().map(|change| change.occurrence_id.created_at()).max() else {
            return Ok(Applied::default());
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
            self.shard(),
            &fingerprints as &[Option<String>]
        )
        .fetch_all(self.pool())
        .await
        .map_err(StoreError::from)?;
        let mut applied = Applied::default();
        for row in rows {
            applied.freed |= row.freed;
            applied.failed |= row.failed;
            applied.pauses |= row.pauses;
            applied.rows.push(OccurrenceRow::try_from(RawRow {
                id: row.id,
                job_id: row.job_id,
                job_name: row.job_name,
                status: row.status,
                version: row.version,
                trigger: row.trigger,
                attempt: row.attempt,
                scheduled_for: row.scheduled_for,
                started_at: row.started_at,
                ended_at: row.ended_at,
                duration_ms: row.duration_ms,
                instance_id: row.instance_id,
                progress: row.progress,
                note: row.note,
            })?);
        }
        Ok(applied)
    }
}
