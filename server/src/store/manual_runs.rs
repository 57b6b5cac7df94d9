//! Manual runs: inserting an occurrence that a user or an API caller requested, and the reasons to refuse it.

use std::net::IpAddr;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::views::OccurrenceRow;
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Result, Store, occurrences::RawOccurrenceRow};
use crate::domain::message::QueuedOccurrence;

/// Retention of an idempotency key.
pub const IDEMPOTENCY_KEY_RETENTION: Duration = Duration::days(7);

/// Maximum number of tries: the reason of a refusal may disappear between the insert and the query for the reason.
const MAX_INSERT_TRIES: usize = 3;

/// The request for a manual run.
#[derive(Clone, Debug, Default)]
pub struct NewManualRun {
    /// Identifier of the new occurrence.
    pub id: OccurrenceId,
    /// The job to run.
    pub job_id: JobId,
    /// Input; none means the job's input.
    pub job_data: Option<Value>,
    /// The user who made the request.
    pub by: String,
    /// Network address of the request, if it is known.
    pub address: Option<IpAddr>,
    /// Reason for the request.
    pub reason: Option<String>,
    /// True if a pause, a concurrency limit or an open occurrence does not prevent the run.
    pub force: bool,
    /// Idempotency key: a second request with the same key for the same job within [`IDEMPOTENCY_KEY_RETENTION`]
    /// inserts nothing and returns the first occurrence.
    pub key: Option<String>,
    /// True if the job may have no other open occurrence; concurrent requests then wait for each other.
    pub exclusive: bool,
}

/// An occurrence that was just inserted.
#[derive(Clone, Debug)]
pub struct CreatedOccurrence {
    /// Its row for lists.
    pub row: OccurrenceRow,
    /// Its content for the message.
    pub queued: QueuedOccurrence,
    /// True while it waits for a slot: its message must not be sent yet.
    pub is_held: bool,
}

/// The result of a request for a manual run.
#[derive(Clone, Debug)]
pub enum ManualRunOutcome {
    /// The occurrence was inserted.
    Created(Box<CreatedOccurrence>),
    /// An earlier request with the same key had inserted this occurrence.
    Duplicate(OccurrenceId),
    /// The run was refused.
    Refused(ManualRunRefusal),
    /// The job does not exist.
    JobNotFound,
}

impl ManualRunOutcome {
    /// Returns the new occurrence, if one was inserted.
    #[must_use]
    pub fn into_created(self) -> Option<CreatedOccurrence> {
        match self {
            Self::Created(created) => Some(*created),
            _ => None,
        }
    }
}

/// The reason why a manual run was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManualRunRefusal {
    /// The job is paused.
    JobPaused,
    /// The cluster is paused, for this reason.
    ClusterPaused(String),
    /// The job skips overlapping runs, and its previous occurrence is open.
    PreviousRunOpen,
}

/// A row of a statement that inserts occurrences.
#[derive(Debug)]
pub(super) struct RawCreatedOccurrence {
    pub(super) id: Uuid,
    pub(super) job_id: Uuid,
    pub(super) job_name: String,
    pub(super) worker_id: String,
    pub(super) job_type: String,
    pub(super) job_data: Value,
    pub(super) scheduled_for: DateTime<Utc>,
    pub(super) trigger: String,
    pub(super) priority: i16,
    pub(super) max_retries: i16,
    pub(super) timeout_seconds: Option<i32>,
    pub(super) is_held: bool,
}

impl TryFrom<RawCreatedOccurrence> for CreatedOccurrence {
    type Error = super::StoreError;

    fn try_from(raw: RawCreatedOccurrence) -> Result<Self> {
        let row = OccurrenceRow::try_from(RawOccurrenceRow {
            id: raw.id,
            job_id: raw.job_id,
            job_name: raw.job_name.clone(),
            status: 0,
            version: 1,
            trigger: raw.trigger,
            attempt: 1,
            scheduled_for: raw.scheduled_for,
            started_at: None,
            ended_at: None,
            duration_ms: None,
            instance_id: None,
            progress: None,
            note: None,
            waits_until: None,
            cancel_requested_at: None,
        })?;
        let queued = QueuedOccurrence {
            id: OccurrenceId(raw.id),
            job_id: JobId(raw.job_id),
            job_name: raw.job_name,
            worker_id: raw.worker_id,
            job_type: raw.job_type,
            job_data: raw.job_data,
            scheduled_for: raw.scheduled_for,
            attempt: 1,
            failures: 0,
            max_retries: raw.max_retries,
            priority: raw.priority,
            timeout_seconds: raw.timeout_seconds,
        };
        Ok(Self { row, queued, is_held: raw.is_held })
    }
}

impl Store {
    /// Inserts a requested occurrence with its slot, its idempotency key and its audit row, unless it is refused.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn insert_manual_run(&self, request: &NewManualRun, now: DateTime<Utc>) -> Result<ManualRunOutcome> {
        for _ in 0..MAX_INSERT_TRIES {
            let mut transaction = self.pool().begin().await?;
            if request.exclusive && !request.force {
                // A concurrent request waits here and then finds this one's slot.
                sqlx::query!("SELECT id FROM jobs WHERE id = $1 FOR NO KEY UPDATE", request.job_id.0)
                    .fetch_optional(&mut *transaction)
                    .await?;
            }
            let created = self.try_insert(&mut transaction, request, now).await?;
            transaction.commit().await?;
            if let Some(created) = created {
                return Ok(ManualRunOutcome::Created(Box::new(created)));
            }
            if let Some(outcome) = self.refusal(request, now).await? {
                return Ok(outcome);
            }
        }
        Ok(ManualRunOutcome::Refused(ManualRunRefusal::PreviousRunOpen))
    }

    async fn try_insert(
        &self,
        connection: &mut PgConnection,
        request: &NewManualRun,
        now: DateTime<Utc>,
    ) -> Result<Option<CreatedOccurrence>> {
        let created = sqlx::query_as!(
            RawCreatedOccurrence,
            r#"
            -- `Rules` also decides which jobs need a slot and how many the job allows; a test compares the two. This
            -- statement adds one rule: if a job's runs must not overlap, a manual run waits for a scheduled run of the
            -- same moment.
            WITH job AS (
                SELECT *, overlap_policy <> 2 OR max_concurrent IS NOT NULL OR concurrency_key IS NOT NULL AS needs_slot
                  FROM jobs j
                 WHERE id = $3
                   AND ($8 OR (is_active
                               AND NOT EXISTS (SELECT 1 FROM cluster_pause)
                               AND (overlap_policy <> 0 OR NOT EXISTS (SELECT 1 FROM slots s WHERE s.job_id = j.id))))
            ),
            -- Of two requests with the same key, the later one waits here for the earlier one and then inserts nothing.
            keyed AS (
                INSERT INTO trigger_keys AS k (job_id, key, occurrence_id, created_at)
                SELECT id, $9, $1, $7 FROM job WHERE $9::text IS NOT NULL
                ON CONFLICT (job_id, key) DO UPDATE
                   SET occurrence_id = excluded.occurrence_id, created_at = excluded.created_at
                 WHERE k.created_at < $10
                RETURNING key
            ),
            made AS (
                INSERT INTO occurrences (id, created_at, job_id, job_name, job_version, worker_id, job_type, job_data,
                                         scheduled_for, trigger, triggered_by, trigger_reason, status, priority,
                                         max_retries, timeout_seconds, status_changes, is_held, pause_after_seconds,
                                         on_lost, heartbeat_timeout_seconds)
                SELECT $1, $2, id, display_name, version, worker_id, job_type, coalesce($4, job_data),
                       $7, 'manual', $5, $6, 0, priority, max_retries, timeout_seconds,
                       jsonb_build_array(jsonb_build_object('status', 0, 'at', $7::timestamptz, 'attempt', 1, 'by', $5::text)),
                       needs_slot AND NOT $8,
                       CASE WHEN schedule ->> 'from' = 'end' THEN (schedule ->> 'seconds')::bigint END,
                       on_lost, heartbeat_timeout_seconds
                  FROM job WHERE $9::text IS NULL OR EXISTS (SELECT 1 FROM keyed)
                RETURNING *
            ),
            slotted AS (
                INSERT INTO slots (occurrence_id, created_at, job_id, priority, is_taken, replaces, job_limit, key, key_limit)
                SELECT m.id, m.created_at, j.id, j.priority, $8, j.overlap_policy = 3,
                       CASE WHEN j.overlap_policy <> 2 THEN 1 ELSE j.max_concurrent END,
                       j.concurrency_key, j.concurrency_key_limit
                  FROM made m JOIN job j ON j.id = m.job_id WHERE j.needs_slot
            ),
            counted AS (
                INSERT INTO stats_deltas (minute, status, count)
                SELECT date_trunc('minute', $7::timestamptz), 0, count(*) FROM made HAVING count(*) > 0
            ),
            noted AS (
                INSERT INTO audit_log (at, who, action, object, after, address)
                SELECT $7, $5, 'job.run', 'job:' || job_id::text,
                       jsonb_build_object('occurrence', id, 'reason', $6::text, 'forced', $8::boolean), $11
                  FROM made
            )
            SELECT id AS "id!", job_id AS "job_id!", job_name AS "job_name!", worker_id AS "worker_id!",
                   job_type AS "job_type!", job_data AS "job_data!", scheduled_for AS "scheduled_for!",
                   trigger AS "trigger!", priority AS "priority!", max_retries AS "max_retries!", timeout_seconds,
                   is_held AS "is_held!"
              FROM made
            "#,
            request.id.0,
            request.id.created_at(),
            request.job_id.0,
            request.job_data,
            request.by,
            request.reason,
            now,
            request.force,
            request.key,
            now - IDEMPOTENCY_KEY_RETENTION,
            request.address.map(|address| address.to_string())
        )
        .fetch_optional(connection)
        .await?;
        created.map(CreatedOccurrence::try_from).transpose()
    }

    /// Returns the reason why nothing was inserted, or `None` if the reason no longer exists.
    async fn refusal(&self, request: &NewManualRun, now: DateTime<Utc>) -> Result<Option<ManualRunOutcome>> {
        let Some(row) = sqlx::query!(
            r#"SELECT j.is_active,
                      (SELECT k.occurrence_id FROM trigger_keys k
                        WHERE k.job_id = j.id AND k.key = $2 AND k.created_at >= $3) AS before,
                      (SELECT reason FROM cluster_pause) AS stopped,
                      j.overlap_policy = 0 AND EXISTS (SELECT 1 FROM slots s WHERE s.job_id = j.id) AS "is_open!"
                 FROM jobs j WHERE j.id = $1"#,
            request.job_id.0,
            request.key,
            now - IDEMPOTENCY_KEY_RETENTION
        )
        .fetch_optional(self.pool())
        .await?
        else {
            return Ok(Some(ManualRunOutcome::JobNotFound));
        };
        Ok(if let Some(before) = row.before {
            Some(ManualRunOutcome::Duplicate(OccurrenceId(before)))
        } else if let Some(reason) = row.stopped {
            Some(ManualRunOutcome::Refused(ManualRunRefusal::ClusterPaused(reason)))
        } else if !row.is_active {
            Some(ManualRunOutcome::Refused(ManualRunRefusal::JobPaused))
        } else if row.is_open {
            Some(ManualRunOutcome::Refused(ManualRunRefusal::PreviousRunOpen))
        } else {
            None
        })
    }

    /// Deletes idempotency keys older than [`IDEMPOTENCY_KEY_RETENTION`]. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn delete_old_trigger_keys(&self, now: DateTime<Utc>) -> Result<u64> {
        let deleted = sqlx::query!("DELETE FROM trigger_keys WHERE created_at < $1", now - IDEMPOTENCY_KEY_RETENTION)
            .execute(self.pool())
            .await?;
        Ok(deleted.rows_affected())
    }
}
