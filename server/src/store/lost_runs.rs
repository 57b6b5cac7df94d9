//! Runs whose worker stopped reporting them, and messages that the broker lost.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_api::views::OccurrenceRow;
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use uuid::Uuid;

use super::{Result, Store, leases::FencingToken, occurrences::occurrence_row};
use crate::domain::lost_run::{LostRunRule, StaleRun};

/// Maximum number of runs that are processed at once; the rest follows in the next tick.
const LOST_RUN_BATCH_SIZE: i64 = 500;

/// A lost run with its new state.
#[derive(Clone, Debug)]
pub struct LostRunUpdate {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The lost attempt, from 1.
    pub attempt: i32,
    /// The status it was read with: Running or Unknown.
    pub was: OccurrenceStatus,
    /// The last report or heartbeat of the run; a later one cancels the update. None for Unknown.
    pub last_seen_at: Option<DateTime<Utc>>,
    /// The new status: Queued, Unknown, Failed or Cancelled.
    pub status: OccurrenceStatus,
    /// Reason, as a sentence.
    pub note: String,
    /// Cause of the failure if the new status is Failed: `poison` or `lost`.
    pub cause: Option<&'static str>,
    /// True if the requeued run waits in the worker's quarantine; otherwise it starts at once.
    pub is_quarantined: bool,
}

/// The result of updating lost runs.
#[derive(Clone, Debug, Default)]
pub struct UpdatedLostRuns {
    /// The updated occurrences, as they are now.
    pub rows: Vec<OccurrenceRow>,
}

/// The queued occurrences of one worker's job type whose messages should wait at the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedBacklog {
    /// The worker they are addressed to.
    pub worker_id: String,
    /// The job type they run.
    pub job_type: String,
    /// Number of such occurrences.
    pub count: i64,
    /// Number of their messages that busy workers may have prefetched.
    pub prefetched: i64,
}

impl Store {
    /// Returns at most 500 running occurrences that were not reported since `stale_since`, those whose timeout expires
    /// first. `default_timeout` is the heartbeat timeout of jobs without their own.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn stale_runs(
        &self,
        stale_since: DateTime<Utc>,
        default_timeout: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<StaleRun>> {
        let default_seconds = i32::try_from(default_timeout.as_secs()).unwrap_or(i32::MAX);
        let rows = sqlx::query!(
            r#"
            SELECT o.id, o.attempt, o.on_lost, o.rescues, o.worker_id, o.started_at,
                   EXISTS (SELECT 1 FROM waits w WHERE w.lane = o.worker_id) AS "lane_is_open!",
                   o.cancel_requested_at IS NOT NULL AS "is_cancelled!",
                   coalesce(i.stopped_at IS NULL AND i.last_heartbeat_at >= $1, false) AS "is_forgotten!",
                   coalesce(i.stopped_at IS NULL AND o.id = ANY(i.running_ids), false) AS "is_listed!",
                   i.stopped_at IS NOT NULL AS "is_stopped!", o.instance_id,
                   coalesce(o.heartbeat_timeout_seconds, $2) AS "limit!",
                   s.sign AS "sign!"
              FROM occurrences o
              LEFT JOIN worker_instances i ON i.id = o.instance_id
             CROSS JOIN LATERAL (
                   -- The last report about this run itself, or the worker's last heartbeat if it lists the run.
                   SELECT greatest(coalesce(o.last_heartbeat, o.started_at, o.created_at),
                                   CASE WHEN o.id = ANY(i.running_ids) THEN i.last_heartbeat_at END) AS sign
                 ) s
             WHERE o.status = 1 AND s.sign < $1
             ORDER BY s.sign + make_interval(secs => coalesce(o.heartbeat_timeout_seconds, $2)), o.id
             LIMIT $3
            "#,
            stale_since,
            default_seconds,
            LOST_RUN_BATCH_SIZE
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| StaleRun {
                id: OccurrenceId(row.id),
                attempt: row.attempt,
                last_seen_at: row.sign,
                age: (now - row.sign).to_std().unwrap_or_default(),
                is_unreported: row.is_forgotten,
                is_listed: row.is_listed,
                is_stopped: row.is_stopped,
                instance_id: row.instance_id,
                heartbeat_timeout: Duration::from_secs(u64::try_from(row.limit).unwrap_or_default()),
                on_lost: LostRunRule::from_word(&row.on_lost),
                requeues: row.rescues,
                worker_id: row.worker_id,
                started_at: row.started_at,
                quarantine_is_open: row.lane_is_open,
                is_cancelled: row.is_cancelled,
            })
            .collect())
    }

    /// Returns the ids and attempts of at most 500 occurrences that became Unknown before `before`.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn expired_unknown_runs(&self, before: DateTime<Utc>) -> Result<Vec<(OccurrenceId, i32)>> {
        let rows = sqlx::query!(
            "SELECT id, attempt FROM occurrences
              WHERE status = 6 AND (status_changes -> -1 ->> 'at')::timestamptz < $1 ORDER BY id LIMIT $2",
            before,
            LOST_RUN_BATCH_SIZE
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (OccurrenceId(row.id), row.attempt)).collect())
    }

    /// Updates lost runs, each only if its row is still as it was read, and only if `fence` is absent or still the
    /// newest.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing was updated.
    pub async fn update_lost_runs(
        &self,
        lost_runs: &[LostRunUpdate],
        fence: Option<FencingToken>,
        now: DateTime<Utc>,
    ) -> Result<UpdatedLostRuns> {
        let Some(newest) = lost_runs.iter().map(|lost| lost.id.created_at()).max() else {
            return Ok(UpdatedLostRuns::default());
        };
        let oldest = lost_runs.iter().map(|lost| lost.id.created_at()).min().unwrap_or(newest);
        let ids: Vec<Uuid> = lost_runs.iter().map(|lost| lost.id.0).collect();
        let created: Vec<DateTime<Utc>> = lost_runs.iter().map(|lost| lost.id.created_at()).collect();
        let attempts: Vec<i32> = lost_runs.iter().map(|lost| lost.attempt).collect();
        let was: Vec<i16> = lost_runs.iter().map(|lost| lost.was.code()).collect();
        let last_seen: Vec<Option<DateTime<Utc>>> = lost_runs.iter().map(|lost| lost.last_seen_at).collect();
        let statuses: Vec<i16> = lost_runs.iter().map(|lost| lost.status.code()).collect();
        let notes: Vec<String> = lost_runs.iter().map(|lost| lost.note.clone()).collect();
        let causes: Vec<Option<String>> = lost_runs.iter().map(|lost| lost.cause.map(str::to_owned)).collect();
        let quarantined: Vec<bool> = lost_runs.iter().map(|lost| lost.is_quarantined).collect();
        let rows = sqlx::query!(
            r#"
            WITH r AS (
                SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::smallint[], $5::timestamptz[],
                                     $6::smallint[], $7::text[], $8::text[], $14::boolean[])
                           AS r (id, created_at, attempt, was, sign, status, note, cause, takes_turn)
            ),
            fence AS (SELECT 1 FROM leases WHERE role = $9 AND epoch = $10 FOR SHARE),
            -- The guard: the row is as it was read and the run is still silent. Rows are locked in the order of ids.
            locked AS (
                SELECT r.*
                  FROM occurrences o
                  JOIN r ON r.id = o.id AND r.created_at = o.created_at AND r.attempt = o.attempt
                 WHERE o.created_at BETWEEN $11 AND $12
                   AND o.status = r.was
                   AND ((r.was = 1 AND r.status IN (0, 3, 4, 6)) OR (r.was = 6 AND r.status = 3))
                   AND (r.sign IS NULL OR NOT EXISTS (
                            SELECT 1 FROM worker_instances i
                             WHERE i.id = o.instance_id AND i.last_heartbeat_at > r.sign AND o.id = ANY(i.running_ids)))
                   AND (r.sign IS NULL OR coalesce(o.last_heartbeat, r.sign) <= r.sign)
                   AND ($10::bigint IS NULL OR EXISTS (SELECT 1 FROM fence))
                 ORDER BY o.id
                   FOR UPDATE OF o
            ),
            changed AS (
                UPDATE occurrences o
                   SET status = r.status,
                       version = o.version + 1,
                       attempt = o.attempt + CASE WHEN r.status = 0 THEN 1 ELSE 0 END,
                       rescues = o.rescues + CASE WHEN r.status = 0 THEN 1 ELSE 0 END,
                       is_held = r.takes_turn OR o.is_held,
                       waits_until = CASE WHEN r.takes_turn THEN $13::timestamptz END,
                       instance_id = CASE WHEN r.status <> 0 THEN o.instance_id END,
                       started_at = CASE WHEN r.status <> 0 THEN o.started_at END,
                       progress = CASE WHEN r.status <> 0 THEN o.progress END,
                       published_at = CASE WHEN r.status <> 0 THEN o.published_at END,
                       ended_at = CASE WHEN r.status IN (3, 4) THEN $13::timestamptz END,
                       -- The exception of an earlier attempt is not the reason for this end.
                       exception = CASE WHEN r.status = 3 THEN r.note ELSE o.exception END,
                       note = CASE WHEN r.status <> 0 THEN r.note ELSE o.note END,
                       status_changes = o.status_changes || jsonb_build_array(jsonb_build_object(
                           'status', r.status, 'at', $13::timestamptz,
                           'attempt', o.attempt + CASE WHEN r.status = 0 THEN 1 ELSE 0 END, 'note', r.note))
                  FROM locked r
                 WHERE o.id = r.id AND o.created_at = r.created_at AND o.attempt = r.attempt
                RETURNING o.*, r.cause
            ),
            counted AS (
                INSERT INTO stats_deltas (minute, status, count)
                SELECT date_trunc('minute', $13::timestamptz), status, count(*) FROM changed GROUP BY status
            ),
            waiting AS (
                INSERT INTO waits AS w (occurrence_id, created_at, until, lane)
                SELECT id, created_at, waits_until, worker_id FROM changed WHERE waits_until IS NOT NULL
                ON CONFLICT (occurrence_id) DO UPDATE SET until = excluded.until, lane = excluded.lane
            ),
            freed AS (
                DELETE FROM slots WHERE occurrence_id IN (SELECT id FROM changed WHERE status IN (3, 4))
            ),
            kept AS (
                INSERT INTO failed_occurrences (occurrence_id, job_id, job_name, failed_at, cause, exception, fingerprint,
                                                job_data, job_version, worker_id, job_type, attempt)
                SELECT id, job_id, job_name, $13, cause, exception, cause || ':' || worker_id || '/' || job_type,
                       job_data, job_version, worker_id, job_type, attempt
                  FROM changed WHERE status = 3
                ON CONFLICT (occurrence_id) DO NOTHING
            )
            SELECT c.id AS "id!", c.job_id AS "job_id!", c.job_name AS "job_name!", c.status AS "status!",
                   c.version AS "version!", c.trigger AS "trigger!", c.attempt AS "attempt!",
                   c.scheduled_for AS "scheduled_for!", c.started_at, c.ended_at, c.duration_ms, c.instance_id, c.progress,
                   c.note, c.waits_until, c.cancel_requested_at
              FROM changed c
            "#,
            &ids,
            &created,
            &attempts,
            &was,
            &last_seen as &[Option<DateTime<Utc>>],
            &statuses,
            &notes,
            &causes as &[Option<String>],
            fence.map(|fence| fence.role),
            fence.map(|fence| fence.epoch),
            oldest,
            newest,
            now,
            &quarantined
        )
        .fetch_all(self.pool())
        .await?;
        let mut updated = UpdatedLostRuns::default();
        for row in rows {
            updated.rows.push(occurrence_row!(row)?);
        }
        Ok(updated)
    }

    /// Returns, for each worker's job type, the number of queued occurrences whose message the broker confirmed before
    /// `before`, and the number of those that its workers may have prefetched. A worker prefetches as many messages as
    /// it may run at once; while it is busy, those messages wait in the worker and not at the broker.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn published_backlog(
        &self,
        before: DateTime<Utc>,
        alive_since: DateTime<Utc>,
    ) -> Result<Vec<PublishedBacklog>> {
        let rows = sqlx::query!(
            r#"
            WITH waiting AS (
                SELECT worker_id, job_type, count(*) AS count FROM occurrences
                 WHERE status = 0 AND NOT is_held AND published_at < $1
                 GROUP BY worker_id, job_type
                 ORDER BY count(*) DESC LIMIT 500
            )
            SELECT w.worker_id AS "worker_id!", w.job_type AS "job_type!", w.count AS "count!",
                   coalesce((SELECT sum(t.concurrency) FROM worker_job_types t
                              JOIN worker_instances i ON i.worker_id = t.worker_id
                              JOIN instance_job_types o ON o.instance_id = i.id AND o.job_type = t.job_type
                             WHERE t.worker_id = w.worker_id AND t.job_type = w.job_type
                               AND i.stopped_at IS NULL AND i.last_heartbeat_at >= $2
                               AND (i.running >= i.capacity
                                    OR (SELECT count(*) FROM occurrences r
                                         WHERE r.status = 1 AND r.instance_id = i.id AND r.job_type = t.job_type)
                                       >= t.concurrency)), 0)::bigint AS "held!"
              FROM waiting w
            "#,
            before,
            alive_since
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| PublishedBacklog {
                worker_id: row.worker_id,
                job_type: row.job_type,
                count: row.count,
                prefetched: row.held,
            })
            .collect())
    }

    /// Marks up to `limit` queued occurrences of a worker's job type as unsent, oldest first, so that their messages
    /// are republished. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn clear_published(
        &self,
        waiting: &PublishedBacklog,
        before: DateTime<Utc>,
        limit: i64,
        fence: Option<FencingToken>,
    ) -> Result<u64> {
        let result = sqlx::query!(
            "WITH fence AS (SELECT 1 FROM leases WHERE role = $5 AND epoch = $6 FOR SHARE),
                  oldest AS (
                      SELECT id, created_at FROM occurrences
                       WHERE status = 0 AND NOT is_held AND published_at < $3 AND worker_id = $1 AND job_type = $2
                         AND ($6::bigint IS NULL OR EXISTS (SELECT 1 FROM fence))
                       ORDER BY id LIMIT $4
                         FOR UPDATE SKIP LOCKED
                  )
             UPDATE occurrences o SET published_at = NULL
               FROM oldest WHERE o.id = oldest.id AND o.created_at = oldest.created_at AND o.status = 0",
            waiting.worker_id,
            waiting.job_type,
            before,
            limit,
            fence.map(|fence| fence.role),
            fence.map(|fence| fence.epoch)
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected())
    }
}
