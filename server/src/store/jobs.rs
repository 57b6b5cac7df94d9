//! Jobs: definitions and their versions.

mod list;
mod skip;

use std::{collections::HashMap, net::IpAddr};

use chrono::{DateTime, Utc};
use milvaion_api::{requests::JobInput, sources::JobSourceKind};
use milvaion_protocol::id::JobId;
use milvaion_schedule::schedule::Schedule;
use serde_json::Value;
use sqlx::PgExecutor;
use uuid::Uuid;

pub use list::JobCounts;
pub(super) use list::like;
pub use skip::MIN_AHEAD;
pub(super) use skip::ended_skip;

use super::{Result, Store, StoreError, pool::StoreTransaction, readable, rules::RuleColumns, slots::apply_limits};

/// The description of a schedule that this version cannot read.
pub const UNREADABLE_SCHEDULE: &str = "the schedule";

/// A stored job.
#[derive(Clone, Debug)]
pub struct StoredJob {
    /// Identifier.
    pub id: JobId,
    /// Key, if it has one.
    pub key: Option<String>,
    /// Definition.
    pub definition: JobInput,
    /// Part of the definition that this version cannot read, in words. The definition has a default there.
    pub unreadable: Option<String>,
    /// Next due time; none if the job is paused, manual or finished.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Due time that was dispatched or skipped last; it may lie in the future.
    pub last_fire_at: Option<DateTime<Utc>>,
    /// Reason for the pause.
    pub paused_reason: Option<String>,
    /// Time at which it was disabled automatically.
    pub auto_disabled_at: Option<DateTime<Utc>>,
    /// Door through which it was defined.
    pub source: StoredSource,
    /// Number of edits, from 1.
    pub version: i32,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Author of the creation.
    pub created_by: String,
    /// Time of the last edit.
    pub modified_at: DateTime<Utc>,
    /// Author of the last edit.
    pub modified_by: String,
}

/// The source of a stored job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredSource {
    /// Door through which the job was defined.
    pub kind: JobSourceKind,
    /// Name of the file, if it comes from one.
    pub file: Option<String>,
    /// Version that the file had when it was last applied.
    pub version: Option<i32>,
}

impl StoredSource {
    /// Returns true if the job comes from a file or from code and has changed since it was taken from there.
    #[must_use]
    pub fn is_behind(&self, version: i32) -> bool {
        matches!(self.kind, JobSourceKind::File | JobSourceKind::Code) && self.version != Some(version)
    }
}

/// The author, the time and the origin of a change.
#[derive(Clone, Copy, Debug)]
pub struct AuditStamp<'a> {
    /// Author: an e-mail address, or a name such as `system`.
    pub by: &'a str,
    /// Time.
    pub at: DateTime<Utc>,
    /// Network address of the request; `None` if it is unknown or the server itself makes the change.
    pub address: Option<IpAddr>,
}

/// Converts a row of `jobs` with its due times to a [`StoredJob`]. It is a macro because every checked statement has its
/// own row type.
macro_rules! stored_job {
    ($row:expr) => {{
        let (rules, unreadable_rule) = readable::rules(&$row.rules);
        let schedule = readable::schedule($row.schedule);
        let unreadable_schedule = schedule.is_none().then(|| UNREADABLE_SCHEDULE.to_owned());
        StoredJob {
            id: JobId($row.id),
            key: $row.key,
            definition: JobInput {
                display_name: $row.display_name,
                description: $row.description,
                tags: $row.tags,
                worker_id: $row.worker_id,
                job_type: $row.job_type,
                job_data: $row.job_data,
                schedule: schedule.unwrap_or(Schedule::Manual),
                is_active: $row.is_active,
                priority: u8::try_from($row.priority).unwrap_or(3),
                timeout_seconds: $row.timeout_seconds.and_then(|s| u32::try_from(s).ok()),
                rules,
            },
            unreadable: unreadable_schedule.or(unreadable_rule),
            next_fire_at: $row.next_fire_at,
            last_fire_at: $row.last_fire_at,
            paused_reason: $row.paused_reason,
            auto_disabled_at: $row.auto_disabled_at,
            source: StoredSource {
                kind: JobSourceKind::parse(&$row.source).unwrap_or_default(),
                file: $row.source_file,
                version: $row.source_version,
            },
            version: $row.version,
            created_at: $row.created_at,
            created_by: $row.created_by,
            modified_at: $row.modified_at,
            modified_by: $row.modified_by,
        }
    }};
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

impl Store {
    /// Inserts a job.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails or a constraint is violated.
    pub async fn insert_job(
        &self,
        id: JobId,
        job: &JobInput,
        next_fire_at: Option<DateTime<Utc>>,
        edit: AuditStamp<'_>,
    ) -> Result<()> {
        self.insert_keyed_job(id, None, job, next_fire_at, JobSourceKind::Dashboard, edit).await
    }

    /// Inserts a job with a key, which no other job may have.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails or a constraint is violated, such as `jobs_key_key`.
    pub async fn insert_keyed_job(
        &self,
        id: JobId,
        key: Option<&str>,
        job: &JobInput,
        next_fire_at: Option<DateTime<Utc>>,
        source: JobSourceKind,
        edit: AuditStamp<'_>,
    ) -> Result<()> {
        insert_job(self.pool(), id, key, job, next_fire_at, source, edit).await
    }

    /// Replaces a job's definition if it was neither edited nor dispatched since it was read as `before`. A dispatch
    /// moves the due time, which must not be set back to the value that was read. Returns the new version, or `None` if
    /// the job was changed or deleted meanwhile.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails or a constraint is violated.
    pub async fn update_job(
        &self,
        before: &StoredJob,
        job: &JobInput,
        next_fire_at: Option<DateTime<Utc>>,
        edit: AuditStamp<'_>,
    ) -> Result<Option<i32>> {
        self.update_job_from(JobSourceKind::Dashboard, before, job, next_fire_at, edit, false).await
    }

    /// Replaces a job's definition as [`update_job`](Self::update_job), through the door `source`. Occurrences that wait for
    /// a slot keep the limits that they have if `keeps_limits` is true.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails or a constraint is violated.
    pub async fn update_job_from(
        &self,
        source: JobSourceKind,
        before: &StoredJob,
        job: &JobInput,
        next_fire_at: Option<DateTime<Utc>>,
        edit: AuditStamp<'_>,
        keeps_limits: bool,
    ) -> Result<Option<i32>> {
        let mut tx = self.pool().begin().await?;
        let version = update_job(&mut tx, before, job, next_fire_at, source, edit).await?;
        if version.is_some() {
            if !keeps_limits {
                apply_limits(&mut tx, before.id, &before.definition.rules, &job.rules).await?;
            }
            tx.commit().await?;
        }
        Ok(version)
    }

    /// Pauses a job, or resumes it with a new due time, which ends the skip of one, if it is still at the version that was
    /// read. Returns false if not.
    pub async fn set_active(
        &self,
        job: &StoredJob,
        active: bool,
        next_fire_at: Option<DateTime<Utc>>,
        reason: Option<&str>,
        edit: AuditStamp<'_>,
    ) -> Result<bool> {
        let definition = JobInput { is_active: active, ..job.definition.clone() };
        let ended = ended_skip(self.pool(), job, &definition, next_fire_at, edit.at).await?;
        let done = sqlx::query!(
            "WITH changed AS (
                UPDATE jobs SET is_active = $3, paused_reason = $5, modified_at = $6, modified_by = $7,
                       version = version + 1, auto_disabled_at = NULL, enable_again_at = NULL,
                       failures_since = CASE WHEN $3 THEN $6 ELSE failures_since END
                 WHERE id = $1 AND version = $2
                RETURNING id, version
             ),
             due AS (
                UPDATE job_due d SET next_fire_at = $4, version = c.version,
                       last_fire_at = nullif(d.last_fire_at, $10::timestamptz)
                  FROM changed c WHERE d.job_id = c.id
             ),
             kept AS (
                INSERT INTO job_versions (job_id, version, definition, changed_at, changed_by)
                SELECT id, version, $8, $6, $7 FROM changed
             )
             INSERT INTO audit_log (at, who, action, object, after, address)
             SELECT $6, $7, CASE WHEN $3 THEN 'job.resume' ELSE 'job.pause' END, 'job:' || id::text,
                    jsonb_build_object('reason', $5::text), $9
               FROM changed",
            job.id.0,
            job.version,
            active,
            next_fire_at.filter(|_| active),
            reason.filter(|_| !active),
            edit.at,
            edit.by,
            json(&definition),
            edit.address.map(|address| address.to_string()),
            ended
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Returns the number of jobs whose due time belongs to another version of the definition. They are never due. A
    /// correct server leaves none, because each statement that changes a version changes both.
    pub async fn count_mismatched_due_times(&self) -> Result<i64> {
        Ok(sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM job_due d JOIN jobs j ON j.id = d.job_id WHERE j.version <> d.version"#
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Deletes a job; its occurrences and versions remain. Returns its name, or `None` if it does not exist or is not at
    /// the version `expected`.
    pub async fn delete_job(&self, id: JobId, expected: Option<i32>, edit: AuditStamp<'_>) -> Result<Option<String>> {
        delete_job(self.pool(), id, expected, edit).await
    }

    /// Returns the id of the job with this key, or `None` if there is none.
    pub async fn job_id_of_key(&self, key: &str) -> Result<Option<JobId>> {
        Ok(sqlx::query_scalar!("SELECT id FROM jobs WHERE key = $1", key).fetch_optional(self.pool()).await?.map(JobId))
    }

    /// Returns a job, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails, and [`StoreError::Unreadable`] if a newer server has written a part of
    /// the job that this version cannot read. A change by this version would destroy that part.
    pub async fn job(&self, id: JobId) -> Result<Option<StoredJob>> {
        match self.job_to_show(id).await? {
            Some(StoredJob { unreadable: Some(part), .. }) => Err(StoreError::Unreadable(part)),
            job => Ok(job),
        }
    }

    /// Returns a job for display, also if this version cannot read a part of it, or `None` if it does not exist.
    pub async fn job_to_show(&self, id: JobId) -> Result<Option<StoredJob>> {
        let row = sqlx::query!(
            "SELECT j.*, d.next_fire_at, d.last_fire_at FROM jobs j JOIN job_due d ON d.job_id = j.id WHERE j.id = $1",
            id.0
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| stored_job!(row)))
    }

    /// Returns the jobs with these ids, also if this version cannot read a part of them. Those that do not exist are left
    /// out.
    pub async fn jobs_to_show(&self, ids: &[JobId]) -> Result<Vec<StoredJob>> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let rows = sqlx::query!(
            "SELECT j.*, d.next_fire_at, d.last_fire_at FROM jobs j JOIN job_due d ON d.job_id = j.id
              WHERE j.id = ANY($1) ORDER BY lower(j.display_name), j.id",
            &ids
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| stored_job!(row)).collect())
    }

    /// Returns the keys of a list that jobs have, with the jobs.
    pub async fn job_ids_of_keys(&self, keys: &[String]) -> Result<HashMap<String, JobId>> {
        let rows = sqlx::query!(r#"SELECT key AS "key!", id FROM jobs WHERE key = ANY($1)"#, keys)
            .fetch_all(self.pool())
            .await?;
        Ok(rows.into_iter().map(|row| (row.key, JobId(row.id))).collect())
    }
}

/// Prepares a checked statement that writes the definition of a job, so that the list of its columns exists once. The text
/// is in three parts, between which the names of the columns and their values are inserted. Its parameters are `$1` the id,
/// `$2` the key or the expected version, `$3` the next due time, `$4` the time, `$5` the author, `$6` the address, `$7` the
/// source, `$8` the whole definition, the values of the columns to `$32`, and then `$more`. It is a macro because sqlx checks
/// only literals.
macro_rules! write_job {
    (
        $query:ident, $before:literal, $between:literal, $after:literal,
        ($id:expr, $key_or_version:expr, $job:ident, $next_fire_at:ident, $source:ident, $edit:ident) $(, $more:expr)*
    ) => {{
        let rules = RuleColumns::of(&$job.rules);
        sqlx::$query!(
            $before
                + "display_name, description, tags, worker_id, job_type, job_data, schedule, is_active, priority,
                   timeout_seconds, modified_at, modified_by, rules, start_at, end_at, calendars, overlap_policy,
                   max_concurrent, concurrency_key, concurrency_key_limit, max_retries, heartbeat_timeout_seconds,
                   unreachable_timeout_seconds, on_lost, auto_disable, start_within_seconds"
                + $between
                + "$9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $4, $5, $19, $20, $21, $22, $23, $24, $25, $26, $27,
                   $28, $29, $30, $31, $32"
                + $after,
            $id,
            $key_or_version,
            $next_fire_at.filter(|_| $job.is_active),
            $edit.at,
            $edit.by,
            $edit.address.map(|address| address.to_string()),
            $source.as_str(),
            json($job),
            $job.display_name,
            $job.description,
            &$job.tags,
            $job.worker_id,
            $job.job_type,
            $job.job_data,
            json(&$job.schedule),
            $job.is_active,
            i16::from($job.priority),
            $job.timeout_seconds.map(|s| s as i32),
            rules.rules,
            rules.start_at,
            rules.end_at,
            &rules.calendars,
            rules.overlap,
            rules.max_concurrent,
            rules.key,
            rules.key_limit,
            rules.max_retries,
            rules.heartbeat_timeout_seconds,
            rules.unreachable_timeout_seconds,
            rules.on_lost,
            rules.auto_disable,
            rules.start_within_seconds
            $(, $more)*
        )
    }};
}

/// Inserts a job. The caller chooses the connection, and with it the transaction.
pub(super) async fn insert_job(
    executor: impl PgExecutor<'_>,
    id: JobId,
    key: Option<&str>,
    job: &JobInput,
    next_fire_at: Option<DateTime<Utc>>,
    source: JobSourceKind,
    edit: AuditStamp<'_>,
) -> Result<()> {
    let statement = write_job!(
        query,
        "WITH made AS (
            INSERT INTO jobs (id, key, source, created_at, created_by, ",
        ")
            VALUES ($1, $2, $7, $4, $5, ",
        ")
            RETURNING id, version, priority
         ),
         due AS (
            INSERT INTO job_due (job_id, priority, next_fire_at, version) SELECT id, priority, $3, version FROM made
         ),
         kept AS (
            INSERT INTO job_versions (job_id, version, definition, changed_at, changed_by)
            SELECT id, version, $8, $4, $5 FROM made
         )
         INSERT INTO audit_log (at, who, action, object, after, address) VALUES ($4, $5, 'job.create', 'job:' || $1::text, $8, $6)",
        (id.0, key, job, next_fire_at, source, edit)
    );
    statement.execute(executor).await?;
    Ok(())
}

/// Replaces a job's definition; see [`Store::update_job`].
pub(super) async fn update_job(
    tx: &mut StoreTransaction,
    before: &StoredJob,
    job: &JobInput,
    next_fire_at: Option<DateTime<Utc>>,
    source: JobSourceKind,
    edit: AuditStamp<'_>,
) -> Result<Option<i32>> {
    let ended = ended_skip(&mut *tx, before, job, next_fire_at, edit.at).await?;
    let statement = write_job!(
        query_scalar,
        "WITH before AS (SELECT definition FROM job_versions WHERE job_id = $1 AND version = $2),
         -- The job is locked before its due time, as everywhere.
         locked AS (SELECT id FROM jobs WHERE id = $1 AND version = $2 FOR NO KEY UPDATE),
         unmoved AS (
            SELECT d.job_id FROM job_due d
             WHERE d.job_id IN (SELECT id FROM locked) AND d.next_fire_at IS NOT DISTINCT FROM $33 FOR UPDATE OF d
         ),
         changed AS (
            UPDATE jobs SET (",
        ") = (",
        r#"), version = version + 1,
                   paused_reason = CASE WHEN $16 THEN NULL ELSE paused_reason END,
                   auto_disabled_at = CASE WHEN $16 THEN NULL ELSE auto_disabled_at END,
                   enable_again_at = CASE WHEN $16 THEN NULL ELSE enable_again_at END,
                   failures_since = CASE WHEN $16 AND NOT is_active THEN $4 ELSE failures_since END,
                   -- The dashboard edits jobs of every source, and a file or code that defines a job still exists.
                   source = CASE WHEN $7 = 'dashboard' OR source IN ('file', 'code') THEN source ELSE $7 END
             WHERE id IN (SELECT job_id FROM unmoved)
            RETURNING id, version, priority
         ),
         due AS (
            UPDATE job_due d SET next_fire_at = $3, priority = c.priority, version = c.version,
                   last_fire_at = nullif(d.last_fire_at, $34::timestamptz)
              FROM changed c WHERE d.job_id = c.id
         ),
         kept AS (
            INSERT INTO job_versions (job_id, version, definition, changed_at, changed_by)
            SELECT id, version, $8, $4, $5 FROM changed
         ),
         noted AS (
            INSERT INTO audit_log (at, who, action, object, before, after, address)
            SELECT $4, $5, 'job.update', 'job:' || id::text, (SELECT definition FROM before), $8, $6 FROM changed
         )
         SELECT version AS "version!" FROM changed"#,
        (before.id.0, before.version, job, next_fire_at, source, edit),
        before.next_fire_at,
        ended
    );
    Ok(statement.fetch_optional(tx).await?)
}

/// Deletes a job; see [`Store::delete_job`].
pub(super) async fn delete_job(
    executor: impl PgExecutor<'_>,
    id: JobId,
    expected: Option<i32>,
    edit: AuditStamp<'_>,
) -> Result<Option<String>> {
    Ok(sqlx::query_scalar!(
        r#"WITH gone AS (DELETE FROM jobs WHERE id = $1 AND ($5::int IS NULL OR version = $5)
                   RETURNING id, display_name, version),
         noted AS (
            INSERT INTO audit_log (at, who, action, object, before, address)
            SELECT $2, $3, 'job.delete', 'job:' || g.id::text, v.definition, $4
              FROM gone g LEFT JOIN job_versions v ON v.job_id = g.id AND v.version = g.version
         )
         SELECT display_name AS "name!" FROM gone"#,
        id.0,
        edit.at,
        edit.by,
        edit.address.map(|address| address.to_string()),
        expected
    )
    .fetch_optional(executor)
    .await?)
}
