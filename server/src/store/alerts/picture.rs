//! What the conditions of alert rules are looked for in: the oldest open occurrences, the live workers, and how often and
//! how long the jobs in question ran.
//!
//! Each read is bounded, because it is repeated every few seconds: the oldest occurrences by their id, which is their
//! time; medians and rates of the jobs that a rule asks about only.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_protocol::id::{JobId, OccurrenceId};
use uuid::Uuid;

use crate::{
    domain::alerting::{
        AlertJob,
        conditions::{GoneInstance, JobRate, OpenRun},
    },
    store::{Result, Store},
};

/// The most open occurrences that are looked at: the oldest queued ones, and as many of the oldest begun ones.
const MAX_RUNS: i64 = 5_000;
/// The most jobs whose median or rate is computed.
const MAX_JOBS: i64 = 200;
/// The number of completed runs that a median is made of.
const MEDIAN_RUNS: i64 = 20;
/// The least number of completed runs that have a median.
const MIN_MEDIAN_RUNS: i64 = 5;
/// The most ended occurrences of a job that a rate counts.
const MAX_RATE_RUNS: i64 = 10_000;

impl Store {
    /// Returns the oldest open occurrences that were created before `before`, with their jobs.
    pub async fn oldest_open_runs(&self, before: DateTime<Utc>) -> Result<Vec<OpenRun>> {
        let rows = sqlx::query!(
            r#"WITH oldest AS (
                   (SELECT id FROM runs WHERE id < $1 ORDER BY id LIMIT $2)
                   UNION
                   (SELECT id FROM runs WHERE status <> 'queued' OR is_quarantined ORDER BY id LIMIT $2)
               )
               SELECT r.id, r.job_id, r.job_name, r.worker_id, r.job_type, r.scheduled_for, r.begun_at,
                      CASE WHEN r.publish_after IS NULL THEN r.published_at END AS published_at,
                      r.has_slot AND r.not_before IS NULL AS "is_ready!", r.not_before IS NOT NULL AS "is_delayed!", r.attempt,
                      j.key, j.tags AS "tags?"
                 FROM oldest CROSS JOIN LATERAL (
                      SELECT * FROM runs r WHERE r.id = oldest.id AND r.status IN ('queued', 'running') OFFSET 0) r
                 LEFT JOIN LATERAL (SELECT key, tags FROM jobs j WHERE j.id = r.job_id OFFSET 0) j ON true"#,
            OccurrenceId::from_parts(before, [0; 10]).0,
            MAX_RUNS
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| OpenRun {
                id: OccurrenceId(row.id),
                job: AlertJob {
                    id: JobId(row.job_id),
                    name: row.job_name,
                    key: row.key,
                    tags: row.tags.unwrap_or_default(),
                },
                worker_id: row.worker_id,
                job_type: row.job_type,
                scheduled_for: row.scheduled_for,
                begun_at: row.begun_at,
                published_at: row.published_at,
                is_ready: row.is_ready,
                is_delayed: row.is_delayed,
                attempt: row.attempt,
            })
            .collect())
    }

    /// Returns the job types of instances whose last heartbeat is not older than `alive_since`, each with its worker.
    pub async fn live_job_types(&self, alive_since: DateTime<Utc>) -> Result<HashSet<(String, String)>> {
        let rows = sqlx::query!(
            "SELECT DISTINCT i.worker_id, t.job_type
               FROM worker_instances i JOIN instance_job_types t ON t.instance_id = i.id
              WHERE i.stopped_at IS NULL AND greatest(i.last_heartbeat_at, i.seen_in_redis_at) >= $1",
            alive_since
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (row.worker_id, row.job_type)).collect())
    }

    /// Returns the instances whose last heartbeat is older than `alive_since`, without an orderly stop. An instance is left
    /// out once another one of its worker has started since.
    pub async fn gone_instances(&self, alive_since: DateTime<Utc>) -> Result<Vec<GoneInstance>> {
        let rows = sqlx::query!(
            "SELECT i.id, i.worker_id, i.last_heartbeat_at FROM worker_instances i
              WHERE i.stopped_at IS NULL AND greatest(i.last_heartbeat_at, i.seen_in_redis_at) < $1
                AND NOT EXISTS (
                    SELECT 1 FROM worker_instances o
                     WHERE o.worker_id = i.worker_id AND o.started_at > i.last_heartbeat_at AND o.stopped_at IS NULL
                       AND o.last_heartbeat_at >= $1)
              ORDER BY i.id LIMIT $2",
            alive_since,
            MAX_JOBS
        )
        .fetch_all(self.pool())
        .await?;
        let instance = |row: (String, String, DateTime<Utc>)| GoneInstance {
            id: row.0,
            worker_id: row.1,
            last_heartbeat_at: row.2,
        };
        Ok(rows.into_iter().map(|row| instance((row.id, row.worker_id, row.last_heartbeat_at))).collect())
    }

    /// Returns the median durations of the last 20 completed runs of at most 200 jobs. A job with fewer than five has none.
    pub async fn median_durations(&self, jobs: &HashSet<JobId>) -> Result<HashMap<JobId, TimeDelta>> {
        let ids: Vec<Uuid> = jobs.iter().take(MAX_JOBS as usize).map(|id| id.0).collect();
        let rows = sqlx::query!(
            r#"SELECT w.id AS "id!", m.median AS "median!"
                 FROM unnest($1::uuid[]) AS w (id)
                CROSS JOIN LATERAL (
                      SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY h.duration_ms) AS median, count(*) AS count
                        FROM (SELECT duration_ms FROM history
                               WHERE job_id = w.id AND status = 'completed' AND duration_ms IS NOT NULL
                               ORDER BY id DESC LIMIT $2) h) m
                WHERE m.count >= $3"#,
            &ids,
            MEDIAN_RUNS,
            MIN_MEDIAN_RUNS
        )
        .fetch_all(self.pool())
        .await?;
        let duration = |millis: f64| TimeDelta::milliseconds(millis.round() as i64);
        Ok(rows.into_iter().map(|row| (JobId(row.id), duration(row.median))).collect())
    }

    /// Returns how many occurrences ended and how many failed since `since`, for the 200 jobs with the most failures.
    pub async fn failure_rates(&self, since: DateTime<Utc>) -> Result<Vec<JobRate>> {
        let rows = sqlx::query!(
            r#"SELECT j.id, j.display_name, j.key, j.tags, f.failed AS "failed!", e.ended AS "ended!"
                 FROM (SELECT job_id, count(*) AS failed
                         FROM (SELECT job_id FROM failed_occurrences WHERE failed_at >= $1
                                ORDER BY failed_at DESC LIMIT $3) newest
                        GROUP BY job_id ORDER BY count(*) DESC LIMIT $2) f
                CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = f.job_id OFFSET 0) j
                CROSS JOIN LATERAL (
                      SELECT count(*) AS ended
                        FROM (SELECT status, filed_at FROM history
                               WHERE job_id = f.job_id AND filed_at >= $1 ORDER BY id DESC LIMIT $3) h
                       WHERE h.status IN ('completed', 'failed', 'timed-out')) e"#,
            since,
            MAX_JOBS,
            MAX_RATE_RUNS
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| JobRate {
                job: AlertJob { id: JobId(row.id), name: row.display_name, key: row.key, tags: row.tags },
                ended: row.ended,
                failed: row.failed,
            })
            .collect())
    }
}
