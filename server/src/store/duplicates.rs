//! Duplicate starts: starts of attempts that another instance had started already, recorded beside the first start.
//!
//! No status changes here. The guarded transition in `reports.rs` decides which of the two ends counts; this module
//! only records that there were two starts.

use chrono::{DateTime, Utc};
use milvaion_api::{
    duplicates,
    views::{OccurrenceRow, StatusChange},
};
use milvaion_protocol::id::OccurrenceId;
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store, StoreError, occurrences::RawOccurrenceRow};
use crate::domain::duplicates::ReportedStart;

/// Maximum number of starts that one transaction examines.
const DUPLICATE_BATCH_SIZE: usize = 1_000;

impl Store {
    /// Records the starts that were not the first start of their attempt. Returns the occurrences with a new duplicate
    /// start, as they are now; a start that is recorded already changes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then the duplicates found so far are recorded, and the rest is not.
    pub async fn record_duplicates(&self, starts: &[ReportedStart]) -> Result<Vec<OccurrenceRow>> {
        let mut rows = Vec::new();
        for chunk in starts.chunks(DUPLICATE_BATCH_SIZE) {
            rows.extend(self.record_chunk(chunk).await?);
        }
        Ok(rows)
    }

    async fn record_chunk(&self, starts: &[ReportedStart]) -> Result<Vec<OccurrenceRow>> {
        // Rows are locked in the order of ids, as everywhere.
        let mut starts: Vec<&ReportedStart> = starts.iter().collect();
        starts.sort_by_key(|start| start.occurrence_id);
        let created: Vec<DateTime<Utc>> = starts.iter().map(|start| start.occurrence_id.created_at()).collect();
        let (Some(oldest), Some(newest)) = (created.iter().min().copied(), created.iter().max().copied()) else {
            return Ok(Vec::new());
        };
        let ids: Vec<Uuid> = starts.iter().map(|start| start.occurrence_id.0).collect();
        let attempts: Vec<i32> = starts.iter().map(|start| start.attempt).collect();
        let instances: Vec<String> = starts.iter().map(|start| start.instance_id.clone()).collect();
        let mut transaction = self.pool().begin().await?;
        // Most late reports come from the instance that ran the attempt; their rows are neither locked nor returned.
        let found = sqlx::query!(
            "SELECT l.* FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::text[])
                               AS s (id, created_at, attempt, instance_id)
              CROSS JOIN LATERAL (
                    SELECT o.id, o.status_changes, o.duplicate_starts
                      FROM occurrences o
                     WHERE o.id = s.id AND o.created_at = s.created_at AND o.created_at BETWEEN $5 AND $6
                       AND EXISTS (SELECT 1 FROM jsonb_array_elements(o.status_changes) AS step
                                    WHERE (step ->> 'attempt')::int = s.attempt
                                      AND (step ->> 'status')::int IN (1, 2, 3, 5)
                                      AND step ->> 'by' <> s.instance_id)
                       FOR UPDATE) l",
            &ids,
            &created,
            &attempts,
            &instances,
            oldest,
            newest
        )
        .fetch_all(&mut *transaction)
        .await?;
        let (mut ids, mut created, mut histories, mut counts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in found {
            let id = OccurrenceId(row.id);
            if ids.last() == Some(&row.id) {
                continue;
            }
            let mut history: Vec<StatusChange> = serde_json::from_value(row.status_changes).map_err(|error| {
                StoreError::Corrupt { table: "occurrences", column: "status_changes", detail: error.to_string() }
            })?;
            let mut is_new = false;
            for start in starts.iter().filter(|start| start.occurrence_id == id) {
                is_new |= duplicates::record_duplicate_start(&mut history, start.attempt, &start.instance_id, start.at);
            }
            let others = duplicates::find_duplicate_starts(&history).iter().map(|one| one.others.len()).sum::<usize>();
            let count = i16::try_from(others).unwrap_or(i16::MAX);
            if is_new || count != row.duplicate_starts {
                ids.push(id.0);
                created.push(id.created_at());
                histories.push(serde_json::to_value(&history).unwrap_or_default());
                counts.push(count);
            }
        }
        let rows = self.update_histories(&mut transaction, &ids, &created, &histories, &counts).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    async fn update_histories(
        &self,
        transaction: &mut sqlx::PgConnection,
        ids: &[Uuid],
        created: &[DateTime<Utc>],
        histories: &[Value],
        counts: &[i16],
    ) -> Result<Vec<OccurrenceRow>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query_as!(
            RawOccurrenceRow,
            "UPDATE occurrences o
                SET status_changes = n.life, duplicate_starts = n.count, version = o.version + 1
               FROM unnest($1::uuid[], $2::timestamptz[], $3::jsonb[], $4::smallint[]) AS n (id, created_at, life, count)
              WHERE o.id = n.id AND o.created_at = n.created_at
             RETURNING o.id, o.job_id, o.job_name, o.status, o.version, o.trigger, o.attempt, o.scheduled_for,
                       o.started_at, o.ended_at, o.duration_ms, o.instance_id, o.progress, o.note, o.waits_until,
                       o.cancel_requested_at",
            ids,
            created,
            histories,
            counts
        )
        .fetch_all(transaction)
        .await?;
        rows.into_iter().map(OccurrenceRow::try_from).collect()
    }
}
