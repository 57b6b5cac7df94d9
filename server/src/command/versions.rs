//! Versions of a job: list, compare and restore.

use std::collections::BTreeMap;

use milvaion_api::{
    events::LiveEvent,
    page::ListPage,
    requests::JobInput,
    sources::JobSourceKind,
    versions::{RestoreVersionResult, VersionDiff, VersionRow, VersionStep, VersionView},
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::JobId;
use serde_json::Value;

use super::jobs::{JobCommands, conflict, not_found};
use crate::{domain::diff, store::jobs::AuditStamp};

/// The number of versions on one page of the history. Each is read whole, to compute its changes.
const HISTORY_ROWS: u32 = 20;

impl JobCommands {
    /// Returns a page of the versions of a job before `before`, newest first, with the fields that each version
    /// changed.
    pub async fn history(&self, id: JobId, before: Option<i32>) -> Result<ListPage<VersionStep>, AppError> {
        let ListPage { rows, next } = self.store.versions(id, before, HISTORY_ROWS).await?;
        let (Some(newest), Some(oldest)) = (rows.first(), rows.last()) else {
            return Ok(ListPage { rows: Vec::new(), next });
        };
        // One version more than the page shows, because the oldest one is compared with it.
        let definitions = self.store.definitions(id, oldest.version - 1, newest.version).await?;
        let definitions: BTreeMap<i32, Value> = definitions.into_iter().collect();
        let step = |row: VersionRow| {
            let pair = definitions.get(&(row.version - 1)).zip(definitions.get(&row.version));
            let difference = pair.map(|(before, after)| diff::diff(before, after)).unwrap_or_default();
            let fields = difference.changes.into_iter().map(|change| change.field).collect();
            VersionStep { row, fields, more: difference.more }
        };
        Ok(ListPage { rows: rows.into_iter().map(step).collect(), next })
    }

    /// Returns one version of a job. The job may be deleted.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if there is no such version.
    pub async fn version(&self, id: JobId, version: i32) -> Result<VersionView, AppError> {
        self.store.version(id, version).await?.ok_or_else(|| no_version(version))
    }

    /// Compares two versions of a job. The job may be deleted.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if one of the versions does not exist.
    pub async fn compare_versions(&self, id: JobId, before: i32, after: i32) -> Result<VersionDiff, AppError> {
        let (before, after) = (self.version(id, before).await?, self.version(id, after).await?);
        Ok(diff::diff(&before.definition, &after.definition))
    }

    /// Gives a job the definition of an earlier version. This is an edit of the version `expected`. The job stays
    /// paused or active as it is now. Calendars that no longer exist are removed and returned.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the job or the version does not exist. Returns `Conflict` if the job was changed in the
    /// meantime, or if the old definition is no longer valid.
    pub async fn restore(
        &self,
        me: &RequestUser,
        id: JobId,
        version: i32,
        expected: i32,
    ) -> Result<RestoreVersionResult, AppError> {
        let before = self.store.job(id).await?.ok_or_else(not_found)?;
        if before.version != expected {
            return Err(conflict());
        }
        let old = self.version(id, version).await?;
        let mut job: JobInput = serde_json::from_value(old.definition)
            .map_err(|error| AppError::Conflict(format!("Version {version} cannot be read: {error}. Edit the job.")))?;
        if let Err((field, message)) = job.schedule.check() {
            return Err(AppError::Conflict(format!(
                "Version {version} is no longer valid: {field} {message}. Edit the job."
            )));
        }
        let missing_calendars = self.store.missing_calendars(&job.rules.calendars).await?;
        job.rules.calendars.retain(|calendar| !missing_calendars.contains(calendar));
        job.is_active = before.definition.is_active;
        let edit = AuditStamp { by: &me.email, at: self.clock.now(), address: me.address };
        let (version, next) = self.replace(JobSourceKind::Dashboard, before, &job, edit, false).await?;
        self.publisher.ensure_queue(&job.worker_id, &job.job_type).await;
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(RestoreVersionResult { version, missing_calendars })
    }
}

fn no_version(version: i32) -> AppError {
    AppError::NotFound(format!("This job has no version {version}."))
}
