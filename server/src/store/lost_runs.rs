//! Runs whose worker stopped reporting them.

use std::{collections::HashSet, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_api::views::{OccurrenceRow, StatusChange};
use milvaion_protocol::{id::OccurrenceId, message::HEARTBEAT_INTERVAL_SECONDS, status::OccurrenceStatus};
use uuid::Uuid;

use super::{
    Result, Store,
    advance::{RunAdvance, advance_runs},
    finish::{RunEnd, finish_runs},
    leases::FencingToken,
    partitions::with_partitions,
    pool::StoreTransaction,
};
use crate::config::lost_runs::LostRunConfig;
use crate::domain::{
    liveness,
    lost_run::{LostRunRule, OVERDUE_MARGIN, OverdueRun, StaleRun},
};

/// Maximum number of expired unknown runs that are read at once; the rest follows in the next tick.
const UNKNOWN_RUN_BATCH_SIZE: i64 = 500;
/// Maximum number of silent runs that are read at once. Those of all instances take turns, so that an instance that keeps
/// many runs although it is unreachable does not hide the others.
const STALE_RUN_BATCH_SIZE: i64 = 5_000;

/// The timeouts of runs whose jobs set none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRunTimeouts {
    /// The heartbeat timeout.
    pub heartbeat: Duration,
    /// The time after which a run is revoked from an instance that is alive and sends nothing to the broker.
    pub unreachable: Duration,
}

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
    /// True if the loss counts towards the poison limit.
    pub counts_as_requeue: bool,
}

/// The result of updating lost runs.
#[derive(Clone, Debug, Default)]
pub struct UpdatedLostRuns {
    /// The updated occurrences, as they are now.
    pub rows: Vec<OccurrenceRow>,
}

impl LostRunTimeouts {
    /// Returns the timeouts of a server's settings.
    #[must_use]
    pub const fn of(config: &LostRunConfig) -> Self {
        Self { heartbeat: config.heartbeat_timeout, unreachable: config.unreachable_timeout }
    }
}

impl Store {
    /// Returns at most 5,000 running occurrences that were not reported since `stale_since`, of each instance those first
    /// whose timeout expires first.
    pub async fn stale_runs(
        &self,
        stale_since: DateTime<Utc>,
        timeouts: LostRunTimeouts,
        now: DateTime<Utc>,
    ) -> Result<Vec<StaleRun>> {
        let seconds = |timeout: Duration| i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
        // Two steps join the runs with the lists of the instances by hash: a search of each run in a list of thousands
        // would take a second.
        let rows = sqlx::query!(
            r#"
            WITH listed AS (
                SELECT DISTINCT i.id AS instance_id, run_id FROM worker_instances i, unnest(i.running_ids) AS run_id
            ),
            stale AS (
                SELECT o.id, o.job_id, o.attempt, o.on_lost, o.requeues,
                       o.cancel_requested_at IS NOT NULL AS is_cancelled,
                       coalesce(i.stopped_at IS NULL AND i.last_heartbeat_at >= $1, false) AS is_forgotten,
                       coalesce(i.stopped_at IS NULL AND l.run_id IS NOT NULL, false) AS is_listed,
                       i.stopped_at IS NOT NULL AS is_stopped,
                       coalesce(i.stopping AND i.stopped_at IS NULL AND i.last_heartbeat_at < $1, false) AS is_stopping,
                       o.instance_id,
                       coalesce(o.heartbeat_timeout_seconds, $2) AS timeout,
                       s.sign,
                       row_number() OVER (
                           PARTITION BY o.instance_id
                               ORDER BY s.sign + make_interval(secs => coalesce(o.heartbeat_timeout_seconds, $2)), o.id
                       ) AS place
                  FROM runs o
                  LEFT JOIN worker_instances i ON i.id = o.instance_id
                  LEFT JOIN listed l ON l.run_id = o.id AND l.instance_id = o.instance_id
                 CROSS JOIN LATERAL (
                       -- The last report about this run itself, or the worker's last heartbeat if it lists the run.
                       SELECT greatest(coalesce(o.last_heartbeat, o.started_at, o.created_at),
                                       CASE WHEN l.run_id IS NOT NULL THEN i.last_heartbeat_at END) AS sign
                     ) s
                 WHERE o.status = 'running' AND s.sign < $1
                 ORDER BY place
                 LIMIT $4
            )
            SELECT id AS "id!", attempt AS "attempt!", on_lost AS "on_lost!", requeues AS "requeues!",
                   is_cancelled AS "is_cancelled!", is_forgotten AS "is_forgotten!", is_listed AS "is_listed!",
                   is_stopped AS "is_stopped!", is_stopping AS "is_stopping!", instance_id, timeout AS "timeout!", sign AS "sign!",
                   coalesce((SELECT j.unreachable_timeout_seconds FROM jobs j WHERE j.id = stale.job_id), $3)
                       AS "unreachable!",
                   (SELECT n.text FROM run_notes n WHERE n.run_id = stale.id AND n.attempt = stale.attempt
                     ORDER BY n.at DESC LIMIT 1) AS unreadable_report
              FROM stale
            "#,
            stale_since,
            seconds(timeouts.heartbeat),
            seconds(timeouts.unreachable),
            STALE_RUN_BATCH_SIZE
        )
        .fetch_all(self.pool())
        .await?;
        let duration = |seconds: i32| Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
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
                is_stopping: row.is_stopping,
                instance_id: row.instance_id,
                heartbeat_timeout: duration(row.timeout),
                unreachable_timeout: duration(row.unreachable),
                on_lost: LostRunRule::from_word(&row.on_lost),
                requeues: row.requeues,
                is_cancelled: row.is_cancelled,
                unreadable_report: row.unreadable_report,
            })
            .collect())
    }

    /// Records that instances are alive by their heartbeats in Redis and send none over the broker. Returns the number of
    /// those about which that is new.
    pub async fn note_seen_in_redis(&self, instances: &[String], now: DateTime<Utc>) -> Result<usize> {
        if instances.is_empty() {
            return Ok(0);
        }
        let was_known = sqlx::query_scalar!(
            r#"WITH seen AS (
                SELECT id, coalesce(seen_in_redis_at >= $3, false) AS was_known FROM worker_instances
                 WHERE id = ANY($1) AND (seen_in_redis_at IS NULL OR seen_in_redis_at < $4)
                 ORDER BY id FOR UPDATE
             )
             UPDATE worker_instances i SET seen_in_redis_at = $2 FROM seen s WHERE i.id = s.id
             RETURNING s.was_known AS "was_known!""#,
            instances,
            now,
            liveness::alive_since(now),
            // Each tick of the detector sees the same instances.
            now - chrono::Duration::seconds(HEARTBEAT_INTERVAL_SECONDS as i64)
        )
        .fetch_all(self.pool())
        .await?;
        Ok(was_known.into_iter().filter(|was_known| !was_known).count())
    }

    /// Returns at most 500 runs that are overdue, the oldest first. A run without a timeout, of its job or its job type, is
    /// never overdue: its worker may allow it any time.
    pub async fn overdue_runs(&self, timeouts: LostRunTimeouts, now: DateTime<Utc>) -> Result<Vec<OverdueRun>> {
        let seconds = |timeout: Duration| i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
        let rows = sqlx::query!(
            r#"
            WITH begun AS (
                SELECT o.id, o.job_id, o.attempt, o.begun_at,
                       coalesce(o.timeout_seconds, (
                           SELECT t.timeout_seconds FROM worker_job_types t
                            WHERE t.worker_id = o.worker_id AND t.job_type = o.job_type)) AS timeout
                  FROM runs o WHERE o.status = 'running' AND o.begun_at < $1::timestamptz - make_interval(secs => $2::float8)
            )
            SELECT b.id, b.attempt, b.timeout AS "timeout!",
                   extract(epoch FROM $1 - b.begun_at)::float8 - b.timeout - $2::float8 AS "overdue_for!",
                   coalesce((SELECT j.unreachable_timeout_seconds FROM jobs j WHERE j.id = b.job_id), $3) AS "unreachable!"
              FROM begun b
             WHERE b.begun_at + make_interval(secs => b.timeout + $2::float8) < $1
             ORDER BY b.id LIMIT $4
            "#,
            now,
            f64::from(seconds(OVERDUE_MARGIN)),
            seconds(timeouts.unreachable),
            UNKNOWN_RUN_BATCH_SIZE
        )
        .fetch_all(self.pool())
        .await?;
        let duration = |seconds: i32| Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        Ok(rows
            .into_iter()
            .map(|row| OverdueRun {
                id: OccurrenceId(row.id),
                attempt: row.attempt,
                timeout: duration(row.timeout),
                overdue_for: Duration::try_from_secs_f64(row.overdue_for).unwrap_or_default(),
                unreachable_timeout: duration(row.unreachable),
            })
            .collect())
    }

    /// Returns the ids and attempts of at most 500 occurrences that became Unknown before `before`.
    pub async fn expired_unknown_runs(&self, before: DateTime<Utc>) -> Result<Vec<(OccurrenceId, i32)>> {
        let rows = sqlx::query!(
            "SELECT id, attempt FROM runs
              WHERE status = 'unknown' AND (status_changes -> -1 ->> 'at')::timestamptz < $1 ORDER BY id LIMIT $2",
            before,
            UNKNOWN_RUN_BATCH_SIZE
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
        if lost_runs.is_empty() {
            return Ok(UpdatedLostRuns::default());
        }
        with_partitions!(self, now, self.try_update_lost_runs(lost_runs, fence, now))
    }

    async fn try_update_lost_runs(
        &self,
        lost_runs: &[LostRunUpdate],
        fence: Option<FencingToken>,
        now: DateTime<Utc>,
    ) -> Result<UpdatedLostRuns> {
        let mut lost_runs: Vec<&LostRunUpdate> = lost_runs.iter().collect();
        lost_runs.sort_by_key(|lost| lost.id);
        lost_runs.dedup_by_key(|lost| lost.id);
        let ids: Vec<Uuid> = lost_runs.iter().map(|lost| lost.id.0).collect();
        let attempts: Vec<i32> = lost_runs.iter().map(|lost| lost.attempt).collect();
        let was: Vec<&str> = lost_runs.iter().map(|lost| lost.was.slug()).collect();
        let last_seen: Vec<Option<DateTime<Utc>>> = lost_runs.iter().map(|lost| lost.last_seen_at).collect();
        let mut tx = self.pool().begin().await?;
        // The guard: the row is as it was read and the run is still silent. Rows are locked in the order of ids.
        let still_lost: HashSet<Uuid> = sqlx::query_scalar!(
            r#"
            WITH r AS (
                SELECT * FROM unnest($1::uuid[], $2::int[], $3::text[]::run_status[], $4::timestamptz[])
                           AS r (id, attempt, was, sign)
            ),
            fence AS (SELECT 1 FROM leases WHERE role = $5 AND epoch = $6 FOR SHARE)
            SELECT o.id AS "id!"
              FROM r CROSS JOIN LATERAL (
                   SELECT o.id FROM runs o
                    WHERE o.id = r.id AND o.attempt = r.attempt AND o.status = r.was
                      AND (r.sign IS NULL OR NOT EXISTS (
                               SELECT 1 FROM worker_instances i
                                WHERE i.id = o.instance_id AND i.last_heartbeat_at > r.sign AND o.id = ANY(i.running_ids)))
                      AND (r.sign IS NULL OR coalesce(o.last_heartbeat, r.sign) <= r.sign)
                      AND ($6::bigint IS NULL OR EXISTS (SELECT 1 FROM fence))
                      FOR UPDATE) o
            "#,
            &ids,
            &attempts,
            &was as &[&str],
            &last_seen as &[Option<DateTime<Utc>>],
            fence.map(|fence| fence.role),
            fence.map(|fence| fence.epoch)
        )
        .fetch_all(&mut tx)
        .await?
        .into_iter()
        .collect();
        let lost_runs = lost_runs.into_iter().filter(|lost| still_lost.contains(&lost.id.0));
        let lost_runs: Vec<&LostRunUpdate> = lost_runs.collect();
        record_losses(&mut tx, &lost_runs, now).await?;
        let (ends, advances): (Vec<&LostRunUpdate>, Vec<&LostRunUpdate>) =
            lost_runs.into_iter().partition(|lost| lost.status.is_final());
        let ends: Vec<RunEnd> = ends.into_iter().map(|lost| end(lost, now)).collect();
        let advances: Vec<RunAdvance> = advances.into_iter().map(|lost| advance(lost, now)).collect();
        let mut changed = Vec::with_capacity(ends.len() + advances.len());
        if !ends.is_empty() {
            changed.extend(finish_runs(&mut tx, &ends, now).await?);
        }
        if !advances.is_empty() {
            changed.extend(advance_runs(&mut tx, &advances, now).await?);
        }
        tx.commit().await?;
        self.measure_changed(&changed);
        Ok(UpdatedLostRuns { rows: changed.into_iter().map(|run| run.row).collect() })
    }
}

/// Records losses for the alert rules. The end of a run whose outcome stayed unknown is not a second loss.
async fn record_losses(tx: &mut StoreTransaction, lost_runs: &[&LostRunUpdate], now: DateTime<Utc>) -> Result<()> {
    let lost = lost_runs.iter().filter(|lost| lost.was != OccurrenceStatus::Unknown);
    let (ids, notes): (Vec<Uuid>, Vec<String>) =
        lost.map(|lost| (lost.id.0, lost.note.chars().take(500).collect())).unzip();
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO alert_events (kind, at, job_id, job_name, occurrence_id, detail)
         SELECT 'lost_run', $3, o.job_id, o.job_name, o.id, l.note
           FROM unnest($1::uuid[], $2::text[]) AS l (id, note)
          CROSS JOIN LATERAL (SELECT id, job_id, job_name FROM runs o WHERE o.id = l.id) o",
        &ids,
        &notes,
        now
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Returns the end of a lost run.
fn end(lost: &LostRunUpdate, now: DateTime<Utc>) -> RunEnd {
    let failed = lost.status == OccurrenceStatus::Failed;
    RunEnd {
        // The exception of an earlier attempt is not the reason for this end.
        exception: failed.then(|| lost.note.clone()),
        keeps_exception: !failed,
        cause: lost.cause.map(str::to_owned),
        ..RunEnd::new(lost.id, lost.attempt, lost.status, lost.note.clone(), now)
    }
}

/// Returns the change of a lost run that stays open: its next attempt, or an unknown outcome.
fn advance(lost: &LostRunUpdate, now: DateTime<Utc>) -> RunAdvance {
    let is_requeue = lost.status == OccurrenceStatus::Queued;
    let attempt = lost.attempt + i32::from(is_requeue);
    RunAdvance {
        id: lost.id,
        attempt: lost.attempt,
        status: lost.status,
        instance_id: None,
        started_at: None,
        exception: None,
        note: (!is_requeue).then(|| lost.note.clone()),
        progress: None,
        steps: vec![StatusChange { status: lost.status, at: now, attempt, by: None, note: Some(lost.note.clone()) }],
        not_before: lost.is_quarantined.then_some(now),
        counts_as_failure: false,
        is_requeue: is_requeue && lost.counts_as_requeue,
        is_quarantined: lost.is_quarantined,
        is_decided: true,
    }
}
