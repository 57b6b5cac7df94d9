//! Ending what is open because somebody asked for it.
//!
//! What no worker has is Cancelled at once. What runs is only asked to end: its worker settles it, and until then the
//! wish stands in the row.

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

/// What a wish to cancel did to one occurrence.
#[derive(Clone, Debug)]
pub struct CancelOutcome {
    /// As it is now: Cancelled, or still Running and asked to end.
    pub row: OccurrenceRow,
    /// What it was before.
    pub was: OccurrenceStatus,
}

/// A wish that has not been fulfilled yet.
#[derive(Clone, Debug)]
pub struct OpenCancelRequest {
    /// Which occurrence is to end.
    pub id: OccurrenceId,
    /// What it is now.
    pub status: OccurrenceStatus,
    /// The attempt in force.
    pub attempt: i32,
    /// Whose wish it is.
    pub by: String,
    /// Why, in a sentence.
    pub reason: String,
}

impl Store {
    /// Cancels what is Queued or Unknown, and notes the wish on what is Running; with statistics, steps, audit row, the
    /// slot given back and the job's next fire where the end of a run decides it. Returns what changed: what has ended,
    /// what was asked to end before and what is unknown is not among them.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing changed.
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
        let because = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let rows = sqlx::query!(
            r#"
            WITH wanted AS (SELECT * FROM unnest($1::uuid[], $2::timestamptz[]) AS w (id, created_at)),
            -- The guard, locked in the order of ids as everywhere.
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
                          l.was
            ),
            freed AS (DELETE FROM slots s USING changed c WHERE c.status = 4 AND s.occurrence_id = c.id),
            counted AS (
                INSERT INTO stats_minute AS s (minute, status, shard, count)
                SELECT date_trunc('minute', $5::timestamptz), 4, $9, count(*) FROM changed WHERE status = 4 HAVING count(*) > 0
                ON CONFLICT (minute, status, shard) DO UPDATE SET count = s.count + excluded.count
            ),
            noted AS (
                INSERT INTO audit_log (at, who, action, object, before, after)
                SELECT $5, $6, CASE WHEN status = 4 THEN 'occurrence.cancel' ELSE 'occurrence.ask_to_end' END,
                       'occurrence:' || id::text, jsonb_build_object('status', was),
                       jsonb_build_object('status', status, 'reason', $10::text)
                  FROM changed
            )
            SELECT c.id AS "id!", c.job_id AS "job_id!", c.job_name AS "job_name!", c.status AS "status!",
                   c.version AS "version!", c.trigger AS "trigger!", c.attempt AS "attempt!",
                   c.scheduled_for AS "scheduled_for!", c.started_at, c.ended_at, c.duration_ms, c.instance_id,
                   c.progress, c.note, c.waits_until, c.was AS "was!"
              FROM changed c
            "#,
            &ids,
            &created,
            oldest,
            newest,
            edit.at,
            edit.by,
            format!("Cancelled by {}{because}", edit.by),
            format!("{} asked it to end{because}", edit.by),
            self.shard(),
            reason
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(|row| Ok(CancelOutcome { was: status(row.was)?, row: occurrence_row!(row)? })).collect()
    }

    /// What an occurrence is, of which job; none when there is none.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// Open occurrences that somebody asked to end, oldest first, at most `limit`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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
