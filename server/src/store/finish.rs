//! The end of occurrences: one statement for all of them, whether a worker, a user or the server causes it.
//!
//! The statement moves the row from `runs` to `history`, records a failure and counts the end. Ending the rest of what an
//! occurrence holds is not needed: its slot is a column of the row that is gone.

use chrono::{DateTime, Utc};
use milvaion_api::views::StatusChange;
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use milvaion_schedule::rules::{in_words, missed_start_note};
use serde_json::Value;
use sqlx::{Executor, Postgres};
use uuid::Uuid;

use super::{
    Result, Store,
    advance::ReportedProgress,
    occurrences::{ChangedRun, changed_run},
    partitions::with_partitions,
};

/// The end of an occurrence.
#[derive(Clone, Debug)]
pub struct RunEnd {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The attempt that ends; nothing happens if another one is in force.
    pub attempt: i32,
    /// The final status.
    pub status: OccurrenceStatus,
    /// The instance that reports the end.
    pub instance_id: Option<String>,
    /// The start of the attempt, by the worker's clock, if it was not reported before.
    pub started_at: Option<DateTime<Utc>>,
    /// The end, by the worker's clock; none means now.
    pub ended_at: Option<DateTime<Utc>>,
    /// Duration of the attempt in milliseconds.
    pub duration_ms: Option<i64>,
    /// The job's return value.
    pub result: Option<String>,
    /// The error text.
    pub exception: Option<String>,
    /// True if the exception of the previous attempt, if there is one, stays.
    pub keeps_exception: bool,
    /// First line of the exception, or the reason for the end.
    pub note: Option<String>,
    /// The last progress.
    pub progress: Option<ReportedProgress>,
    /// The status changes to add; the first one is Running exactly if `started_at` is known.
    pub steps: Vec<StatusChange>,
    /// Fingerprint of a failure; none means one that is made of the cause and the job type.
    pub fingerprint: Option<String>,
    /// Cause of a failure.
    pub cause: Option<String>,
    /// The user who cancels it.
    pub cancelled_by: Option<String>,
}

impl RunEnd {
    /// Returns an end that the server or a user causes, at `now`. It keeps the exception of the previous attempt.
    #[must_use]
    pub fn new(id: OccurrenceId, attempt: i32, status: OccurrenceStatus, note: String, now: DateTime<Utc>) -> Self {
        let step = StatusChange { status, at: now, attempt, by: None, note: Some(note.clone()) };
        Self {
            id,
            attempt,
            status,
            instance_id: None,
            started_at: None,
            ended_at: None,
            duration_ms: None,
            result: None,
            exception: None,
            keeps_exception: true,
            note: Some(note),
            progress: None,
            steps: vec![step],
            fingerprint: None,
            cause: None,
            cancelled_by: None,
        }
    }
}

/// A queued occurrence that has passed its start limit.
#[derive(Clone, Debug)]
pub struct MissedRun {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The time by which a worker had to begin it.
    pub start_before: DateTime<Utc>,
    /// The reason for the skip, as its note.
    pub note: String,
}

/// Ends occurrences that are open and in the given attempt. Returns those that ended.
///
/// # Errors
///
/// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none ended.
pub(super) async fn finish_runs<'c>(
    executor: impl Executor<'c, Database = Postgres>,
    ends: &[RunEnd],
    now: DateTime<Utc>,
) -> Result<Vec<ChangedRun>> {
    let mut ends: Vec<&RunEnd> = ends.iter().collect();
    ends.sort_by_key(|end| end.id);
    let ids: Vec<Uuid> = ends.iter().map(|end| end.id.0).collect();
    let attempts: Vec<i32> = ends.iter().map(|end| end.attempt).collect();
    let statuses: Vec<&str> = ends.iter().map(|end| end.status.slug()).collect();
    let instances: Vec<Option<&str>> = ends.iter().map(|end| end.instance_id.as_deref()).collect();
    let started: Vec<Option<DateTime<Utc>>> = ends.iter().map(|end| end.started_at).collect();
    let ended: Vec<Option<DateTime<Utc>>> = ends.iter().map(|end| end.ended_at).collect();
    let durations: Vec<Option<i64>> = ends.iter().map(|end| end.duration_ms).collect();
    let results: Vec<Option<&str>> = ends.iter().map(|end| end.result.as_deref()).collect();
    let exceptions: Vec<Option<&str>> = ends.iter().map(|end| end.exception.as_deref()).collect();
    let keeps: Vec<bool> = ends.iter().map(|end| end.keeps_exception).collect();
    let notes: Vec<Option<&str>> = ends.iter().map(|end| end.note.as_deref()).collect();
    let progress: Vec<Option<&Value>> =
        ends.iter().map(|end| end.progress.as_ref().map(|progress| &progress.value)).collect();
    let progress_at: Vec<Option<DateTime<Utc>>> =
        ends.iter().map(|end| end.progress.as_ref().map(|progress| progress.at)).collect();
    let steps: Vec<Value> = ends.iter().map(|end| serde_json::to_value(&end.steps).unwrap_or_default()).collect();
    let fingerprints: Vec<Option<&str>> = ends.iter().map(|end| end.fingerprint.as_deref()).collect();
    let causes: Vec<Option<&str>> = ends.iter().map(|end| end.cause.as_deref()).collect();
    let cancelled_by: Vec<Option<&str>> = ends.iter().map(|end| end.cancelled_by.as_deref()).collect();
    let rows = sqlx::query_file!(
        "src/store/finish.sql",
        &ids,
        &attempts,
        &statuses as &[&str],
        &instances as &[Option<&str>],
        &started as &[Option<DateTime<Utc>>],
        &ended as &[Option<DateTime<Utc>>],
        &durations as &[Option<i64>],
        &results as &[Option<&str>],
        &exceptions as &[Option<&str>],
        &keeps,
        &notes as &[Option<&str>],
        &progress as &[Option<&Value>],
        &steps,
        &fingerprints as &[Option<&str>],
        &causes as &[Option<&str>],
        &cancelled_by as &[Option<&str>],
        &progress_at as &[Option<DateTime<Utc>>],
        now
    )
    .fetch_all(executor)
    .await?;
    rows.into_iter().map(|row| Ok(changed_run!(row))).collect()
}

impl Store {
    /// Skips at most `limit` queued occurrences that no worker has begun for `expiry`, counted from their due time, from the
    /// last change of their status or from the time at which they became ready to be sent, whichever is the latest. Returns them.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none ended.
    pub async fn expire_queued(
        &self,
        expiry: chrono::Duration,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<ChangedRun>> {
        with_partitions!(self, now, self.try_expire_queued(expiry, limit, now))
    }

    async fn try_expire_queued(
        &self,
        expiry: chrono::Duration,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<ChangedRun>> {
        let before = now - expiry;
        let mut tx = self.pool().begin().await?;
        let waiting = sqlx::query!(
            "SELECT id, attempt FROM runs
              -- It is sent, unsent or waits for a slot, each of which has an index. What is delayed is not read.
              WHERE id = ANY (ARRAY (
                    (SELECT id FROM runs WHERE status = 'queued' AND published_at <= $1 ORDER BY published_at LIMIT $2)
                    UNION ALL
                    (SELECT id FROM runs WHERE publish_after <= $1 ORDER BY publish_after LIMIT $2)
                    UNION ALL
                    (SELECT id FROM runs WHERE NOT has_slot AND slot_group IS NOT NULL AND scheduled_for < $1
                      ORDER BY scheduled_for LIMIT $2)))
                AND status = 'queued' AND scheduled_for < $1
                -- The end of a delay and the grant of a slot make it ready to be sent.
                AND coalesce(not_before, publish_after, published_at, $1) <= $1
                AND coalesce((status_changes -> -1 ->> 'at')::timestamptz, created_at) < $1
              ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED",
            before,
            limit
        )
        .fetch_all(&mut tx)
        .await?;
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let expiry = in_words(u32::try_from(expiry.num_seconds()).unwrap_or(u32::MAX));
        let note = format!("Skipped: no worker began it within {expiry}.");
        let skip = |id, attempt| RunEnd::new(OccurrenceId(id), attempt, OccurrenceStatus::Skipped, note.clone(), now);
        let ends: Vec<RunEnd> = waiting.into_iter().map(|row| skip(row.id, row.attempt)).collect();
        let ended = finish_runs(&mut tx, &ends, now).await?;
        tx.commit().await?;
        self.measure_changed(&ended);
        Ok(ended)
    }

    /// Returns at most `limit` queued occurrences that have passed their start limit, the earliest limit first, after that
    /// of `after`. Only a first attempt has a start limit: before a later one, a worker has begun the occurrence.
    pub async fn missed_starts(
        &self,
        after: Option<&MissedRun>,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<MissedRun>> {
        let rows = sqlx::query!(
            r#"SELECT id, scheduled_for, start_before AS "start_before!" FROM runs
                WHERE start_before IS NOT NULL AND status = 'queued' AND attempt = 1 AND start_before < $1
                  AND (start_before, id) > (coalesce($2::timestamptz, '-infinity'), $3::uuid)
                ORDER BY start_before, id LIMIT $4"#,
            now,
            after.map(|last| last.start_before),
            after.map_or(Uuid::nil(), |last| last.id.0),
            limit
        )
        .fetch_all(self.pool())
        .await?;
        let missed = rows.into_iter().map(|row| MissedRun {
            id: OccurrenceId(row.id),
            start_before: row.start_before,
            note: missed_start_note(row.scheduled_for, row.start_before),
        });
        Ok(missed.collect())
    }

    /// Skips occurrences that have passed their start limit, if no worker has begun them meanwhile. Returns those that were
    /// skipped.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none ended.
    pub async fn skip_missed_starts(&self, missed: &[MissedRun], now: DateTime<Utc>) -> Result<Vec<ChangedRun>> {
        if missed.is_empty() {
            return Ok(Vec::new());
        }
        with_partitions!(self, now, self.try_skip_missed_starts(missed, now))
    }

    async fn try_skip_missed_starts(&self, missed: &[MissedRun], now: DateTime<Utc>) -> Result<Vec<ChangedRun>> {
        let ids: Vec<Uuid> = missed.iter().map(|run| run.id.0).collect();
        let mut tx = self.pool().begin().await?;
        let queued = sqlx::query_scalar!(
            "SELECT id FROM runs WHERE id = ANY($1) AND status = 'queued' AND attempt = 1
              ORDER BY id FOR UPDATE SKIP LOCKED",
            &ids
        )
        .fetch_all(&mut tx)
        .await?;
        if queued.is_empty() {
            return Ok(Vec::new());
        }
        let skip = |run: &MissedRun| RunEnd::new(run.id, 1, OccurrenceStatus::Skipped, run.note.clone(), now);
        let ends: Vec<RunEnd> = missed.iter().filter(|run| queued.contains(&run.id.0)).map(skip).collect();
        let ended = finish_runs(&mut tx, &ends, now).await?;
        tx.commit().await?;
        self.measure_changed(&ended);
        Ok(ended)
    }
}
