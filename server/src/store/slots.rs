//! Slots: open occurrences that count against a concurrency limit.
//!
//! Jobs with a limit, and jobs that share a concurrency key, insert their occurrences without a slot (`has_slot`); this
//! module grants the slots. One server at a time considers the slots of a group together, so a limit is never exceeded.
//! The dispatch of due jobs, which is the most frequent statement, never counts slots.
//!
//! An occurrence has a copy of the limits that its job had when it began to wait. An edit of the limits changes the copies of
//! those that still wait, in its transaction.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{JobId, OccurrenceId};
use milvaion_schedule::rules::Rules;
use sqlx::PgExecutor;
use uuid::Uuid;

use super::{
    Result, Store,
    create::{MAX_OPEN_RUNS_PER_JOB, queued_run},
    rules::RuleColumns,
};
use crate::domain::message::QueuedRun;

impl Store {
    /// Grants at most `limit` slots to waiting occurrences. Grants none while the cluster is paused.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then no slot was granted.
    pub async fn grant_slots(&self, limit: i64, now: DateTime<Utc>) -> Result<Vec<QueuedRun>> {
        let has_waiting = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT 1 FROM runs WHERE NOT has_slot AND slot_group IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM cluster_pause) AS "waits!""#
        )
        .fetch_one(self.pool())
        .await?;
        if !has_waiting {
            return Ok(Vec::new());
        }
        let mut tx = self.pool().begin().await?;
        // A separate statement, so that the next one sees the changes of the server that held the lock before. It also
        // keeps the next one from collecting a whole queue to sort it, which PostgreSQL prefers while it takes the queue for
        // short; the index has the order.
        sqlx::query!(
            "SELECT set_config('enable_bitmapscan', 'off', true), pg_advisory_xact_lock(hashtext('milvaion.slots'))::text"
        )
        .fetch_one(&mut tx)
        .await?;
        let rows = sqlx::query_file!("src/store/grant.sql", limit, now).fetch_all(&mut tx).await?;
        tx.commit().await?;
        Ok(rows.into_iter().map(|row| queued_run!(row)).collect())
    }

    /// Returns open occurrences, oldest first, each with the newer waiting occurrence of its job that replaces it.
    pub async fn occurrences_to_replace(&self, limit: i64) -> Result<Vec<(OccurrenceId, OccurrenceId)>> {
        let rows = sqlx::query!(
            r#"SELECT o.id AS "old!", w.id AS "new!"
                 FROM (SELECT DISTINCT ON (slot_group) slot_group, id FROM runs
                        WHERE replaces AND NOT has_slot AND slot_group IS NOT NULL ORDER BY slot_group, id DESC) w
                CROSS JOIN LATERAL (
                      -- What is asked to end already keeps no other from being found.
                      SELECT id FROM runs r
                       WHERE r.job_id = w.slot_group AND r.id < w.id
                         AND (r.status <> 'running' OR r.cancel_requested_at IS NULL)
                       LIMIT $1) o
                ORDER BY o.id LIMIT $1"#,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (OccurrenceId(row.old), OccurrenceId(row.new))).collect())
    }

    /// Returns true if a run of the job is open.
    pub async fn has_open_run(&self, id: JobId) -> Result<bool> {
        Ok(sqlx::query_scalar!(r#"SELECT EXISTS (SELECT 1 FROM runs WHERE job_id = $1) AS "open!""#, id.0)
            .fetch_one(self.pool())
            .await?)
    }

    /// Schedules jobs whose pause counts from the end of a run, as soon as they have no open run, scheduled or manual.
    /// This is the only place where such a pause begins, however the run ended. Looks at all jobs, or only at `of`. Returns
    /// the jobs with their due times.
    pub async fn schedule_after_end(
        &self,
        of: Option<&[JobId]>,
        now: DateTime<Utc>,
    ) -> Result<Vec<(JobId, DateTime<Utc>)>> {
        let of: Option<Vec<Uuid>> = of.map(|ids| ids.iter().map(|id| id.0).collect());
        let rows = sqlx::query!(
            r#"WITH next AS (
                   SELECT j.id, j.version, greatest(j.start_at, $1::timestamptz + p.pause) AS at
                     FROM jobs j
                    -- A newer server may have written another value there, which must not stop the other jobs.
                    CROSS JOIN LATERAL (
                          SELECT CASE WHEN jsonb_typeof(j.schedule -> 'seconds') = 'number'
                                      THEN make_interval(secs => least((j.schedule ->> 'seconds')::float8, 31622400))
                                 END AS pause) p
                    WHERE j.id = ANY (coalesce($2, ARRAY (
                              SELECT id FROM jobs WHERE is_active AND schedule ->> 'from' = 'end')))
                      AND j.is_active AND j.schedule ->> 'from' = 'end' AND p.pause IS NOT NULL
                      AND (j.end_at IS NULL OR j.end_at > greatest(j.start_at, $1::timestamptz + p.pause))
                      AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id)
               ),
               locked AS (
                   SELECT d.job_id, n.at
                     FROM next n JOIN job_due d ON d.job_id = n.id AND d.version = n.version AND d.next_fire_at IS NULL
                    ORDER BY d.job_id FOR UPDATE OF d
               )
               UPDATE job_due d SET next_fire_at = l.at FROM locked l WHERE d.job_id = l.job_id
            RETURNING d.job_id AS id, l.at AS "at!""#,
            now,
            of.as_deref()
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.at)).collect())
    }
}

/// Gives the occurrences of a job that wait for a slot its new limits, if the edit from `before` to `after` changes them. At
/// most [`MAX_OPEN_RUNS_PER_JOB`] occurrences get them, in the order in which they are granted slots; more can only wait if
/// programs have enqueued them.
///
/// An edit never makes waiting occurrences replace each other: those that were created under another overlap policy would
/// be cancelled.
pub(super) async fn apply_limits(
    executor: impl PgExecutor<'_>,
    id: JobId,
    before: &Rules,
    after: &Rules,
) -> Result<()> {
    let rules = RuleColumns::of(after);
    if rules.limits() == RuleColumns::of(before).limits() {
        return Ok(());
    }
    // What is locked is being granted a slot or ended, so it is skipped. Waiting for it could end in a deadlock, because one
    // transaction may change several jobs.
    sqlx::query!(
        "UPDATE runs
            SET slot_limit = CASE WHEN $3::smallint <> 2 THEN 1 ELSE $4::smallint END, slot_key = $5, slot_key_limit = $6,
                replaces = replaces AND $3::smallint = 3
          WHERE id = ANY (ARRAY (
                SELECT id FROM runs WHERE slot_group = $1 AND NOT has_slot
                 ORDER BY priority DESC, id LIMIT $2 FOR UPDATE SKIP LOCKED))",
        id.0,
        MAX_OPEN_RUNS_PER_JOB,
        rules.overlap,
        rules.max_concurrent,
        rules.key,
        rules.key_limit
    )
    .execute(executor)
    .await?;
    Ok(())
}
