//! The birth of occurrences: one statement for all of them, whether the schedule, a user or a retry asks for it. Those that
//! programs enqueue in bulk have [another](super::enqueue), which counts nothing.
//!
//! The statement copies the job's present definition into the row, decides whether the occurrence runs, waits for a slot
//! or is skipped, and counts it. A request is one round trip, because a user waits for it.

use std::net::IpAddr;

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    trace::Traceparent,
};
use serde_json::Value;
use sqlx::{Executor, Postgres};
use uuid::Uuid;

use super::Result;

/// The most open occurrences of one job. A due time beyond it is recorded as skipped, and a request is refused: nothing
/// reads a longer queue, and it would fill the table that everything else reads.
pub const MAX_OPEN_RUNS_PER_JOB: i64 = 10_000;

/// Retention of an idempotency key.
pub const IDEMPOTENCY_KEY_RETENTION: Duration = Duration::days(7);

/// An occurrence to create.
#[derive(Clone, Debug)]
pub struct RunBirth {
    /// Identifier.
    pub id: OccurrenceId,
    /// The job.
    pub job_id: JobId,
    /// The reason for the birth.
    pub cause: BirthCause,
}

/// The reason why an occurrence is created.
#[derive(Clone, Debug)]
pub enum BirthCause {
    /// The job is due. Nothing is created if its due time or its version has changed.
    Schedule {
        /// The job's due time as it was read.
        due: DateTime<Utc>,
        /// The job's version as it was read.
        version: i32,
        /// The job's next due time.
        next_fire_at: Option<DateTime<Utc>>,
        /// True if the occurrence is only recorded as skipped.
        is_skipped: bool,
        /// Reason for a skip, or the misfires that the occurrence stands for.
        remark: Option<String>,
    },
    /// A user or a program asks for it.
    Request(RunRequest),
}

/// A request for an occurrence.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    /// True if a program asks for it with a token.
    pub is_script: bool,
    /// Its author.
    pub by: String,
    /// Its reason.
    pub reason: Option<String>,
    /// Input; none means the job's input.
    pub input: Option<Value>,
    /// Failed occurrence that the new one retries.
    pub retry_of: Option<OccurrenceId>,
    /// True if nothing is created while the job or the cluster is paused, or while an occurrence of a job is open whose
    /// runs are skipped then.
    pub is_checked: bool,
    /// True if the transaction has locked the job's row. Without the lock, a check creates nothing for a job whose runs
    /// are skipped while one is open: two requests could miss each other's occurrence.
    pub has_lock: bool,
    /// True if it runs at once, regardless of concurrency limits.
    pub takes_slot: bool,
    /// Idempotency key: nothing is created if an earlier request for the job had the same one.
    pub key: Option<String>,
    /// Network address of the request, if it is known.
    pub address: Option<IpAddr>,
    /// Position in the trace that the request continues; none for a trace of its own.
    pub traceparent: Option<Traceparent>,
}

/// An occurrence that was just created.
#[derive(Debug)]
pub(super) struct CreatedRun {
    pub(super) id: Uuid,
    pub(super) job_id: Uuid,
    pub(super) job_name: String,
    pub(super) worker_id: String,
    pub(super) job_type: String,
    /// Its input, if it was requested.
    pub(super) job_data: Option<Value>,
    pub(super) scheduled_for: DateTime<Utc>,
    pub(super) trigger: String,
    pub(super) priority: i16,
    pub(super) max_retries: i16,
    pub(super) timeout_seconds: Option<i32>,
    pub(super) is_held: bool,
    pub(super) retry_of: Option<Uuid>,
    /// Reason for a skip; none if it is queued.
    pub(super) skip_note: Option<String>,
    /// Position in the trace that it continues.
    pub(super) traceparent: Option<String>,
    /// Time until which it is delayed.
    pub(super) not_before: Option<DateTime<Utc>>,
    /// Occurrence that enqueued it.
    pub(super) parent_id: Option<Uuid>,
}

/// Creates occurrences, and returns those that were created, skipped ones included. A leader's `epoch` must be the newest
/// for scheduled ones.
///
/// # Errors
///
/// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was created.
pub(super) async fn create_runs<'c>(
    executor: impl Executor<'c, Database = Postgres>,
    births: &[RunBirth],
    epoch: Option<i64>,
    now: DateTime<Utc>,
) -> Result<Vec<CreatedRun>> {
    let column = BirthColumns::of(births);
    Ok(sqlx::query_file_as!(
        CreatedRun,
        "src/store/create.sql",
        &column.ids,
        &column.created,
        &column.jobs,
        &column.triggers as &[&str],
        &column.due as &[Option<DateTime<Utc>>],
        &column.versions as &[Option<i32>],
        &column.next as &[Option<DateTime<Utc>>],
        &column.skipped,
        &column.remarks as &[Option<&str>],
        &column.authors as &[Option<&str>],
        &column.reasons as &[Option<&str>],
        &column.inputs as &[Option<&Value>],
        &column.retries as &[Option<Uuid>],
        &column.checked,
        &column.slots,
        now,
        epoch,
        MAX_OPEN_RUNS_PER_JOB,
        &column.keys as &[Option<&str>],
        &column.addresses as &[Option<String>],
        now - IDEMPOTENCY_KEY_RETENTION,
        &column.locks,
        &column.traceparents as &[Option<String>]
    )
    .fetch_all(executor)
    .await?)
}

/// The births as arrays, one for each parameter of the statement.
#[derive(Debug, Default)]
struct BirthColumns<'a> {
    ids: Vec<Uuid>,
    created: Vec<DateTime<Utc>>,
    jobs: Vec<Uuid>,
    triggers: Vec<&'static str>,
    due: Vec<Option<DateTime<Utc>>>,
    versions: Vec<Option<i32>>,
    next: Vec<Option<DateTime<Utc>>>,
    skipped: Vec<bool>,
    remarks: Vec<Option<&'a str>>,
    authors: Vec<Option<&'a str>>,
    reasons: Vec<Option<&'a str>>,
    inputs: Vec<Option<&'a Value>>,
    retries: Vec<Option<Uuid>>,
    checked: Vec<bool>,
    slots: Vec<bool>,
    keys: Vec<Option<&'a str>>,
    addresses: Vec<Option<String>>,
    locks: Vec<bool>,
    traceparents: Vec<Option<String>>,
}

impl<'a> BirthColumns<'a> {
    fn of(births: &'a [RunBirth]) -> Self {
        let mut columns = Self::default();
        for birth in births {
            columns.ids.push(birth.id.0);
            columns.created.push(birth.id.created_at());
            columns.jobs.push(birth.job_id.0);
            let (schedule, request) = match &birth.cause {
                BirthCause::Schedule { due, version, next_fire_at, is_skipped, remark } => {
                    (Some((*due, *version, *next_fire_at, *is_skipped, remark.as_deref())), None)
                }
                BirthCause::Request(request) => (None, Some(request)),
            };
            columns.triggers.push(match request {
                None => "schedule",
                Some(RunRequest { retry_of: Some(_), .. }) => "retry",
                Some(RunRequest { is_script: true, .. }) => "api",
                Some(_) => "manual",
            });
            columns.due.push(schedule.map(|(due, ..)| due));
            columns.versions.push(schedule.map(|(_, version, ..)| version));
            columns.next.push(schedule.and_then(|(_, _, next, ..)| next));
            columns.skipped.push(schedule.is_some_and(|(_, _, _, is_skipped, _)| is_skipped));
            columns.remarks.push(schedule.and_then(|(.., remark)| remark));
            columns.authors.push(request.map(|request| request.by.as_str()));
            columns.reasons.push(request.and_then(|request| request.reason.as_deref()));
            columns.inputs.push(request.and_then(|request| request.input.as_ref()));
            columns.retries.push(request.and_then(|request| request.retry_of).map(|id| id.0));
            columns.checked.push(request.is_some_and(|request| request.is_checked));
            columns.locks.push(request.is_some_and(|request| request.has_lock));
            columns.slots.push(request.is_some_and(|request| request.takes_slot));
            columns.keys.push(request.and_then(|request| request.key.as_deref()));
            columns.addresses.push(request.and_then(|request| request.address).map(|address| address.to_string()));
            columns.traceparents.push(request.and_then(|request| request.traceparent).map(|trace| trace.to_string()));
        }
        columns
    }
}
