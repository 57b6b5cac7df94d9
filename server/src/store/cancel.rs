//! Cancellation of open occurrences.
//!
//! An occurrence that no worker runs is Cancelled at once. For a running one only a cancellation request is stored: its
//! worker ends it, and the request stays in the row until then.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use milvaion_api::views::OccurrenceRow;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use uuid::Uuid;

use super::{
    Result, Store,
    finish::{RunEnd, finish_runs},
    jobs::AuditStamp,
    occurrences::{filed_since, occurrence_row, status},
    partitions::with_partitions,
};

/// The effect of a cancellation on one occurrence.
#[derive(Clone, Debug)]
pub struct CancelOutcome {
    /// The occurrence as it is now: Cancelled, or still Running with a cancellation request.
    pub row: OccurrenceRow,
    /// The status before.
    pub was: OccurrenceStatus,
}

/// A position in the order of cancellation requests: the time and the occurrence of one. The default is before all.
pub type CancelPosition = (DateTime<Utc>, OccurrenceId);

/// A cancellation request whose occurrence is still open.
#[derive(Clone, Debug)]
pub struct OpenCancelRequest {
    /// The occurrence.
    pub id: OccurrenceId,
    /// Time of the request.
    pub requested_at: DateTime<Utc>,
    /// The present status.
    pub status: OccurrenceStatus,
    /// The attempt in force, from 1.
    pub attempt: i32,
    /// Author of the request.
    pub by: String,
    /// Reason, as a sentence.
    pub reason: String,
}

impl OpenCancelRequest {
    /// Returns the position of the request.
    #[must_use]
    pub fn position(&self) -> CancelPosition {
        (self.requested_at, self.id)
    }
}

/// The occurrences that a cancellation covers.
#[derive(Clone, Copy, Debug)]
enum CancelScope<'a> {
    /// The open ones among these.
    Ids(&'a [OccurrenceId]),
    /// The oldest delayed ones of a job.
    DelayedOf { job: JobId, limit: i64 },
}

/// An open occurrence whose row is locked.
struct LockedRun {
    id: Uuid,
    attempt: i32,
    status: String,
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
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        with_partitions!(self, edit.at, self.try_cancel(CancelScope::Ids(ids), reason, edit))
    }

    /// Cancels at most `limit` delayed occurrences of a job, oldest first, as [`cancel`](Self::cancel) does. One whose delay
    /// ends meanwhile is not cancelled. Returns the changed occurrences; none if no occurrence of the job is delayed.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing changed.
    pub async fn cancel_delayed(
        &self,
        job: JobId,
        limit: i64,
        reason: Option<&str>,
        edit: AuditStamp<'_>,
    ) -> Result<Vec<CancelOutcome>> {
        with_partitions!(self, edit.at, self.try_cancel(CancelScope::DelayedOf { job, limit }, reason, edit))
    }

    /// Counts the delayed occurrences of a job, up to `limit`.
    pub async fn count_delayed(&self, job: JobId, limit: i64) -> Result<i64> {
        let count = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!"
                 FROM (SELECT FROM runs WHERE job_id = $1 AND not_before IS NOT NULL ORDER BY id LIMIT $2) r"#,
            job.0,
            limit
        );
        Ok(count.fetch_one(self.pool()).await?)
    }

    async fn try_cancel(
        &self,
        scope: CancelScope<'_>,
        reason: Option<&str>,
        edit: AuditStamp<'_>,
    ) -> Result<Vec<CancelOutcome>> {
        let reason_clause = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let mut tx = self.pool().begin().await?;
        // Rows are locked in the order of ids, as everywhere. An ended occurrence has no row here.
        let open = match scope {
            CancelScope::Ids(ids) => {
                let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
                sqlx::query_as!(
                    LockedRun,
                    r#"SELECT id, attempt, status::text AS "status!" FROM runs
                        WHERE id = ANY($1) AND (status <> 'running' OR cancel_requested_at IS NULL)
                        ORDER BY id FOR UPDATE"#,
                    &ids
                )
                .fetch_all(&mut tx)
                .await?
            }
            CancelScope::DelayedOf { job, limit } => {
                sqlx::query_as!(
                    LockedRun,
                    r#"SELECT id, attempt, status::text AS "status!" FROM runs
                        WHERE job_id = $1 AND not_before IS NOT NULL ORDER BY id LIMIT $2 FOR UPDATE"#,
                    job.0,
                    limit
                )
                .fetch_all(&mut tx)
                .await?
            }
        };
        let mut statuses = HashMap::with_capacity(open.len());
        let (mut ends, mut running) = (Vec::new(), Vec::new());
        for row in open {
            let (id, was) = (OccurrenceId(row.id), status(&row.status)?);
            statuses.insert(id, was);
            if was == OccurrenceStatus::Running {
                running.push(row.id);
            } else {
                let note = format!("Cancelled by {}{reason_clause}", edit.by);
                let mut end = RunEnd::new(id, row.attempt, OccurrenceStatus::Cancelled, note, edit.at);
                end.cancelled_by = Some(edit.by.to_owned());
                end.steps.iter_mut().for_each(|step| step.by = Some(edit.by.to_owned()));
                ends.push(end);
            }
        }
        let mut rows = Vec::with_capacity(statuses.len());
        let mut ended = Vec::new();
        if !ends.is_empty() {
            ended = finish_runs(&mut tx, &ends, edit.at).await?;
            rows.extend(ended.iter().map(|run| run.row.clone()));
        }
        if !running.is_empty() {
            let asked = sqlx::query!(
                r#"UPDATE runs o
                      SET version = o.version + 1,
                          cancel_requested_at = $2,
                          cancel_requested_by = $3,
                          note = $4,
                          status_changes = o.status_changes || jsonb_build_array(jsonb_build_object(
                              'status', 1, 'at', $2::timestamptz, 'attempt', o.attempt, 'by', $3::text, 'note', $4::text))
                    WHERE o.id = ANY($1)
                RETURNING o.id, o.job_id, o.job_name, o.status::text AS "status!", o.version, o.trigger, o.attempt,
                          o.scheduled_for, o.started_at, NULL::timestamptz AS ended_at, NULL::bigint AS duration_ms,
                          o.instance_id, o.progress, o.note, o.not_before AS waits_until, o.cancel_requested_at"#,
                &running,
                edit.at,
                edit.by,
                format!("Cancellation requested by {}{reason_clause}", edit.by)
            )
            .fetch_all(&mut tx)
            .await?;
            for row in asked {
                rows.push(occurrence_row!(row));
            }
        }
        let outcomes: Vec<CancelOutcome> =
            rows.into_iter().filter_map(|row| Some(CancelOutcome { was: *statuses.get(&row.id)?, row })).collect();
        let changed: Vec<Uuid> = outcomes.iter().map(|outcome| outcome.row.id.0).collect();
        let was: Vec<i16> = outcomes.iter().map(|outcome| outcome.was.code()).collect();
        let is: Vec<i16> = outcomes.iter().map(|outcome| outcome.row.status.code()).collect();
        sqlx::query!(
            "INSERT INTO audit_log (at, who, action, object, before, after, address)
             SELECT $4, $5, CASE WHEN status = 4 THEN 'occurrence.cancel' ELSE 'occurrence.ask_to_end' END,
                    'occurrence:' || id::text, jsonb_build_object('status', was),
                    jsonb_build_object('status', status, 'reason', $6::text), $7
               FROM unnest($1::uuid[], $2::smallint[], $3::smallint[]) AS c (id, was, status)
              -- The audit log is about users. A replaced occurrence has its reason in its own history.
              WHERE $5 <> 'system'",
            &changed,
            &was,
            &is,
            edit.at,
            edit.by,
            reason,
            edit.address.map(|address| address.to_string())
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        self.measure_changed(&ended);
        Ok(outcomes)
    }

    /// Returns the status and the job of an occurrence, or `None` if it does not exist.
    pub async fn occurrence_status(&self, id: OccurrenceId) -> Result<Option<(OccurrenceStatus, JobId)>> {
        let row = sqlx::query!(
            r#"SELECT status::text AS "status!", job_id AS "job_id!" FROM occurrences WHERE id = $1 AND filed_at >= $2"#,
            id.0,
            filed_since(id)
        )
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| Ok((status(&row.status)?, JobId(row.job_id)))).transpose()
    }

    /// Returns at most `limit` open occurrences with a cancellation request, oldest first, beginning behind `after`.
    pub async fn open_cancel_requests(&self, after: CancelPosition, limit: i64) -> Result<Vec<OpenCancelRequest>> {
        let rows = sqlx::query!(
            r#"SELECT id, cancel_requested_at AS "requested_at!", status::text AS "status!", attempt,
                      coalesce(cancel_requested_by, 'system') AS "by!", coalesce(note, '') AS "reason!"
                 FROM runs
                WHERE cancel_requested_at IS NOT NULL AND (cancel_requested_at, id) > ($1, $2)
                ORDER BY cancel_requested_at, id
                LIMIT $3"#,
            after.0,
            after.1.0,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(OpenCancelRequest {
                    id: OccurrenceId(row.id),
                    requested_at: row.requested_at,
                    status: status(&row.status)?,
                    attempt: row.attempt,
                    by: row.by,
                    reason: row.reason,
                })
            })
            .collect()
    }
}
