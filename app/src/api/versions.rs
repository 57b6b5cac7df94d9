//! The definitions a job has had: reading them, comparing two, going back to one.

use leptos::prelude::*;
use milvaion_api::{
    page::ListPage,
    versions::{RestoreVersionResult, VersionDiff, VersionStep},
};
use milvaion_protocol::id::JobId;
use server_fn::codec::GetUrl;

use crate::{error::AppError, format::plural};

/// A page of the versions a job has had, newest first, those before `before`, with what each changed.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "job_history")]
pub async fn job_history(id: JobId, before: Option<i32>) -> Result<ListPage<VersionStep>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.job_history(&me, id, before).await.map_err(super::with_error_status)
}

/// What differs between two versions of a job.
///
/// # Errors
///
/// `NotFound` when there is no such version.
#[server(input = GetUrl, endpoint = "compare_versions")]
pub async fn compare_versions(id: JobId, from: i32, to: i32) -> Result<VersionDiff, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.compare_versions(&me, id, from, to).await.map_err(super::with_error_status)
}

/// Gives a job the definition of an earlier version, as a new version. `expected` is the version the reader saw as the
/// present one.
///
/// # Errors
///
/// `Conflict` when somebody changed the job meanwhile or the old definition cannot be used any more; `NotFound`; `Denied`
/// below Operator.
#[server(endpoint = "restore_version")]
pub async fn restore_version(id: JobId, version: i32, expected: i32) -> Result<RestoreVersionResult, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let result = backend.restore_version(&me, id, version, expected).await;
    let notice = result.as_ref().map(|restored| restore_notice(version, restored)).unwrap_or_default();
    let page = format!("/jobs/{id}?tab=history");
    super::respond("trigger", result, |_| page.clone(), &notice, &page, ()).await
}

/// What is said after `version` was restored.
#[must_use]
pub fn restore_notice(version: i32, restored: &RestoreVersionResult) -> String {
    let mut words = format!("Version {version} is restored, as version {}.", restored.version);
    if !restored.missing_calendars.is_empty() {
        let count = i64::try_from(restored.missing_calendars.len()).unwrap_or(i64::MAX);
        words.push_str(&format!(
            " {} it kept to cannot be found any more: the job runs without.",
            plural(count, "calendar").replacen("1 calendar", "A calendar", 1)
        ));
    }
    words
}
