//! The birth of occurrences: one statement for all of them, whether the schedule, a user or a retry asks for it, and another
//! for those that programs enqueue in bulk, which counts nothing.
//!
//! The first one copies the job's present definition into the row, decides whether the occurrence runs, waits for a slot
//! or is skipped, and counts it. A request is one round trip, because a user waits for it.

use std::net::IpAddr;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::views::{OccurrenceRow, TriggerSource};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
    trace::Traceparent,
};
use serde_json::Value;
use sqlx::{Executor, Postgres};
use uuid::Uuid;

use super::Result;
use crate::domain::message::QueuedRun;

/// The most open occurrences of one job. A due time beyond it is recorded as skipped, and a request is refused: nothing
/// reads a longer queue, and it would fill the table that everything else reads.
pub const MAX_OPEN_RUNS_PER_JOB: i64 = 10_000;

/// Retention of an idempotency key.
pub const IDEMPOTENCY_KEY_RETENTION: Duration = Duration::days(7);

/// Converts a row of a statement to a [`QueuedRun`]. It is a macro because every checked
/// statement has its own row type.
macro_rules! queued_run {
    ($row:expr) => {
        $crate::domain::message::QueuedRun {
            id: milvaion_protocol::id::OccurrenceId($row.id),
            job_id: milvaion_protocol::id::JobId($row.job_id),
            job_name: $row.job_name,
            worker_id: $row.worker_id,
            job_type: $row.job_type,
            job_data: $row.job_data.unwrap_or_default(),
            scheduled_for: $row.scheduled_for,
            attempt: $row.attempt,
            failures: $row.failures,
            max_retries: $row.max_retries,
            priority: $row.priority,
            timeout_seconds: $row.timeout_seconds,
            traceparent: $row.traceparent,
            parent_id: $row.parent_id.map(milvaion_protocol::id::OccurrenceId),
            checkpoint: $row.checkpoint,
            is_held: $row.is_held,
            may_be_sent: false,
        }
    };
}
pub(super) use queued_run;

/// Runs an `UPDATE` of runs, and returns what their messages need. It is a macro because sqlx checks only literals.
macro_rules! update_queued_runs {
    ($executor:expr, $update:literal $(, $argument:expr)*) => {
        sqlx::query!(
            $update
                + r#" RETURNING id, job_id, job_name, worker_id, job_type,
                       run_input(id, own_input, has_long_input, job_id, job_version) AS job_data, scheduled_for, attempt,
                       failures, max_retries, priority, timeout_seconds, traceparent, parent_id,
                       run_checkpoint(id, attempt) AS checkpoint, NOT has_slot AS "is_held!""#,
            $($argument),*
        )
        .fetch_all($executor)
        .await?
        .into_iter()
        .map(|row| $crate::store::create::queued_run!(row))
        .collect::<Vec<$crate::domain::message::QueuedRun>>()
    };
}
pub(super) use update_queued_runs;

/// An occurrence to create. What does not apply to its reason keeps its default.
#[derive(Clone, Debug, Default)]
pub struct NewRun {
    /// Identifier.
    pub id: OccurrenceId,
    /// The job.
    pub job_id: JobId,
    /// Input; none means the job's input.
    pub input: Option<Value>,
    /// Position in the trace that it continues; none for a trace of its own.
    pub traceparent: Option<Traceparent>,

    /// Scheduled: the job's due time as it was read, which is also the due time of the occurrence. Nothing is created if
    /// the job's due time or version has changed.
    pub due: Option<DateTime<Utc>>,
    /// Scheduled: the job's version as it was read.
    pub version: i32,
    /// Scheduled: the job's next due time.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Scheduled: true if it is only recorded as skipped.
    pub is_skipped: bool,
    /// Scheduled: reason for a skip, or the misfires that the occurrence stands for.
    pub note: Option<String>,

    /// Requested: the author.
    pub by: String,
    /// Requested: network address of the request, if it is known.
    pub address: Option<IpAddr>,
    /// Requested: reason for the request.
    pub reason: Option<String>,
    /// Requested: true if a program made the request with a token.
    pub is_script: bool,
    /// Requested: true if a pause, a concurrency limit or an open occurrence does not prevent the run.
    pub force: bool,
    /// Requested: idempotency key. A second request with the same key for the same job within
    /// [`IDEMPOTENCY_KEY_RETENTION`] creates nothing.
    pub key: Option<String>,
    /// Requested: failed occurrence that it retries. A pause or an open occurrence does not prevent a retry.
    pub retry_of: Option<OccurrenceId>,

    /// Enqueued: time before which it does not start; none means at once.
    pub not_before: Option<DateTime<Utc>>,
    /// Enqueued: priority, from 1 to 5; none means the job's.
    pub priority: Option<u8>,
    /// Enqueued: uniqueness key.
    pub uniqueness_key: Option<String>,
    /// Enqueued: time until which the key is taken even if the occurrence has ended.
    pub unique_until: Option<DateTime<Utc>>,
    /// Enqueued: the occurrence that enqueues it.
    pub parent_id: Option<OccurrenceId>,
}

impl NewRun {
    /// Returns the trigger of an occurrence that is not enqueued.
    const fn trigger(&self) -> TriggerSource {
        match self {
            Self { due: Some(_), .. } => TriggerSource::Schedule,
            Self { retry_of: Some(_), .. } => TriggerSource::Retry,
            Self { is_script: true, .. } => TriggerSource::Api,
            _ => TriggerSource::Manual,
        }
    }
}

/// An occurrence that was just created.
#[derive(Clone, Debug, PartialEq)]
pub struct CreatedRun {
    /// Its row for lists: Queued or Skipped.
    pub row: OccurrenceRow,
    /// What its message needs, if it is queued. A scheduled one lacks its input, which was read with its job.
    pub queued: QueuedRun,
    /// Failed occurrence that it retries.
    pub retry_of: Option<OccurrenceId>,
}

impl CreatedRun {
    /// Returns an occurrence in its first attempt.
    pub(super) fn new(
        queued: QueuedRun,
        trigger: TriggerSource,
        status: OccurrenceStatus,
        note: Option<String>,
    ) -> Self {
        let row = OccurrenceRow {
            id: queued.id,
            job_id: queued.job_id,
            job_name: queued.job_name.clone(),
            status,
            version: 1,
            trigger,
            attempt: 1,
            scheduled_for: queued.scheduled_for,
            started_at: None,
            ended_at: (status == OccurrenceStatus::Skipped).then(|| queued.id.created_at()),
            duration_ms: None,
            instance_id: None,
            progress: None,
            note,
            waits_until: None,
            cancel_requested_at: None,
        };
        Self { row, queued, retry_of: None }
    }
}

/// The result for one occurrence that is enqueued.
#[derive(Clone, Debug)]
pub enum EnqueueOutcome {
    /// It was created now.
    Created(Box<CreatedRun>),
    /// An earlier request with the same id has created it.
    Known,
    /// This occurrence has the same uniqueness key, so nothing was created.
    Duplicate(OccurrenceId),
    /// The job was deleted meanwhile.
    JobNotFound,
}

/// Creates scheduled and requested occurrences, and returns those that were created, skipped ones included. A leader's
/// `epoch` must be the newest for scheduled ones. `has_lock` is true if the transaction has locked the rows of the jobs:
/// without the lock, a request creates nothing for a job whose runs are skipped while one is open, because two requests
/// could miss each other's occurrence.
///
/// # Errors
///
/// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was created.
pub(super) async fn create_runs<'c>(
    executor: impl Executor<'c, Database = Postgres>,
    runs: &[NewRun],
    has_lock: bool,
    epoch: Option<i64>,
    now: DateTime<Utc>,
) -> Result<Vec<CreatedRun>> {
    let is_checked = |run: &NewRun| run.due.is_none() && run.retry_of.is_none() && !run.force;
    let ids: Vec<Uuid> = runs.iter().map(|run| run.id.0).collect();
    let created: Vec<DateTime<Utc>> = runs.iter().map(|run| run.id.created_at()).collect();
    let jobs: Vec<Uuid> = runs.iter().map(|run| run.job_id.0).collect();
    let triggers: Vec<&str> = runs.iter().map(|run| run.trigger().as_str()).collect();
    let due: Vec<Option<DateTime<Utc>>> = runs.iter().map(|run| run.due).collect();
    let versions: Vec<Option<i32>> = runs.iter().map(|run| run.due.map(|_| run.version)).collect();
    let next: Vec<Option<DateTime<Utc>>> = runs.iter().map(|run| run.next_fire_at).collect();
    let skipped: Vec<bool> = runs.iter().map(|run| run.is_skipped).collect();
    let notes: Vec<Option<&str>> = runs.iter().map(|run| run.note.as_deref()).collect();
    let authors: Vec<Option<&str>> = runs.iter().map(|run| run.due.is_none().then_some(run.by.as_str())).collect();
    let reasons: Vec<Option<&str>> = runs.iter().map(|run| run.reason.as_deref()).collect();
    let inputs: Vec<Option<&Value>> = runs.iter().map(|run| run.input.as_ref()).collect();
    let retries: Vec<Option<Uuid>> = runs.iter().map(|run| run.retry_of.map(|id| id.0)).collect();
    let checked: Vec<bool> = runs.iter().map(is_checked).collect();
    let forced: Vec<bool> = runs.iter().map(|run| run.force).collect();
    let keys: Vec<Option<&str>> = runs.iter().map(|run| run.key.as_deref()).collect();
    let addresses: Vec<Option<String>> =
        runs.iter().map(|run| run.address.map(|address| address.to_string())).collect();
    let locks = vec![has_lock; runs.len()];
    let traces: Vec<Option<String>> = runs.iter().map(|run| run.traceparent.map(|trace| trace.to_string())).collect();
    let rows = sqlx::query_file!(
        "src/store/create.sql",
        &ids,
        &created,
        &jobs,
        &triggers as &[&str],
        &due as &[Option<DateTime<Utc>>],
        &versions as &[Option<i32>],
        &next as &[Option<DateTime<Utc>>],
        &skipped,
        &notes as &[Option<&str>],
        &authors as &[Option<&str>],
        &reasons as &[Option<&str>],
        &inputs as &[Option<&Value>],
        &retries as &[Option<Uuid>],
        &checked,
        &forced,
        now,
        epoch,
        MAX_OPEN_RUNS_PER_JOB,
        &keys as &[Option<&str>],
        &addresses as &[Option<String>],
        now - IDEMPOTENCY_KEY_RETENTION,
        &locks,
        &traces as &[Option<String>]
    )
    .fetch_all(executor)
    .await?;
    let created = rows.into_iter().map(|row| {
        let trigger = TriggerSource::parse(&row.trigger).unwrap_or(TriggerSource::Api);
        let status = if row.skip_note.is_some() { OccurrenceStatus::Skipped } else { OccurrenceStatus::Queued };
        let retry_of = row.retry_of.map(OccurrenceId);
        CreatedRun { retry_of, ..CreatedRun::new(queued_run!(row), trigger, status, row.skip_note) }
    });
    Ok(created.collect())
}

/// Creates enqueued occurrences, each at most once. Returns one outcome for each, in their order. The caller has locked
/// their uniqueness keys. `by` is the author.
///
/// # Errors
///
/// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was created.
pub(super) async fn enqueue_runs<'c>(
    executor: impl Executor<'c, Database = Postgres>,
    runs: &[NewRun],
    by: Option<&str>,
    now: DateTime<Utc>,
) -> Result<Vec<EnqueueOutcome>> {
    let ids: Vec<Uuid> = runs.iter().map(|run| run.id.0).collect();
    let created: Vec<DateTime<Utc>> = runs.iter().map(|run| run.id.created_at()).collect();
    let jobs: Vec<Uuid> = runs.iter().map(|run| run.job_id.0).collect();
    let inputs: Vec<Option<&Value>> = runs.iter().map(|run| run.input.as_ref()).collect();
    let not_before: Vec<Option<DateTime<Utc>>> = runs.iter().map(|run| run.not_before).collect();
    let priorities: Vec<Option<i16>> = runs.iter().map(|run| run.priority.map(i16::from)).collect();
    let keys: Vec<Option<&str>> = runs.iter().map(|run| run.uniqueness_key.as_deref()).collect();
    let until: Vec<Option<DateTime<Utc>>> = runs.iter().map(|run| run.unique_until).collect();
    let parents: Vec<Option<Uuid>> = runs.iter().map(|run| run.parent_id.map(|id| id.0)).collect();
    let traces: Vec<Option<String>> = runs.iter().map(|run| run.traceparent.map(|trace| trace.to_string())).collect();
    let rows = sqlx::query_file!(
        "src/store/enqueue.sql",
        &ids,
        &created,
        &jobs,
        &inputs as &[Option<&Value>],
        &not_before as &[Option<DateTime<Utc>>],
        &priorities as &[Option<i16>],
        &keys as &[Option<&str>],
        &until as &[Option<DateTime<Utc>>],
        &parents as &[Option<Uuid>],
        &traces as &[Option<String>],
        now,
        by
    )
    .fetch_all(executor)
    .await?;
    let outcomes = rows.into_iter().map(|row| match row.holder {
        _ if row.is_created => {
            let mut run = CreatedRun::new(queued_run!(row), TriggerSource::Enqueue, OccurrenceStatus::Queued, None);
            run.row.waits_until = row.not_before;
            EnqueueOutcome::Created(Box::new(run))
        }
        _ if row.is_known => EnqueueOutcome::Known,
        Some(holder) => EnqueueOutcome::Duplicate(OccurrenceId(holder)),
        None if !row.job_exists => EnqueueOutcome::JobNotFound,
        // A concurrent request with the same id was first.
        None => EnqueueOutcome::Known,
    });
    Ok(outcomes.collect())
}
