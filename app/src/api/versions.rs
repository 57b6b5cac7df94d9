//! Server functions that list, compare and restore the versions of a job.

use leptos::prelude::*;
use milvaion_api::{
    page::ListPage,
    versions::{RestoreVersionResult, VersionDiff, VersionStep},
};
use milvaion_protocol::id::JobId;
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Lists a job's versions before `before`, newest first, with the changes of each.
#[server(input = GetUrl, output = JsonText, endpoint = "job_history")]
pub async fn job_history(id: JobId, before: Option<i32>) -> Result<ListPage<VersionStep>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.job_history(&me, id, before).await.map_err(super::with_error_status)
}

/// Compares two versions of a job.
///
/// # Errors
///
/// `NotFound` if one of the versions does not exist.
#[server(input = GetUrl, output = JsonText, endpoint = "compare_versions")]
pub async fn compare_versions(id: JobId, from: i32, to: i32) -> Result<VersionDiff, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.compare_versions(&me, id, from, to).await.map_err(super::with_error_status)
}

/// Restores an earlier version of a job as a new version. `expected` is the current version as the user saw it.
///
/// # Errors
///
/// `Conflict` if another user changed the job meanwhile or if the old definition is no longer valid; `NotFound`;
/// `Denied` below Operator.
#[server(output = JsonText, endpoint = "restore_version")]
pub async fn restore_version(id: JobId, version: i32, expected: i32) -> Result<RestoreVersionResult, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let result = backend.restore_version(&me, id, version, expected).await;
    let notice = result.as_ref().map(|restored| restore_notice(version, restored)).unwrap_or_default();
    let page = format!("/jobs/{id}?tab=history");
    super::respond("trigger", result, |_| page.clone(), &notice, &page, ()).await
}

/// Builds the notice after `version` was restored.
#[must_use]
pub fn restore_notice(version: i32, restored: &RestoreVersionResult) -> String {
    let mut notice = format!("Version {version} is restored, as version {}.", restored.version);
    match restored.missing_calendars.len() {
        0 => {}
        1 => notice.push_str(" 1 of its calendars no longer exists and was removed from the job."),
        n => notice.push_str(&format!(" {n} of its calendars no longer exist and were removed from the job.")),
    }
    notice
}
