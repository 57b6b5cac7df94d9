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
    storable::clean_text,
    topology::HEADER_CORRELATION_ID,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::{
    Result, Store,
    finish::{RunEnd, finish_runs},
    jobs::AuditStamp,
    occurrences::{filed_since, status},
    partitions::with_partitions,
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

/// Returns a digest of a message and its source. A worker need not give its messages an id.
#[must_use]
pub fn message_digest(source: &str, body: &[u8]) -> Vec<u8> {
    Sha256::new().chain_update(source).chain_update([0]).chain_update(body).finalize().to_vec()
}

impl NewDeadLetter {
    /// Creates a dead letter from a message and the reason for storing it.
    #[must_use]
    pub fn new(id: DeadLetterId, source: String, headers: Value, body: &[u8], reason: &str) -> Self {
        Self {
            id,
            digest: message_digest(&source, body).iter().map(|byte| format!("{byte:02x}")).collect(),
            reason: clean_text(reason),
            source,
            headers,
            body: body[..body.len().min(MAX_STORED_BODY_BYTES)].to_vec(),
            body_bytes: i64::try_from(body.len()).unwrap_or(i64::MAX),
        }
    }
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
        with_partitions!(self, now, self.try_fail_dead_lettered(run, now))
    }

    async fn try_fail_dead_lettered(&self, run: &DeadLetteredRun, now: DateTime<Utc>) -> Result<DeadLetterOutcome> {
        let mut tx = self.pool().begin().await?;
        let open =
            sqlx::query!(r#"SELECT status::text AS "status!", attempt FROM runs WHERE id = $1 FOR UPDATE"#, run.id.0)
                .fetch_optional(&mut tx)
                .await?;
        let Some(open) = open else {
            // A separate statement: it sees the end of a run that ended while this one waited for the row.
            drop(tx);
            return self.record_dead_letter_of_ended(run, now).await;
        };
        let was = status(&open.status)?;
        // The guard against later attempts, and against a run that is in other hands.
        if open.attempt > run.attempt || (was == OccurrenceStatus::Running && !run.by_worker) {
            return Ok(DeadLetterOutcome::Unchanged(was));
        }
        let end = RunEnd {
            exception: Some(run.reason.clone()),
            fingerprint: Some(run.fingerprint.clone()),
            cause: Some(run.cause.as_str().to_owned()),
            ..RunEnd::new(run.id, open.attempt, OccurrenceStatus::Failed, run.reason.clone(), now)
        };
        let ended = finish_runs(&mut tx, &[end], now).await?;
        tx.commit().await?;
        self.measure_changed(&ended);
        Ok(ended
            .into_iter()
            .next()
            .map_or(DeadLetterOutcome::Unchanged(was), |ended| DeadLetterOutcome::Failed(Box::new(ended.row))))
    }

    /// Inserts a missing failure record of an occurrence that has failed already.
    async fn record_dead_letter_of_ended(
        &self,
        run: &DeadLetteredRun,
        now: DateTime<Utc>,
    ) -> Result<DeadLetterOutcome> {
        let was = sqlx::query_scalar!(
            r#"
            WITH ended AS (SELECT * FROM occurrences WHERE id = $1 AND filed_at >= $2),
            record AS (
                INSERT INTO failed_occurrences (occurrence_id, job_id, job_name, failed_at, cause, exception, fingerprint,
                                                job_data, job_version, worker_id, job_type, attempt)
                SELECT id, job_id, job_name, coalesce(ended_at, $3), $4, coalesce(exception, $5), $6,
                       coalesce(job_data, 'null'), job_version, worker_id, job_type, attempt
                  FROM ended WHERE status IN ('failed', 'timed-out')
                ON CONFLICT (occurrence_id) DO UPDATE SET cause = excluded.cause
                 -- The failure report carried no cause for the end of the retries; a dead letter by the worker does.
                 WHERE $7 AND failed_occurrences.cause IN ('failed', 'timed_out')
            )
            SELECT status::text AS "status!" FROM ended"#,
            run.id.0,
            filed_since(run.id),
            now,
            run.cause.as_str(),
            run.reason,
            run.fingerprint,
            run.by_worker
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(was) = was else { return Ok(DeadLetterOutcome::Unknown) };
        Ok(match status(&was)? {
            OccurrenceStatus::Failed | OccurrenceStatus::TimedOut => DeadLetterOutcome::AlreadyFailed,
            was => DeadLetterOutcome::Unchanged(was),
        })
    }

    /// Inserts a dead letter; for one that is stored already, only increments its number of copies.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails or cannot store the values.
    pub async fn insert_dead_letter(&self, message: &NewDeadLetter, now: DateTime<Utc>) -> Result<()> {
        sqlx::query!(
            "WITH stored AS (
                INSERT INTO dead_letters AS d (id, received_at, digest, reason, source, headers, body, body_bytes)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                ON CONFLICT (digest) DO UPDATE SET copies = d.copies + 1
                RETURNING id, source, reason
             )
             -- A duplicate keeps the id of the first one, and raises no alert.
             INSERT INTO alert_events (kind, at, subject, detail)
             SELECT 'dead_letter', $2, left(source, 200), left(reason, 500) FROM stored WHERE id = $1",
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
        let found: Vec<(Uuid, String)> = sqlx::query_as(
            "SELECT DISTINCT o.id, o.status::text
               FROM unnest($1::uuid[], $2::timestamptz[]) AS w (id, created_at)
              CROSS JOIN LATERAL (
                    SELECT id, status FROM occurrences o
                     WHERE o.id = w.id AND o.filed_at >= w.created_at - interval '1 hour') o",
        )
        .bind(&ids)
        .bind(&created)
        .fetch_all(self.pool())
        .await?;
        for (id, word) in found {
            let present = status(&word)?;
            for row in rows.iter_mut().filter(|row| row.occurrence_id == Some(OccurrenceId(id))) {
                row.occurrence_status = Some(present);
            }
        }
        Ok(())
    }

    /// Resolves open dead letters, with an audit row each. Returns their number.
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
