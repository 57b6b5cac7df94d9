//! The guarded transition for worker reports: a change is applied only where the row's present status allows it.

use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

use chrono::{DateTime, Utc};
use milvaion_api::views::OccurrenceRow;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use serde_json::Value;
use uuid::Uuid;

use super::{
    Result, Store,
    advance::{ReportedProgress, RunAdvance, advance_runs},
    finish::{RunEnd, finish_runs},
    occurrences::status,
    partitions::with_partitions,
    pool::StoreTransaction,
    readable,
};
use crate::domain::{claim::RecordedAttempt, lost_run::LostRunRule, retry::RetryContext, transition::AttemptChange};

/// The effects of a batch of changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppliedChanges {
    /// The changed occurrences, as they are now.
    pub rows: Vec<OccurrenceRow>,
    /// The occurrences whose row named another instance for this attempt before.
    pub taken_over: HashSet<OccurrenceId>,
    /// The running occurrences whose attempt was known to have started before.
    pub known_starts: HashSet<OccurrenceId>,
    /// True if a slot was freed.
    pub slot_freed: bool,
    /// True if failures were recorded.
    pub has_failures: bool,
    /// The jobs that ended, of those whose pause counts from the end of a run.
    pub ended_jobs: Vec<JobId>,
    /// True if an occurrence is now delayed until its next attempt.
    pub has_delayed: bool,
}

impl Store {
    /// Applies changes where the row's present status allows them, and updates the statistics. Returns the effects; a
    /// late or repeated change, or one about an unknown occurrence, has none.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was applied.
    pub async fn apply(&self, changes: &[AttemptChange], now: DateTime<Utc>) -> Result<AppliedChanges> {
        with_partitions!(self, now, self.try_apply(changes, now))
    }

    async fn try_apply(&self, changes: &[AttemptChange], now: DateTime<Utc>) -> Result<AppliedChanges> {
        let since = Instant::now();
        let (ends, advances): (Vec<&AttemptChange>, Vec<&AttemptChange>) =
            changes.iter().partition(|change| change.status.is_final());
        let ends: Vec<RunEnd> = ends.into_iter().map(end).collect();
        let advances: Vec<RunAdvance> = advances.into_iter().map(advance).collect();
        let has_checkpoints = changes.iter().any(|change| change.checkpoint.is_some());
        // Most batches need one statement, which is a transaction by itself.
        let (advanced, ended) = match (advances.is_empty(), ends.is_empty()) {
            (false, _) | (_, false) if has_checkpoints => {
                let mut tx = self.pool().begin().await?;
                lock_runs(&mut tx, changes).await?;
                // First, because the statements that follow may begin the next attempt.
                store_checkpoints(&mut tx, changes, now).await?;
                let advanced = advance_runs(&mut tx, &advances, now).await?;
                let ended = finish_runs(&mut tx, &ends, now).await?;
                tx.commit().await?;
                (advanced, ended)
            }
            (true, true) => (Vec::new(), Vec::new()),
            (false, true) => (advance_runs(self.pool(), &advances, now).await?, Vec::new()),
            (true, false) => (Vec::new(), finish_runs(self.pool(), &ends, now).await?),
            (false, false) => {
                let mut tx = self.pool().begin().await?;
                lock_runs(&mut tx, changes).await?;
                let advanced = advance_runs(&mut tx, &advances, now).await?;
                let ended = finish_runs(&mut tx, &ends, now).await?;
                tx.commit().await?;
                (advanced, ended)
            }
        };
        self.measure_changed(&advanced);
        self.measure_changed(&ended);
        self.measure_stored(changes, &ended, now + since.elapsed());
        let mut applied = AppliedChanges::default();
        for run in advanced.into_iter().chain(ended) {
            applied.has_delayed |= run.row.waits_until.is_some();
            if run.row.status == OccurrenceStatus::Running && !run.has_new_start {
                applied.known_starts.insert(run.row.id);
            }
            if run.was_elsewhere {
                applied.taken_over.insert(run.row.id);
            }
            applied.slot_freed |= run.frees_slot;
            applied.ended_jobs.extend(run.starts_pause.then_some(run.row.job_id));
            applied.has_failures |= matches!(run.row.status, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut);
            applied.rows.push(run.row);
        }
        Ok(applied)
    }

    /// Returns the recorded attempts of some occurrences; unknown occurrences are not included.
    pub async fn recorded_attempts(&self, wanted: &[OccurrenceId]) -> Result<HashMap<OccurrenceId, RecordedAttempt>> {
        let ids: Vec<Uuid> = wanted.iter().map(|id| id.0).collect();
        let created: Vec<DateTime<Utc>> = wanted.iter().map(|id| id.created_at()).collect();
        let rows = sqlx::query!(
            r#"SELECT o.id AS "id!", o.status::text AS "status!", o.attempt AS "attempt!", o.instance_id,
                      o.is_held AS "is_held!", o.started_at
                 FROM unnest($1::uuid[], $2::timestamptz[]) AS a (id, created_at)
                CROSS JOIN LATERAL (
                      SELECT * FROM occurrences o
                       WHERE o.id = a.id AND o.filed_at >= a.created_at - interval '1 hour') o"#,
            &ids,
            &created
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                let recorded = RecordedAttempt {
                    status: status(&row.status)?,
                    attempt: row.attempt,
                    instance_id: row.instance_id,
                    is_held: row.is_held,
                    started_at: row.started_at,
                };
                Ok((OccurrenceId(row.id), recorded))
            })
            .collect()
    }

    /// Returns the retry contexts of occurrences, each only if it is still in the given attempt.
    pub async fn retry_contexts(&self, wanted: &[(OccurrenceId, i32)]) -> Result<HashMap<OccurrenceId, RetryContext>> {
        let ids: Vec<Uuid> = wanted.iter().map(|(id, _)| id.0).collect();
        let attempts: Vec<i32> = wanted.iter().map(|(_, attempt)| *attempt).collect();
        // The retry delay and its jitter are the job's present ones, so an edit of a job that keeps failing takes
        // effect for this failure too. A rule that this version cannot read has its default here: the run has begun
        // already, and its report cannot wait for a newer server.
        let rows = sqlx::query!(
            r#"SELECT o.id AS "id!", o.failures AS "failures!", o.max_retries AS "max_retries!",
                      j.rules AS "rules?", o.cancel_requested_at IS NOT NULL AS "is_cancelled!",
                      o.on_lost AS "on_lost!", o.requeues AS "requeues!",
                      coalesce((SELECT i.stopping AND i.stopped_at IS NULL FROM worker_instances i
                                 WHERE i.id = o.instance_id), false) AS "is_stopping!"
                 FROM unnest($1::uuid[], $2::int[]) AS a (id, attempt)
                CROSS JOIN LATERAL (SELECT * FROM runs o WHERE o.id = a.id AND o.attempt = a.attempt OFFSET 0) o
                 LEFT JOIN LATERAL (SELECT * FROM jobs j WHERE j.id = o.job_id OFFSET 0) j ON true"#,
            &ids,
            &attempts
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let rules = row.rules.map(|rules| readable::rules(&rules).0).unwrap_or_default();
                let (base_delay, jitter_percent) = rules.first_retry_delay();
                let context = RetryContext {
                    failures: row.failures,
                    max_retries: row.max_retries,
                    base_delay,
                    jitter_percent,
                    is_cancelled: row.is_cancelled,
                    on_lost: LostRunRule::from_word(&row.on_lost),
                    requeues: row.requeues,
                    is_stopping: row.is_stopping,
                };
                (OccurrenceId(row.id), context)
            })
            .collect())
    }
}

/// Stores the checkpoints of changes about the attempts that are in force. The caller has locked the occurrences.
async fn store_checkpoints(
    connection: &mut StoreTransaction,
    changes: &[AttemptChange],
    now: DateTime<Utc>,
) -> Result<()> {
    let mut found: Vec<_> = changes.iter().filter_map(|change| Some((change, change.checkpoint.as_ref()?))).collect();
    found.sort_by_key(|(change, _)| change.occurrence_id);
    let ids: Vec<Uuid> = found.iter().map(|(change, _)| change.occurrence_id.0).collect();
    let attempts: Vec<i32> = found.iter().map(|(change, _)| change.attempt).collect();
    let times: Vec<DateTime<Utc>> = found.iter().map(|(_, (at, _))| *at).collect();
    let values: Vec<&Value> = found.iter().map(|(_, (_, value))| value).collect();
    sqlx::query!(
        "INSERT INTO run_checkpoints AS c (run_id, attempt, checkpoint, reported_at, stored_at)
         SELECT r.id, r.attempt, r.checkpoint, r.at, $5
           FROM unnest((SELECT $1::uuid[]), (SELECT $2::int[]), (SELECT $3::jsonb[]), (SELECT $4::timestamptz[]))
                AS r (id, attempt, checkpoint, at)
          CROSS JOIN LATERAL (SELECT o.id FROM runs o WHERE o.id = r.id AND o.attempt = r.attempt OFFSET 0) o
         ON CONFLICT (run_id) DO UPDATE
            SET attempt = excluded.attempt, checkpoint = excluded.checkpoint, reported_at = excluded.reported_at,
                stored_at = excluded.stored_at
          WHERE (c.attempt, c.reported_at) <= (excluded.attempt, excluded.reported_at)",
        &ids,
        &attempts,
        &values as &[&Value],
        &times,
        now
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Locks the occurrences of a batch in the order of their ids, before two statements lock a part each.
async fn lock_runs(connection: &mut StoreTransaction, changes: &[AttemptChange]) -> Result<()> {
    let ids: Vec<Uuid> = changes.iter().map(|change| change.occurrence_id.0).collect();
    sqlx::query!("SELECT FROM runs WHERE id = ANY($1) ORDER BY id FOR UPDATE", &ids).execute(connection).await?;
    Ok(())
}

/// Returns the last progress of a change.
fn progress(change: &AttemptChange) -> Option<ReportedProgress> {
    let (at, progress) = change.progress.as_ref()?;
    Some(ReportedProgress { at: *at, value: serde_json::to_value(progress).ok()? })
}

/// Returns the end that a change describes.
fn end(change: &AttemptChange) -> RunEnd {
    RunEnd {
        id: change.occurrence_id,
        attempt: change.attempt,
        status: change.status,
        instance_id: Some(change.instance_id.clone()),
        started_at: change.started_at,
        ended_at: change.ended_at,
        duration_ms: change.duration_ms,
        result: change.result.clone(),
        exception: change.exception.clone(),
        keeps_exception: false,
        note: change.note.clone(),
        progress: progress(change),
        steps: change.steps.clone(),
        fingerprint: change.fingerprint.clone(),
        cause: change.cause.map(|cause| cause.as_str().to_owned()),
        cancelled_by: None,
    }
}

/// Returns the change of an occurrence that stays open.
fn advance(change: &AttemptChange) -> RunAdvance {
    RunAdvance {
        id: change.occurrence_id,
        attempt: change.attempt,
        status: change.status,
        instance_id: Some(change.instance_id.clone()),
        started_at: change.started_at,
        exception: change.exception.clone(),
        note: change.note.clone(),
        progress: progress(change),
        steps: change.steps.clone(),
        not_before: change.waits_until,
        counts_as_failure: change.counts_as_failure,
        is_requeue: change.is_requeue,
        is_quarantined: change.is_quarantined,
        is_decided: change.waits_until.is_some(),
    }
}
