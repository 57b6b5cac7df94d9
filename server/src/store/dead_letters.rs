//! Dead letters: failing the occurrence that a dead letter belongs to, and storing those that belong to none.

use chrono::{DateTime, Utc};
use milvaion_api::{
    failures::{DeadLetterFilter, DeadLetterRow, FailureCause},
    page::{self, ListPage},
    views::OccurrenceRow,
};
use milvaion_protocol::{
    id::{DeadLetterId, OccurrenceId},
    status::OccurrenceStatus,
    topology::HEADER_CORRELATION_ID,
};
use serde_json::Value;
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::{
    Result, Store,
    jobs::AuditStamp,
    occurrences::{RawOccurrenceRow, status},
};
use crate::domain::message::MESSAGE_ID_KEY;

/// Maximum number of bytes stored of a body.
pub const MAX_STORED_BODY_BYTES: usize = 64 * 1024;

/// An occurrence whose message was dead-lettered.
#[derive(Clone, Debug)]
pub struct DeadLetteredRun {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The attempt in the message, from 1.
    pub attempt: i32,
    /// Cause of the failure.
    pub cause: FailureCause,
    /// Cause of the failure as a sentence.
    pub reason: String,
    /// Fingerprint of the failure.
    pub fingerprint: String,
    /// True if a worker dead-lettered the message explicitly. A message that was merely rejected may be a duplicate of
    /// one that another worker runs successfully.
    pub by_worker: bool,
}

/// The effect of a dead letter on its occurrence.
#[derive(Clone, Debug)]
pub enum DeadLetterOutcome {
    /// The occurrence is Failed now.
    Failed(Box<OccurrenceRow>),
    /// The occurrence had failed before; its failure is recorded.
    AlreadyFailed,
    /// The occurrence has this status and was not changed.
    Unchanged(OccurrenceStatus),
    /// The occurrence does not exist.
    Unknown,
}

/// A dead letter to store.
#[derive(Clone, Debug)]
pub struct NewDeadLetter {
    /// Identifier; ignored if a duplicate is stored already.
    pub id: DeadLetterId,
    /// Digest of the body and its source; equal for duplicates.
    pub digest: String,
    /// Reason for storing it.
    pub reason: String,
    /// Source of the message.
    pub source: String,
    /// Message headers.
    pub headers: Value,
    /// Body, at most its first [`MAX_STORED_BODY_BYTES`] bytes.
    pub body: Vec<u8>,
    /// Length of the whole body in bytes.
    pub body_bytes: i64,
}

impl Store {
    /// Fails an open occurrence whose message was dead-lettered, and records the failure. For an occurrence that has
    /// failed already, only a missing failure record is inserted. An occurrence in a later attempt than the message's
    /// is unchanged.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing changed.
    pub async fn fail_dead_lettered(&self, run: &DeadLetteredRun, now: DateTime<Utc>) -> Result<DeadLetterOutcome> {
        let row = sqlx::query!(
            r#"
            WITH locked AS (
                SELECT id, created_at, status AS was, attempt AS had
                  FROM occurrences WHERE id = $1 AND created_at = $2 FOR UPDATE
            ),
            -- The guard against ended occurrences and later attempts.
            changed AS (
                UPDATE occurrences o
                   SET status = 3,
                       version = o.version + 1,
                       attempt = greatest(o.attempt, $3),
                       ended_at = $4,
                       is_held = false,
                       waits_until = NULL,
                       note = $5,
                       exception = coalesce(o.exception, $5),
                       published_at = coalesce(o.published_at, $4),
                       status_changes = o.status_changes || jsonb_build_array(jsonb_build_object(
                           'status', 3, 'at', $4::timestamptz, 'attempt', greatest(o.attempt, $3), 'note', $5::text))
                  FROM locked l
                 WHERE o.id = l.id AND o.created_at = l.created_at
                   AND (l.was IN (0, 6) OR (l.was = 1 AND $6)) AND l.had <= $3
                RETURNING o.*
            ),
            record AS (
                INSERT INTO failed_occurrences (occurrence_id, job_id, job_name, failed_at, cause, exception, fingerprint,
                                                job_data, job_version, worker_id, job_type, attempt)
                SELECT id, job_id, job_name, ended_at, $7, exception, $8, job_data, job_version, worker_id, job_type, attempt
                  FROM changed
                UNION ALL
                SELECT o.id, o.job_id, o.job_name, o.ended_at, $7, coalesce(o.exception, $5), $8, o.job_data, o.job_version,
                       o.worker_id, o.job_type, o.attempt
                  FROM occurrences o JOIN locked l ON l.id = o.id AND l.created_at = o.created_at
                 WHERE l.was IN (3, 5)
                ON CONFLICT (occurrence_id) DO UPDATE SET cause = excluded.cause
                 -- The failure report carried no cause for the end of the retries; a dead letter by the worker does.
                 WHERE $6 AND failed_occurrences.cause IN ('failed', 'timed_out')
            ),
            freed AS (DELETE FROM slots s USING changed c WHERE s.occurrence_id = c.id),
            counted AS (
                INSERT INTO stats_deltas (minute, status, count)
                SELECT date_trunc('minute', $4::timestamptz), 3, count(*) FROM changed HAVING count(*) > 0
            )
            SELECT l.was AS "was!", c.id AS "id?", c.job_id AS "job_id?", c.job_name AS "job_name?",
                   c.status AS "status?", c.version AS "version?", c.trigger AS "trigger?", c.attempt AS "attempt?",
                   c.scheduled_for AS "scheduled_for?", c.started_at AS "started_at?", c.ended_at AS "ended_at?",
                   c.duration_ms AS "duration_ms?", c.instance_id AS "instance_id?", c.progress AS "progress?",
                   c.note AS "note?", c.cancel_requested_at AS "cancel_requested_at?"
              FROM locked l LEFT JOIN changed c ON true
            "#,
            run.id.0,
            run.id.created_at(),
            run.attempt,
            now,
            run.reason,
            run.by_worker,
            run.cause.as_str(),
            run.fingerprint,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(DeadLetterOutcome::Unknown) };
        let was = status(row.was)?;
        let changed =
            (row.id, row.job_id, row.job_name, row.status, row.version, row.trigger, row.attempt, row.scheduled_for);
        let (
            Some(id),
            Some(job_id),
            Some(job_name),
            Some(status),
            Some(version),
            Some(trigger),
            Some(attempt),
            Some(scheduled_for),
        ) = changed
        else {
            let on_record = matches!(was, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut);
            return Ok(if on_record { DeadLetterOutcome::AlreadyFailed } else { DeadLetterOutcome::Unchanged(was) });
        };
        let changed = OccurrenceRow::try_from(RawOccurrenceRow {
            id,
            job_id,
            job_name,
            status,
            version,
            trigger,
            attempt,
            scheduled_for,
            started_at: row.started_at,
            ended_at: row.ended_at,
            duration_ms: row.duration_ms,
            instance_id: row.instance_id,
            progress: row.progress,
            note: row.note,
            waits_until: None,
            cancel_requested_at: row.cancel_requested_at,
        })?;
        Ok(DeadLetterOutcome::Failed(Box::new(changed)))
    }

    /// Inserts a dead letter; for one that is stored already, only increments its number of copies.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails or cannot store the values.
    pub async fn insert_dead_letter(&self, message: &NewDeadLetter, now: DateTime<Utc>) -> Result<()> {
        sqlx::query!(
            "INSERT INTO dead_letters AS d (id, received_at, digest, reason, source, headers, body, body_bytes)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT (digest) DO UPDATE SET copies = d.copies + 1",
            message.id.0,
            now,
            message.digest,
            message.reason,
            message.source,
            message.headers,
            message.body,
            message.body_bytes
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Returns a page of dead letters, newest first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<ListPage<DeadLetterRow>> {
        let limit = page::effective_limit(filter.limit);
        let mut query = QueryBuilder::<Postgres>::new("SELECT * FROM dead_letters WHERE true");
        match filter.resolved {
            Some(true) => query.push(" AND resolved_at IS NOT NULL"),
            Some(false) => query.push(" AND resolved_at IS NULL"),
            None => &mut query,
        };
        if let Some(before) = filter.before {
            query.push(" AND id < ").push_bind(before.0);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit) + 1);
        let mut rows: Vec<RawDeadLetter> = query.build_query_as().fetch_all(self.pool()).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = rows.last().filter(|_| more).map(|row| row.id.to_string());
        let mut rows: Vec<DeadLetterRow> = rows.into_iter().map(RawDeadLetter::row).collect();
        self.add_occurrence_statuses(&mut rows).await?;
        Ok(ListPage { rows, next })
    }

    /// Sets the status of each occurrence that a dead letter names and that exists.
    async fn add_occurrence_statuses(&self, rows: &mut [DeadLetterRow]) -> Result<()> {
        let named: Vec<OccurrenceId> = rows.iter().filter_map(|row| row.occurrence_id).collect();
        if named.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = named.iter().map(|id| id.0).collect();
        let created: Vec<DateTime<Utc>> = named.iter().map(|id| id.created_at()).collect();
        let found: Vec<(Uuid, i16)> = sqlx::query_as(
            "SELECT DISTINCT o.id, o.status
               FROM unnest($1::uuid[], $2::timestamptz[]) AS w (id, created_at)
               JOIN occurrences o ON o.id = w.id AND o.created_at = w.created_at",
        )
        .bind(&ids)
        .bind(&created)
        .fetch_all(self.pool())
        .await?;
        for (id, number) in found {
            let present = status(number)?;
            for row in rows.iter_mut().filter(|row| row.occurrence_id == Some(OccurrenceId(id))) {
                row.occurrence_status = Some(present);
            }
        }
        Ok(())
    }

    /// Resolves open dead letters, with an audit row each. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn resolve_dead_letters(
        &self,
        ids: &[DeadLetterId],
        note: Option<&str>,
        edit: AuditStamp<'_>,
    ) -> Result<usize> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let done = sqlx::query!(
            "WITH locked AS (
                SELECT id FROM dead_letters WHERE id = ANY($1) AND resolved_at IS NULL ORDER BY id FOR UPDATE
             ),
             changed AS (
                UPDATE dead_letters d SET resolved_at = $2, resolved_by = $3, resolution_note = $4
                  FROM locked l WHERE d.id = l.id
                RETURNING d.id
             )
             INSERT INTO audit_log (at, who, action, object, after, address)
             SELECT $2, $3, 'dead_letter.resolve', 'dead_letter:' || id::text, jsonb_build_object('reason', $4::text),
                    $5
               FROM changed",
            &ids,
            edit.at,
            edit.by,
            note,
            edit.address.map(|address| address.to_string())
        )
        .execute(self.pool())
        .await?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}

/// Returns the occurrence that a message names: in the header of every job message, in its message id, or in its body. A
/// message whose body is unreadable is assigned to its occurrence by its headers alone.
fn named_occurrence(headers: &Value, body: &[u8]) -> Option<OccurrenceId> {
    let in_header = |name: &str| headers.get(name).and_then(Value::as_str).and_then(|text| text.trim().parse().ok());
    in_header(HEADER_CORRELATION_ID).or_else(|| in_header(MESSAGE_ID_KEY)).or_else(|| {
        let body: Value = serde_json::from_slice(body).ok()?;
        body.get("occurrenceId")?.as_str()?.parse().ok()
    })
}

#[derive(Debug, sqlx::FromRow)]
struct RawDeadLetter {
    id: Uuid,
    received_at: DateTime<Utc>,
    reason: String,
    source: String,
    headers: Value,
    body: Vec<u8>,
    body_bytes: i64,
    copies: i32,
    resolved_at: Option<DateTime<Utc>>,
    resolved_by: Option<String>,
    resolution_note: Option<String>,
}

impl RawDeadLetter {
    fn row(self) -> DeadLetterRow {
        DeadLetterRow {
            id: DeadLetterId(self.id),
            received_at: self.received_at,
            reason: self.reason,
            source: self.source,
            occurrence_id: named_occurrence(&self.headers, &self.body),
            occurrence_status: None,
            headers: self.headers,
            body: String::from_utf8_lossy(&self.body).into_owned(),
            body_bytes: self.body_bytes,
            copies: self.copies,
            resolved_at: self.resolved_at,
            resolved_by: self.resolved_by,
            resolution_note: self.resolution_note,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn header_message_id_and_body_name_the_occurrence() {
        let text = "01932f3c-0000-7000-8000-000000000001";
        let other = "01932f3c-0000-7000-8000-000000000002";
        let id: OccurrenceId = text.parse().expect("the id is valid");
        let body = format!("{{\"occurrenceId\":\"{text}\"}}");
        let unreadable = b"\xff{".as_slice();
        assert_eq!(
            named_occurrence(&json!({ HEADER_CORRELATION_ID: text, MESSAGE_ID_KEY: other }), unreadable),
            Some(id)
        );
        assert_eq!(named_occurrence(&json!({ MESSAGE_ID_KEY: text }), unreadable), Some(id));
        assert_eq!(named_occurrence(&json!({ HEADER_CORRELATION_ID: 7 }), body.as_bytes()), Some(id));
        for headers in [Value::Null, json!({}), json!({ MESSAGE_ID_KEY: "no id" })] {
            assert_eq!(named_occurrence(&headers, unreadable), None);
        }
    }
}
