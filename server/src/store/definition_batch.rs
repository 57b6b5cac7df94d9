//! Many definitions in one transaction: all of a file, or none.
//!
//! The jobs are locked first, in the order of their ids, and then their due times, as everywhere. From then on no run of
//! them is created, so the transaction must be short: its caller has checked and computed everything before. A dispatcher
//! skips the locked jobs and finds them due in its next tick.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use milvaion_api::{alerts::AlertRule, requests::JobInput, sources::JobSourceKind};
use milvaion_protocol::id::{AlertChannelId, AlertRuleId, CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;
use uuid::Uuid;

use super::{
    Result, Store,
    alerts::{self, SaveOutcome},
    audit::AuditEntry,
    calendars,
    jobs::{self, AuditStamp, StoredJob},
    pool::StoreTransaction,
    slots,
};

/// A transaction that saves definitions. It is rolled back when it is dropped.
#[derive(Debug)]
pub struct DefinitionBatch(StoreTransaction);

/// The state of a locked job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedJob {
    /// Number of edits.
    pub version: i32,
    /// Next due time.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Due time that was dispatched last.
    pub last_fire_at: Option<DateTime<Utc>>,
}

impl Store {
    /// Begins a transaction that saves definitions.
    pub async fn begin_definitions(&self) -> Result<DefinitionBatch> {
        Ok(DefinitionBatch(self.pool().begin().await?))
    }
}

impl DefinitionBatch {
    /// Locks jobs with their due times. Jobs that do not exist are left out.
    pub async fn lock_jobs(&mut self, ids: &[JobId]) -> Result<HashMap<JobId, LockedJob>> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let versions =
            sqlx::query!("SELECT id, version FROM jobs WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE", &ids)
                .fetch_all(&mut self.0)
                .await?;
        let versions: HashMap<Uuid, i32> = versions.into_iter().map(|row| (row.id, row.version)).collect();
        let due_times = sqlx::query!(
            "SELECT job_id, next_fire_at, last_fire_at FROM job_due WHERE job_id = ANY($1) ORDER BY job_id FOR UPDATE",
            &ids
        )
        .fetch_all(&mut self.0)
        .await?;
        let locked = due_times.into_iter().filter_map(|row| {
            let version = *versions.get(&row.job_id)?;
            let (next_fire_at, last_fire_at) = (row.next_fire_at, row.last_fire_at);
            Some((JobId(row.job_id), LockedJob { version, next_fire_at, last_fire_at }))
        });
        Ok(locked.collect())
    }

    /// Returns the connection of the transaction.
    pub(super) fn connection(&mut self) -> &mut StoreTransaction {
        &mut self.0
    }

    /// Inserts a job, with a key if one is given, through the door `source`.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails or a constraint is violated.
    pub async fn insert_job(
        &mut self,
        id: JobId,
        key: Option<&str>,
        job: &JobInput,
        next_fire_at: Option<DateTime<Utc>>,
        source: JobSourceKind,
        edit: AuditStamp<'_>,
    ) -> Result<()> {
        jobs::insert_job(&mut self.0, id, key, job, next_fire_at, source, edit).await
    }

    /// Replaces a job's definition. Returns false if the job is not as `before`. Occurrences that wait for a slot get the
    /// limits of the new definition.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails or a constraint is violated.
    pub async fn update_job(
        &mut self,
        before: &StoredJob,
        job: &JobInput,
        next_fire_at: Option<DateTime<Utc>>,
        edit: AuditStamp<'_>,
    ) -> Result<bool> {
        let version = jobs::update_job(&mut self.0, before, job, next_fire_at, JobSourceKind::File, edit).await?;
        if version.is_some() {
            slots::apply_limits(&mut self.0, before.id, &before.definition.rules, &job.rules).await?;
        }
        Ok(version.is_some())
    }

    /// Gives a job without a key one. Returns false if it has a key.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails or a constraint is violated.
    pub async fn set_key(&mut self, id: JobId, key: &str) -> Result<bool> {
        let done = sqlx::query!("UPDATE jobs SET key = $2 WHERE id = $1 AND key IS NULL", id.0, key)
            .execute(&mut self.0)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Deletes a job. Returns false if it is not at the version `expected`.
    pub async fn delete_job(&mut self, id: JobId, expected: i32, edit: AuditStamp<'_>) -> Result<bool> {
        Ok(jobs::delete_job(&mut self.0, id, Some(expected), edit).await?.is_some())
    }

    /// Inserts a calendar, or replaces it if it is still at `version`. Returns false if it is not.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails or a constraint is violated.
    pub async fn save_calendar(
        &mut self,
        id: CalendarId,
        version: Option<i32>,
        calendar: &Calendar,
        edit: AuditStamp<'_>,
    ) -> Result<bool> {
        Ok(calendars::save_calendar(&mut self.0, id, version, calendar, edit).await?.is_some())
    }

    /// Saves an alert rule whose version is `version`, or a new one. Returns false if it has another version, or if there are
    /// as many rules as may exist.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails or a constraint is violated.
    pub async fn save_alert_rule(
        &mut self,
        id: AlertRuleId,
        version: Option<i32>,
        rule: &AlertRule,
        channels: &[AlertChannelId],
        edit: AuditStamp<'_>,
    ) -> Result<SaveOutcome> {
        let action = if version.is_some() { "alert_rule.update" } else { "alert_rule.create" };
        let entry = AuditEntry::new(edit.at, edit.by, action, format!("alert_rule:{id}"))
            .change(None, serde_json::to_value(rule).ok())
            .from(edit.address.map(|address| address.to_string()));
        alerts::save_rule(&mut self.0, id, version, rule, channels, &entry).await
    }

    /// Records that jobs are, at their present versions, as a file says. Only a job that is taken from another source or
    /// file gets a row in the audit log.
    pub async fn set_file(&mut self, ids: &[JobId], file: &str, edit: AuditStamp<'_>) -> Result<()> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        sqlx::query!(
            "WITH before AS (SELECT id, source_file FROM jobs WHERE id = ANY($1)),
             marked AS (
                UPDATE jobs SET source = 'file', source_file = $2, source_version = version
                 WHERE id = ANY($1)
                   AND (source <> 'file' OR source_file IS DISTINCT FROM $2 OR source_version IS DISTINCT FROM version)
                RETURNING id
             )
             INSERT INTO audit_log (at, who, action, object, before, after, address)
             SELECT $3, $4, 'job.take-from-file', 'job:' || m.id::text, jsonb_build_object('file', b.source_file),
                    jsonb_build_object('file', $2::text), $5
               FROM marked m JOIN before b ON b.id = m.id
              WHERE b.source_file IS DISTINCT FROM $2",
            &ids,
            file,
            edit.at,
            edit.by,
            edit.address.map(|address| address.to_string())
        )
        .execute(&mut self.0)
        .await?;
        Ok(())
    }

    /// Commits the transaction.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; the definitions may then be saved.
    pub async fn commit(self) -> Result<()> {
        Ok(self.0.commit().await?)
    }
}
