//! Queries and updates for auto-disable: finding jobs that keep failing, disabling a job, and enabling it again.

use chrono::{DateTime, Utc};
use milvaion_api::requests::JobInput;
use milvaion_protocol::id::JobId;
use milvaion_schedule::rules::AutoDisable;
use uuid::Uuid;

use super::{
    Result, Store,
    jobs::{StoredJob, ended_skip},
    occurrences::status,
};
use crate::domain::auto_disable::{EXTRA_RUNS, EndedRun, runs_to_examine};

/// Author name in audit rows for changes that no user made.
pub const SYSTEM_ACTOR: &str = "system";

/// Maximum number of recent failures that are searched for failing jobs, newest first.
const MAX_RECENT_FAILURES: i64 = 10_000;

/// What the decision about a failing job needs.
#[derive(Clone, Debug)]
pub struct FailureRecord {
    /// The job.
    pub id: JobId,
    /// Its rule, or the default rule.
    pub rule: AutoDisable,
    /// Its newest runs that completed, failed or timed out, in any order, with the time at which the server recorded the
    /// end.
    pub runs: Vec<EndedRun>,
    /// The time up to which failures no longer count.
    pub since: Option<DateTime<Utc>>,
}

impl Store {
    /// Returns the active jobs that have an auto-disable rule and a failure within its window. `usual` is the window,
    /// in seconds, for jobs without a rule of their own; `None` if there is no default rule. Only the newest 10,000
    /// failures after `since` are searched: a job that keeps failing is soon among them again.
    pub async fn failing_jobs(
        &self,
        since: DateTime<Utc>,
        usual: Option<u32>,
        now: DateTime<Utc>,
    ) -> Result<Vec<JobId>> {
        let ids = sqlx::query_scalar!(
            r#"SELECT f.job_id AS "job_id!"
                 FROM (SELECT job_id, failed_at FROM failed_occurrences
                        WHERE failed_at >= $1 ORDER BY failed_at DESC LIMIT $2) f
                 JOIN jobs j ON j.id = f.job_id AND j.is_active
                  AND f.failed_at >= $4::timestamptz - make_interval(
                          secs => coalesce((j.auto_disable ->> 'windowSeconds')::float8, $3::float8))
                GROUP BY f.job_id"#,
            since,
            MAX_RECENT_FAILURES,
            usual.map(f64::from),
            now
        )
        .fetch_all(self.pool())
        .await?;
        Ok(ids.into_iter().map(JobId).collect())
    }

    /// Returns what the decisions about jobs need. `usual` is the rule for jobs without a rule of their own; jobs without
    /// any are left out.
    pub async fn failure_records(&self, ids: &[JobId], usual: Option<AutoDisable>) -> Result<Vec<FailureRecord>> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let rows = sqlx::query!(
            r#"SELECT j.id, j.auto_disable, j.failures_since, r.statuses AS "statuses!", r.times AS "times!"
                 FROM jobs j
                CROSS JOIN LATERAL (
                      SELECT coalesce(array_agg(h.status::text), '{}') AS statuses, coalesce(array_agg(h.filed_at), '{}') AS times
                        FROM (SELECT status, filed_at FROM history
                               WHERE job_id = j.id AND status IN ('completed', 'failed', 'timed-out')
                               ORDER BY id DESC
                               LIMIT coalesce(2 * (j.auto_disable ->> 'threshold')::bigint + $3, $2)) h) r
                WHERE j.id = ANY($1) AND j.is_active"#,
            &ids,
            usual.map_or(0, runs_to_examine),
            EXTRA_RUNS
        )
        .fetch_all(self.pool())
        .await?;
        let mut records = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(rule) = serde_json::from_value(row.auto_disable).ok().or(usual) else { continue };
            let runs = row
                .statuses
                .iter()
                .zip(row.times)
                .map(|(text, at)| Ok(EndedRun { status: status(text)?, at }))
                .collect::<Result<_>>()?;
            records.push(FailureRecord { id: JobId(row.id), rule, runs, since: row.failures_since });
        }
        Ok(records)
    }

    /// Disables a job if it is still active and at the version that was read, and inserts its version and its audit
    /// row. Returns false if the job was changed meanwhile.
    pub async fn auto_disable(
        &self,
        job: &StoredJob,
        reason: &str,
        enable_again_at: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        let definition = JobInput { is_active: false, ..job.definition.clone() };
        let done = sqlx::query!(
            "WITH changed AS (
                UPDATE jobs SET is_active = false, paused_reason = $3, auto_disabled_at = $4,
                       enable_again_at = $5, modified_at = $4, modified_by = $6, version = version + 1
                 WHERE id = $1 AND version = $2 AND is_active
                RETURNING id, version, display_name
             ),
             due AS (
                UPDATE job_due d SET next_fire_at = NULL, version = c.version FROM changed c WHERE d.job_id = c.id
             ),
             kept AS (
                INSERT INTO job_versions (job_id, version, definition, changed_at, changed_by)
                SELECT id, version, $7, $4, $6 FROM changed
             ),
             alerted AS (
                INSERT INTO alert_events (kind, at, job_id, job_name, detail)
                SELECT 'auto_disabled', $4, id, display_name, $3 FROM changed
             )
             INSERT INTO audit_log (at, who, action, object, after)
             SELECT $4, $6, 'job.auto_disable', 'job:' || id::text,
                    jsonb_build_object('reason', $3::text, 'enableAgainAt', $5::timestamptz)
               FROM changed",
            job.id.0,
            job.version,
            reason,
            now,
            enable_again_at,
            SYSTEM_ACTOR,
            serde_json::to_value(&definition).unwrap_or_default()
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Returns at most `limit` jobs whose cool-down has ended.
    pub async fn cooled_down_jobs(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<JobId>> {
        let ids: Vec<Uuid> = sqlx::query_scalar!(
            "SELECT id FROM jobs WHERE enable_again_at IS NOT NULL AND enable_again_at <= $1
              ORDER BY enable_again_at LIMIT $2",
            now,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(ids.into_iter().map(JobId).collect())
    }

    /// Enables a job that was disabled automatically, if it is still at the version that was read. Its failures so far
    /// no longer count. Returns false if the job was changed meanwhile.
    pub async fn auto_enable(
        &self,
        job: &StoredJob,
        next_fire_at: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        let definition = JobInput { is_active: true, ..job.definition.clone() };
        let ended = ended_skip(self.pool(), job, &definition, next_fire_at, now).await?;
        let done = sqlx::query!(
            "WITH changed AS (
                UPDATE jobs SET is_active = true, paused_reason = NULL, auto_disabled_at = NULL,
                       enable_again_at = NULL, failures_since = $4, modified_at = $4, modified_by = $5,
                       version = version + 1
                 WHERE id = $1 AND version = $2 AND NOT is_active AND enable_again_at <= $4
                RETURNING id, version
             ),
             due AS (
                UPDATE job_due d SET next_fire_at = $3, version = c.version,
                       last_fire_at = nullif(d.last_fire_at, $7::timestamptz)
                  FROM changed c WHERE d.job_id = c.id
             ),
             kept AS (
                INSERT INTO job_versions (job_id, version, definition, changed_at, changed_by)
                SELECT id, version, $6, $4, $5 FROM changed
             )
             INSERT INTO audit_log (at, who, action, object)
             SELECT $4, $5, 'job.auto_enable', 'job:' || id::text FROM changed",
            job.id.0,
            job.version,
            next_fire_at,
            now,
            SYSTEM_ACTOR,
            serde_json::to_value(&definition).unwrap_or_default(),
            ended
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }
}
