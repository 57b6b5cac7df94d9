//! The dispatch of due jobs: the most frequent statement, and the one in which an error would lose or duplicate runs.

use std::time::Instant;

use chrono::{DateTime, Utc};
use milvaion_api::views::TriggerSource;
use milvaion_protocol::id::{JobId, OccurrenceId};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use serde_json::Value;
use uuid::Uuid;

use super::{
    Result, Store,
    create::{CreatedRun, NewRun, create_runs, update_queued_runs},
    occurrences::status,
    partitions::with_partitions,
    readable,
};
use crate::{
    domain::message::{ConfirmedMessage, QueuedRun},
    faults,
};

/// The age of a statement whose answer was lost; longer than it can take.
const CREATED_SINCE: chrono::Duration = chrono::Duration::hours(1);

/// A due job with the fields that its message needs.
#[derive(Clone, Debug)]
pub struct DueJob {
    /// Identifier.
    pub id: JobId,
    /// Display name.
    pub display_name: String,
    /// The worker it is addressed to.
    pub worker_id: String,
    /// The job type it runs.
    pub job_type: String,
    /// Its input.
    pub job_data: Value,
    /// Schedule; none if this version cannot read it.
    pub schedule: Option<Schedule>,
    /// The due time that was read: the expected value of the compare-and-swap.
    pub next_fire_at: DateTime<Utc>,
    /// The latest due time that was dispatched. It is later than the one that was read if a clock was ahead.
    pub last_fire_at: Option<DateTime<Utc>>,
    /// The job's rules.
    pub rules: Rules,
    /// Rule that this version cannot read, in words.
    pub unreadable_rule: Option<String>,
    /// The version of the definition that was read.
    pub version: i32,
    /// Priority, from 1 (idle) to 5 (critical).
    pub priority: i16,
    /// Run timeout in seconds; none means the job type's default.
    pub timeout_seconds: Option<i32>,
}

impl Store {
    /// Returns at most `limit` jobs due at `now`, by descending priority, then longest overdue first, except the versions
    /// of jobs in `left_out`.
    pub async fn due_jobs(&self, now: DateTime<Utc>, limit: i64, left_out: &[(JobId, i32)]) -> Result<Vec<DueJob>> {
        let (ids, versions) = unzipped(left_out);
        // One index probe for each priority, as many as it takes to fill the batch: sorting all due jobs would take
        // longer the longer the backlog is.
        let rows = sqlx::query!(
            r#"SELECT j.id, j.display_name, j.worker_id, j.job_type, j.job_data, j.schedule, d.next_fire_at AS "next_fire_at!",
                      d.last_fire_at, j.version, j.priority, j.timeout_seconds, j.rules
                 FROM (SELECT d.* FROM (VALUES (5::smallint), (4), (3), (2), (1)) AS p (priority)
                        CROSS JOIN LATERAL (
                              SELECT job_id, next_fire_at, last_fire_at, version FROM job_due
                               WHERE priority = p.priority AND next_fire_at IS NOT NULL AND next_fire_at <= $1
                                 AND (job_id, version) NOT IN (SELECT * FROM unnest($3::uuid[], $4::int[]))
                               ORDER BY next_fire_at LIMIT $2) d
                        LIMIT $2) d
                CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = d.job_id AND version = d.version OFFSET 0) j"#,
            now,
            limit,
            &ids,
            &versions
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let (rules, unreadable_rule) = readable::rules(&row.rules);
                DueJob {
                    id: JobId(row.id),
                    display_name: row.display_name,
                    worker_id: row.worker_id,
                    job_type: row.job_type,
                    job_data: row.job_data,
                    schedule: readable::schedule(row.schedule),
                    next_fire_at: row.next_fire_at,
                    last_fire_at: row.last_fire_at,
                    version: row.version,
                    priority: row.priority,
                    timeout_seconds: row.timeout_seconds,
                    rules,
                    unreadable_rule,
                }
            })
            .collect())
    }

    /// Dispatches jobs: moves each job's due time by compare-and-swap and inserts its occurrence, all or nothing.
    /// Returns the inserted occurrences; a job that was dispatched, edited or paused meanwhile is not included. Inserts
    /// nothing while the cluster is paused, nor for a leader whose `epoch` is no longer the newest.
    ///
    /// If the connection is lost before the answer arrives, the occurrences may exist. They are looked up once, so that
    /// their messages need not wait for the republisher.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails. Then nothing was dispatched, or the answer was lost and the look-up
    /// found nothing; the republisher sends what was dispatched all the same.
    pub async fn create_scheduled_runs(
        &self,
        runs: &[NewRun],
        epoch: Option<i64>,
        now: DateTime<Utc>,
    ) -> Result<Vec<CreatedRun>> {
        #[cfg(feature = "faults")]
        self.sabotage_swap(runs).await?;
        let since = Instant::now();
        let created = match with_partitions!(self, now, create_runs(self.pool(), runs, false, epoch, now)) {
            Err(error) if error.is_unanswered() => {
                let found = self.created_runs(runs, now).await?;
                return if found.is_empty() { Err(error) } else { Ok(found) };
            }
            created => created?,
        };
        self.measure_created(&created);
        self.measure_dispatched(&created, now + since.elapsed());
        Ok(created)
    }

    /// Returns those of the occurrences that exist and are still in their first attempt. The republisher may have sent
    /// their messages.
    async fn created_runs(&self, runs: &[NewRun], now: DateTime<Utc>) -> Result<Vec<CreatedRun>> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.id.0).collect();
        let rows = sqlx::query!(
            r#"SELECT id AS "id!", job_id AS "job_id!", job_name AS "job_name!", worker_id AS "worker_id!",
                      job_type AS "job_type!", scheduled_for AS "scheduled_for!", max_retries AS "max_retries!",
                      priority AS "priority!", timeout_seconds, status::text AS "status!", is_held AS "is_held!", note
                 FROM occurrences WHERE id = ANY($1) AND filed_at >= $2 AND attempt = 1"#,
            &ids,
            now - CREATED_SINCE
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                let queued = QueuedRun {
                    id: OccurrenceId(row.id),
                    job_id: JobId(row.job_id),
                    job_name: row.job_name,
                    worker_id: row.worker_id,
                    job_type: row.job_type,
                    scheduled_for: row.scheduled_for,
                    attempt: 1,
                    max_retries: row.max_retries,
                    priority: row.priority,
                    timeout_seconds: row.timeout_seconds,
                    is_held: row.is_held,
                    may_be_sent: true,
                    ..QueuedRun::default()
                };
                Ok(CreatedRun::new(queued, TriggerSource::Schedule, status(&row.status)?, row.note))
            })
            .collect()
    }

    /// Marks occurrences as confirmed by the broker, each only if it is still in the attempt whose message was
    /// confirmed. `is_single` is true if each certainly had a message of its own. Otherwise the confirm may be that of a
    /// bundle, and counts no more if the bundle was rejected.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then the messages are published again, which is harmless.
    pub async fn mark_published(&self, sent: &[ConfirmedMessage], is_single: bool, now: DateTime<Utc>) -> Result<u64> {
        let ids: Vec<Uuid> = sent.iter().map(|message| message.id.0).collect();
        let attempts: Vec<i32> = sent.iter().map(|message| message.attempt).collect();
        let critical: Vec<Uuid> =
            sent.iter().filter(|message| message.is_critical).map(|message| message.id.0).collect();
        // A row that a report has locked is skipped, because the report marks it. One with both times is of a bundle that came
        // back, and waits for the confirm of a single message; see `return_bundled`. `coalesce` keeps the planner from the
        // index of unsent occurrences. While it takes that index for empty, it would search it for each id, and while a
        // session holds a snapshot, the index keeps an entry of every occurrence.
        let result = sqlx::query!(
            "UPDATE runs SET publish_after = NULL, published_at = $3, in_critical_queue = (id = ANY ($5::uuid[]))
              WHERE id = ANY (ARRAY (
                    SELECT l.id FROM unnest($1::uuid[], $2::int[]) AS p (id, attempt)
                     CROSS JOIN LATERAL (
                        SELECT o.id FROM runs o
                         WHERE o.id = p.id AND o.attempt = p.attempt AND ($4 OR o.published_at IS NULL)
                           AND coalesce(o.publish_after, 'infinity') < 'infinity'
                           FOR UPDATE SKIP LOCKED) l))",
            &ids,
            &attempts,
            now,
            is_single,
            &critical
        )
        .execute(self.pool())
        .await?;
        if !sent.is_empty() {
            faults::crash_point("publisher.after_mark");
        }
        Ok(result.rows_affected())
    }

    /// Claims unsent occurrences, which are queued and whose message was never confirmed, and returns them: those due to
    /// be sent before `before` and those in `known_unsent`, oldest first, except those for the worker ids and job types in
    /// `parked`. While the cluster is paused, only manual runs and retries, because a user may have forced them.
    ///
    /// A claimed occurrence is due to be sent `now`. Another server therefore does not send it too, and one that cannot
    /// be sent does not stay ahead of the others.
    pub async fn claim_unsent(
        &self,
        before: DateTime<Utc>,
        known_unsent: &[OccurrenceId],
        parked: &[(String, String)],
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<QueuedRun>> {
        let known_unsent: Vec<Uuid> = known_unsent.iter().map(|id| id.0).collect();
        let (workers, job_types): (Vec<String>, Vec<String>) = parked.iter().cloned().unzip();
        let mut claimed = update_queued_runs!(
            self.pool(),
            "WITH unsent AS (
                 SELECT id FROM runs
                  WHERE publish_after IS NOT NULL AND (publish_after < $1 OR id = ANY($3))
                    AND (trigger <> 'schedule' OR NOT EXISTS (SELECT 1 FROM cluster_pause))
                    AND NOT EXISTS (SELECT 1 FROM unnest($4::text[], $5::text[]) AS p (worker_id, job_type)
                                     WHERE p.worker_id = runs.worker_id AND p.job_type = runs.job_type)
                  ORDER BY publish_after
                  LIMIT $2
                    FOR UPDATE SKIP LOCKED
             )
             UPDATE runs r SET publish_after = $6 WHERE id = ANY (ARRAY (SELECT id FROM unsent))",
            before,
            limit,
            &known_unsent,
            &workers,
            &job_types,
            now
        );
        claimed.iter_mut().for_each(|queued| queued.may_be_sent = true);
        claimed.sort_unstable_by_key(|queued| queued.id);
        Ok(claimed)
    }

    /// Returns the ids and due times of the next `limit` active jobs after `after`, in the order of ids. The due index
    /// is rebuilt from them.
    pub async fn schedule_slice(&self, after: JobId, limit: i64) -> Result<Vec<(JobId, DateTime<Utc>)>> {
        let rows = sqlx::query!(
            r#"SELECT job_id AS id, next_fire_at AS "at!" FROM job_due
                WHERE next_fire_at IS NOT NULL AND job_id > $1 ORDER BY job_id LIMIT $2"#,
            after.0,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.at)).collect())
    }

    /// Returns the stored due times of some jobs; jobs without a due time are not included.
    pub async fn due_times(&self, ids: &[Uuid]) -> Result<Vec<(JobId, DateTime<Utc>)>> {
        let rows = sqlx::query!(
            r#"SELECT job_id AS id, next_fire_at AS "at!" FROM job_due
                WHERE job_id = ANY($1) AND next_fire_at IS NOT NULL"#,
            ids
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.at)).collect())
    }

    /// Returns the earliest due time of all jobs, except the versions of jobs in `left_out`.
    pub async fn earliest_due_time(&self, left_out: &[(JobId, i32)]) -> Result<Option<DateTime<Utc>>> {
        let (ids, versions) = unzipped(left_out);
        Ok(sqlx::query_scalar!(
            "SELECT min(e.next_fire_at)
               FROM (VALUES (5::smallint), (4), (3), (2), (1)) AS p (priority)
              CROSS JOIN LATERAL (SELECT next_fire_at FROM job_due
                                   WHERE priority = p.priority AND next_fire_at IS NOT NULL
                                     AND (job_id, version) NOT IN (SELECT * FROM unnest($1::uuid[], $2::int[]))
                                   ORDER BY next_fire_at LIMIT 1) e",
            &ids,
            &versions
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Returns true if the cluster is paused.
    pub async fn is_cluster_paused(&self) -> Result<bool> {
        Ok(sqlx::query_scalar!(r#"SELECT EXISTS (SELECT 1 FROM cluster_pause) AS "is_paused!""#)
            .fetch_one(self.pool())
            .await?)
    }
}

fn unzipped(jobs: &[(JobId, i32)]) -> (Vec<Uuid>, Vec<i32>) {
    jobs.iter().map(|(id, version)| (id.0, *version)).unzip()
}
