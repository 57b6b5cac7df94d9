//! Changes of open occurrences that stay open: a start, progress, a lost run, a further attempt.

use chrono::{DateTime, Utc};
use milvaion_api::views::StatusChange;
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use serde_json::Value;
use sqlx::{Executor, Postgres};
use uuid::Uuid;

use super::{
    Result,
    occurrences::{ChangedRun, changed_run},
};

/// A progress that a worker reported.
#[derive(Clone, Debug)]
pub struct ReportedProgress {
    /// The time of the report, by the worker's clock. An earlier one changes nothing.
    pub at: DateTime<Utc>,
    /// The progress: `{percent, message}`.
    pub value: Value,
}

/// A change of an open occurrence.
#[derive(Clone, Debug)]
pub struct RunAdvance {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The attempt that the change is about; nothing happens if another one is in force.
    pub attempt: i32,
    /// The new status: Running, Unknown, or Queued for the next attempt.
    pub status: OccurrenceStatus,
    /// The instance that reports the change.
    pub instance_id: Option<String>,
    /// The start of the attempt, by the worker's clock.
    pub started_at: Option<DateTime<Utc>>,
    /// The error text of a failed attempt.
    pub exception: Option<String>,
    /// First line of the error text.
    pub note: Option<String>,
    /// The last progress.
    pub progress: Option<ReportedProgress>,
    /// The status changes to add; the first one is Running exactly if `started_at` is known.
    pub steps: Vec<StatusChange>,
    /// The earliest start of the next attempt; none means at once.
    pub not_before: Option<DateTime<Utc>>,
    /// True if it uses up one of the job's retries.
    pub counts_as_failure: bool,
    /// True if the next attempt is a requeue of a lost run.
    pub is_requeue: bool,
    /// True if the next attempt runs beside no other quarantined run of its worker.
    pub is_quarantined: bool,
    /// True if the next attempt was decided. A change to Queued without a decision changes nothing.
    pub is_decided: bool,
}

/// Changes occurrences where their present status allows it. Returns those that changed.
///
/// # Errors
///
/// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none changed.
pub(super) async fn advance_runs<'c>(
    executor: impl Executor<'c, Database = Postgres>,
    changes: &[RunAdvance],
    now: DateTime<Utc>,
) -> Result<Vec<ChangedRun>> {
    let mut changes: Vec<&RunAdvance> = changes.iter().collect();
    changes.sort_by_key(|change| change.id);
    let ids: Vec<Uuid> = changes.iter().map(|change| change.id.0).collect();
    let attempts: Vec<i32> = changes.iter().map(|change| change.attempt).collect();
    let statuses: Vec<&str> = changes.iter().map(|change| change.status.slug()).collect();
    let instances: Vec<Option<&str>> = changes.iter().map(|change| change.instance_id.as_deref()).collect();
    let started: Vec<Option<DateTime<Utc>>> = changes.iter().map(|change| change.started_at).collect();
    let exceptions: Vec<Option<&str>> = changes.iter().map(|change| change.exception.as_deref()).collect();
    let notes: Vec<Option<&str>> = changes.iter().map(|change| change.note.as_deref()).collect();
    let progress: Vec<Option<&Value>> =
        changes.iter().map(|change| change.progress.as_ref().map(|progress| &progress.value)).collect();
    let progress_at: Vec<Option<DateTime<Utc>>> =
        changes.iter().map(|change| change.progress.as_ref().map(|progress| progress.at)).collect();
    let steps: Vec<Value> =
        changes.iter().map(|change| serde_json::to_value(&change.steps).unwrap_or_default()).collect();
    let not_before: Vec<Option<DateTime<Utc>>> = changes.iter().map(|change| change.not_before).collect();
    let failed: Vec<bool> = changes.iter().map(|change| change.counts_as_failure).collect();
    let requeued: Vec<bool> = changes.iter().map(|change| change.is_requeue).collect();
    let quarantined: Vec<bool> = changes.iter().map(|change| change.is_quarantined).collect();
    let decided: Vec<bool> = changes.iter().map(|change| change.is_decided).collect();
    let rows = sqlx::query_file!(
        "src/store/advance.sql",
        &ids,
        &attempts,
        &statuses as &[&str],
        &instances as &[Option<&str>],
        &started as &[Option<DateTime<Utc>>],
        &exceptions as &[Option<&str>],
        &notes as &[Option<&str>],
        &progress as &[Option<&Value>],
        &steps,
        &not_before as &[Option<DateTime<Utc>>],
        &failed,
        &requeued,
        &quarantined,
        &decided,
        &progress_at as &[Option<DateTime<Utc>>],
        now
    )
    .fetch_all(executor)
    .await?;
    rows.into_iter().map(|row| Ok(changed_run!(row))).collect()
}
