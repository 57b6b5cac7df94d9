//! Late starts: starts of attempts that another instance had started already, recorded beside the first start.
//!
//! No status changes here: the first end that is reported counts, whichever instance reports it. A late start often
//! becomes known after the end, when the row is in the history, which never changes. It is therefore a row of its own, and
//! the page of the occurrence reads both.

use chrono::{DateTime, Utc};
use milvaion_api::{
    duplicates,
    views::{OccurrenceRow, StatusChange},
};
use milvaion_protocol::id::OccurrenceId;
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store, StoreError, occurrences::RawOccurrenceRow, pool::StoreTransaction};
use crate::domain::duplicates::ReportedStart;

/// Maximum number of starts that one transaction examines.
const LATE_START_BATCH_SIZE: usize = 1_000;

impl Store {
    /// Records the starts that were not the first start of their attempt. Returns the occurrences with a new late start,
    /// as they are now; a start that is recorded already changes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then the starts found so far are recorded, and the rest is not.
    pub async fn record_late_starts(&self, starts: &[ReportedStart]) -> Result<Vec<OccurrenceRow>> {
        let mut rows = Vec::new();
        for chunk in starts.chunks(LATE_START_BATCH_SIZE) {
            rows.extend(self.record_chunk(chunk).await?);
        }
        Ok(rows)
    }

    async fn record_chunk(&self, starts: &[ReportedStart]) -> Result<Vec<OccurrenceRow>> {
        let mut ids: Vec<Uuid> = starts.iter().map(|start| start.occurrence_id.0).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut tx = self.pool().begin().await?;
        // Open occurrences are locked in the order of ids, as everywhere: a report of another server cannot add the first
        // start between this look and the insert.
        sqlx::query!("SELECT id FROM runs WHERE id = ANY($1) ORDER BY id FOR UPDATE", &ids).fetch_all(&mut tx).await?;
        let (mut late_ids, mut attempts, mut instances, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (id, before) in status_histories(&mut tx, &ids).await? {
            let mut history = before.clone();
            for start in starts.iter().filter(|start| start.occurrence_id == id) {
                duplicates::record_duplicate_start(&mut history, start.attempt, &start.instance_id, start.at);
            }
            for step in history.into_iter().filter(|step| !before.contains(step)) {
                late_ids.push(id.0);
                attempts.push(step.attempt);
                instances.push(step.by.unwrap_or_default());
                times.push(step.at);
            }
        }
        if late_ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut changed: Vec<Uuid> = sqlx::query_scalar!(
            "INSERT INTO late_starts (run_id, attempt, instance_id, at, is_after_end)
             SELECT s.*, NOT EXISTS (SELECT 1 FROM runs r WHERE r.id = s.run_id)
               FROM unnest($1::uuid[], $2::int[], $3::text[], $4::timestamptz[]) AS s (run_id, attempt, instance_id, at)
             ON CONFLICT DO NOTHING RETURNING run_id",
            &late_ids,
            &attempts,
            &instances,
            &times
        )
        .fetch_all(&mut tx)
        .await?;
        changed.sort_unstable();
        changed.dedup();
        sqlx::query!("UPDATE runs SET version = version + 1 WHERE id = ANY($1)", &changed).execute(&mut tx).await?;
        let rows = sqlx::query_as!(
            RawOccurrenceRow,
            r#"SELECT o.id AS "id!", o.job_id AS "job_id!", o.job_name AS "job_name!", o.status::text AS "status!",
                      o.version + (SELECT count(*) FROM late_starts l WHERE l.run_id = o.id AND l.is_after_end)::int
                          AS "version!",
                      o.trigger AS "trigger!", o.attempt AS "attempt!", o.scheduled_for AS "scheduled_for!", o.started_at,
                      o.ended_at, o.duration_ms, o.instance_id, o.progress, o.note, o.not_before AS waits_until,
                      o.cancel_requested_at
                 FROM occurrences o WHERE o.id = ANY($1) AND o.filed_at >= $2"#,
            &changed,
            filed_since_first(&changed)
        )
        .fetch_all(&mut tx)
        .await?;
        tx.commit().await?;
        rows.into_iter().map(OccurrenceRow::try_from).collect()
    }

    /// Returns the late starts of an occurrence as status changes, oldest first.
    pub(super) async fn late_starts(&self, id: OccurrenceId) -> Result<Vec<(i32, String, DateTime<Utc>)>> {
        let rows = sqlx::query!("SELECT attempt, instance_id, at FROM late_starts WHERE run_id = $1 ORDER BY at", id.0)
            .fetch_all(self.pool())
            .await?;
        Ok(rows.into_iter().map(|row| (row.attempt, row.instance_id, row.at)).collect())
    }

    /// Deletes late starts from before an instant. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails.
    pub async fn delete_old_late_starts(&self, before: DateTime<Utc>) -> Result<u64> {
        Ok(sqlx::query!("DELETE FROM late_starts WHERE at < $1", before).execute(self.pool()).await?.rows_affected())
    }
}

/// Returns the status histories of occurrences.
async fn status_histories(
    connection: &mut StoreTransaction,
    ids: &[Uuid],
) -> Result<Vec<(OccurrenceId, Vec<StatusChange>)>> {
    let rows = sqlx::query!(
        r#"SELECT id AS "id!", status_changes AS "status_changes!" FROM occurrences WHERE id = ANY($1) AND filed_at >= $2"#,
        ids,
        filed_since_first(ids)
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(|row| Ok((OccurrenceId(row.id), status_history(row.status_changes)?))).collect()
}

/// Reads a stored status history.
pub(super) fn status_history(stored: Value) -> Result<Vec<StatusChange>> {
    serde_json::from_value(stored).map_err(|error| StoreError::Corrupt {
        table: "occurrences",
        column: "status_changes",
        detail: error.to_string(),
    })
}

/// Returns the instant before which none of these occurrences was filed.
fn filed_since_first(ids: &[Uuid]) -> DateTime<Utc> {
    ids.iter().min().map_or(DateTime::UNIX_EPOCH, |first| super::occurrences::filed_since(OccurrenceId(*first)))
}
