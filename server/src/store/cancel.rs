//! Cancellation of open occurrences.
//!
//! An occurrence that no worker runs is Cancelled at once. For a running one only a cancellation request is stored: its
//! worker ends it, and the request stays in the row until then.

use chrono::{DateTime, Utc};
use milvaion_api::views::OccurrenceRow;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use uuid::Uuid;

use super::{
    Result, Store,
    jobs::AuditStamp,
    occurrences::{occurrence_row, status},
};

/// The effect of a cancellation on one occurrence.
#[derive(Clone, Debug)]
pub struct CancelOutcome {
    /// The occurrence as it is now: Cancelled, or still Running with a cancellation request.
    pub row: OccurrenceRow,
    /// The status before.
    pub was: OccurrenceStatus,
}

/// A cancellation request whose occurrence is still open.
#[derive(Clone, Debug)]
pub struct OpenCancelRequest {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The present status.
    pub status: OccurrenceStatus,
    /// The attempt in force, from 1.
    pub attempt: i32,
    /// Author of the request.
    pub by: String,
    /// Reason, as a sentence.
    pub reason: String,
}

impl Store {
    /// Cancels Queued and Unknown occurrences, and stores a cancellation request for Running ones. Also writes the
    /// statistics, the status changes and the audit rows, frees the slots, and leaves the next due time to
    /// [`schedule_after_end`](Self::schedule_after_end) for jobs whose pause counts from the end of a run. Returns the
    /// changed occurrences; those that have ended, have a request already or do not exist are not included.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing changed.
    pub async fn cancel(
        &self,
        ids: &[OccurrenceId],
        reason: Option<&str>,
        edit: AuditStamp<'_>,
    ) -> Result<Vec<CancelOutcome>> {
        let created: Vec<DateTime<Utc>> = ids.iter().map(|id| id.created_at()).collect();
        let (Some(oldest), Some(newest)) = (created.iter().min().copied(), created.iter().max().copied()) else {
            return Ok(Vec::new());
        };
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let reason_clause = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let rows = sqlx::query!(
            r#"
            WITH wanted AS (SELECT * FROM unnest($1::uuid[], $2::timestamptz[]) AS w (id, created_at)),
            -- The guard against ended occurrences. Rows are locked in the order of ids, as everywhere.
            locked AS (
                SELECT o.id, o.created_at, o.status AS was
                  FROM occurrences o JOIN wanted w ON w.id = o.id AND w.created_at = o.created_at
                 WHERE o.created_at BETWEEN $3 AND $4
                   AND (o.status IN (0, 6) OR (o.status = 1 AND o.cancel_requested_at IS NULL))
                 ORDER BY o.id
                   FOR UPDATE OF o
            ),
            changed AS (
                UPDATE occurrences o
                   SET status = CASE WHEN l.was = 1 THEN 1 ELSE 4 END,
                       version = o.version + 1,
                       ended_at = CASE WHEN l.was = 1 THEN NULL ELSE $5::timestamptz END,
                       is_held = false,
                       waits_until = NULL,
                       cancel_requested_at = coalesce(o.cancel_requested_at, $5),
                       cancel_requested_by = coalesce(o.cancel_requested_by, $6),
                       note = CASE WHEN l.was = 1 THEN $8 ELSE $7 END,
                       status_changes = o.status_changes || jsonb_build_array(jsonb_build_object(
                           'status', CASE WHEN l.was = 1 THEN 1 ELSE 4 END, 'at', $5::timestamptz, 'attempt', o.attempt,
                           'by', $6::text, 'note', CASE WHEN l.was = 1 THEN $8::text ELSE $7::text END))
                  FROM locked l
                 WHERE o.id = l.id AND o.created_at = l.created_at
                RETURNING o.id, o.job_id, o.job_name, o.status, o.version, o.trigger, o.attempt, o.scheduled_for,
                          o.started_at, o.ended_at, o.duration_ms, o.instance_id, o.progress, o.note, o.waits_until,
                          o.cancel_requested_at, l.was
            ),
            freed AS (DELETE FROM slots s USING changed c WHERE c.status = 4 AND s.occurrence_id = c.id),
            counted AS (
                INSERT INTO stats_deltas (minute, status, count)
                SELECT date_trunc('minute', $5::timestamptz), 4, count(*) FROM changed WHERE status = 4 HAVING count(*) > 0
            ),
            noted AS (
                INSERT INTO audit_log (at, who, action, object, before, after, address)
                SELECT $5, $6, CASE WHEN status = 4 THEN 'occurrence.cancel' ELSE 'occurrence.ask_to_end' END,
                       'occurrence:' || id::text, jsonb_build_object('status', was),
                       jsonb_build_object('status', status, 'reason', $9::text), $10
                  FROM changed
            )
            SELECT c.id AS "id!", c.job_id AS "job_id!", c.job_name AS "job_name!", c.status AS "status!",
                   c.version AS "version!", c.trigger AS "trigger!", c.attempt AS "attempt!",
                   c.scheduled_for AS "scheduled_for!", c.started_at, c.ended_at, c.duration_ms, c.instance_id,
                   c.progress, c.note, c.waits_until, c.cancel_requested_at, c.was AS "was!"
              FROM changed c
            "#,
            &ids,
            &created,
            oldest,
            newest,
            edit.at,
            edit.by,
            format!("Cancelled by {}{reason_clause}", edit.by),
            format!("Cancellation requested by {}{reason_clause}", edit.by),
            reason,
            edit.address.map(|address| address.to_string())
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(|row| Ok(CancelOutcome { was: status(row.was)?, row: occurrence_row!(row)? })).collect()
    }

    /// Returns the status and the job of an occurrence, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn occurrence_status(&self, id: OccurrenceId) -> Result<Option<(OccurrenceStatus, JobId)>> {
        let row = sqlx::query!(
            "SELECT status, job_id FROM occurrences WHERE id = $1 AND created_at = $2",
            id.0,
            id.created_at()
        )
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| Ok((status(row.status)?, JobId(row.job_id)))).transpose()
    }

    /// Returns at most `limit` open occurrences with a cancellation request, oldest first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn open_cancel_requests(&self, limit: i64) -> Result<Vec<OpenCancelRequest>> {
        let rows = sqlx::query!(
            r#"SELECT id, status, attempt, coalesce(cancel_requested_by, 'system') AS "by!", coalesce(note, '') AS "reason!"
                 FROM occurrences
                WHERE cancel_requested_at IS NOT NULL AND status IN (0, 1, 6)
                ORDER BY created_at
                LIMIT $1"#,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(OpenCancelRequest {
                    id: OccurrenceId(row.id),
                    status: status(row.status)?,
                    attempt: row.attempt,
                    by: row.by,
                    reason: row.reason,
                })
            })
            .collect()
    }
}
