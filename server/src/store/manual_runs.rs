//! Manual runs: inserting an occurrence that a user or an API caller requested, and the reasons to refuse it.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use milvaion_api::views::OccurrenceRow;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
    trace::Traceparent,
};
use serde_json::Value;

use super::{
    Result, Store,
    create::{
        BirthCause, CreatedRun, IDEMPOTENCY_KEY_RETENTION, MAX_OPEN_RUNS_PER_JOB, RunBirth, RunRequest, create_runs,
    },
    occurrences::RawOccurrenceRow,
    partitions::with_partitions,
};
use crate::domain::message::QueuedOccurrence;

/// Maximum number of tries: the reason of a refusal may disappear between the insert and the query for the reason.
const MAX_INSERT_TRIES: usize = 4;

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
    /// True if a program made the request with a token.
    pub is_script: bool,
    /// True if a pause, a concurrency limit or an open occurrence does not prevent the run.
    pub force: bool,
    /// Idempotency key: a second request with the same key for the same job within [`IDEMPOTENCY_KEY_RETENTION`]
    /// inserts nothing and returns the first occurrence.
    pub key: Option<String>,
    /// Position in the trace that the request continues; none for a trace of its own.
    pub traceparent: Option<Traceparent>,
}

/// An occurrence that was just inserted.
#[derive(Clone, Debug)]
pub struct CreatedOccurrence {
    /// Its row for lists.
    pub row: OccurrenceRow,
    /// Its content for the message.
    pub queued: QueuedOccurrence,
    /// True while it waits for a slot or is delayed: its message must not be sent yet.
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
    /// [`MAX_OPEN_RUNS_PER_JOB`] occurrences of the job are open.
    TooManyOpenRuns,
}

impl TryFrom<CreatedRun> for CreatedOccurrence {
    type Error = super::StoreError;

    fn try_from(run: CreatedRun) -> Result<Self> {
        let row = OccurrenceRow::try_from(RawOccurrenceRow {
            id: run.id,
            job_id: run.job_id,
            job_name: run.job_name.clone(),
            status: OccurrenceStatus::Queued.slug().to_owned(),
            version: 1,
            trigger: run.trigger,
            attempt: 1,
            scheduled_for: run.scheduled_for,
            started_at: None,
            ended_at: None,
            duration_ms: None,
            instance_id: None,
            progress: None,
            note: None,
            waits_until: run.not_before,
            cancel_requested_at: None,
        })?;
        let queued = QueuedOccurrence {
            id: OccurrenceId(run.id),
            job_id: JobId(run.job_id),
            job_name: run.job_name,
            worker_id: run.worker_id,
            job_type: run.job_type,
            job_data: run.job_data.unwrap_or_default(),
            scheduled_for: run.scheduled_for,
            attempt: 1,
            failures: 0,
            max_retries: run.max_retries,
            priority: run.priority,
            timeout_seconds: run.timeout_seconds,
            traceparent: run.traceparent,
            parent_id: run.parent_id.map(OccurrenceId),
            checkpoint: None,
        };
        Ok(Self { row, queued, is_held: run.is_held })
    }
}

impl Store {
    /// Inserts a requested occurrence with its slot, its idempotency key and its audit row, unless it is refused.
    pub async fn insert_manual_run(&self, request: &NewManualRun, now: DateTime<Utc>) -> Result<ManualRunOutcome> {
        let birth = |has_lock| {
            [RunBirth {
                id: request.id,
                job_id: request.job_id,
                cause: BirthCause::Request(RunRequest {
                    is_script: request.is_script,
                    by: request.by.clone(),
                    reason: request.reason.clone(),
                    input: request.job_data.clone(),
                    retry_of: None,
                    is_checked: !request.force,
                    has_lock,
                    takes_slot: request.force,
                    key: request.key.clone(),
                    address: request.address,
                    traceparent: request.traceparent,
                }),
            }]
        };
        for attempt in 0..MAX_INSERT_TRIES {
            // Only a job that skips overlapping runs needs the lock. The first try finds out whether it is one.
            let created = if attempt == 0 || request.force {
                with_partitions!(self, now, create_runs(self.pool(), &birth(false), None, now))?
            } else {
                with_partitions!(self, now, self.create_run_with_lock(&birth(true), now))?
            };
            self.measure_created(&created);
            if let Some(run) = created.into_iter().next() {
                return Ok(ManualRunOutcome::Created(Box::new(run.try_into()?)));
            }
            if let Some(outcome) = self.refusal(request, now).await? {
                return Ok(outcome);
            }
        }
        Ok(ManualRunOutcome::Refused(ManualRunRefusal::PreviousRunOpen))
    }

    /// Locks the job, and creates its occurrence.
    async fn create_run_with_lock(&self, birth: &[RunBirth; 1], now: DateTime<Utc>) -> Result<Vec<CreatedRun>> {
        let mut tx = self.pool().begin().await?;
        // A concurrent request waits here and then finds this one's occurrence.
        sqlx::query!("SELECT id FROM jobs WHERE id = $1 FOR NO KEY UPDATE", birth[0].job_id.0)
            .fetch_optional(&mut tx)
            .await?;
        let created = create_runs(&mut tx, birth, None, now).await?;
        tx.commit().await?;
        Ok(created)
    }

    /// Returns the reason why nothing was inserted, or `None` if the reason no longer exists.
    async fn refusal(&self, request: &NewManualRun, now: DateTime<Utc>) -> Result<Option<ManualRunOutcome>> {
        let Some(row) = sqlx::query!(
            r#"SELECT j.is_active,
                      (SELECT k.occurrence_id FROM trigger_keys k
                        WHERE k.job_id = j.id AND k.key = $2 AND k.created_at >= $3) AS before,
                      (SELECT reason FROM cluster_pause) AS stopped,
                      j.overlap_policy = 0 AND EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id) AS "is_open!",
                      EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id OFFSET $4::bigint - 1)
                      AND EXISTS (SELECT 1 FROM (SELECT r.not_before FROM runs r WHERE r.job_id = j.id
                                                  ORDER BY r.created_at DESC LIMIT 2 * $4::bigint) n
                                   WHERE n.not_before IS NULL OFFSET $4::bigint - 1)
                          AS "is_full!"
                 FROM jobs j WHERE j.id = $1"#,
            request.job_id.0,
            request.key,
            now - IDEMPOTENCY_KEY_RETENTION,
            MAX_OPEN_RUNS_PER_JOB
        )
        .fetch_optional(self.pool())
        .await?
        else {
            return Ok(Some(ManualRunOutcome::JobNotFound));
        };
        Ok(if let Some(before) = row.before {
            Some(ManualRunOutcome::Duplicate(OccurrenceId(before)))
        } else if row.is_full {
            Some(ManualRunOutcome::Refused(ManualRunRefusal::TooManyOpenRuns))
        } else if request.force {
            None
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
}
