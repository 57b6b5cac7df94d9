//! Server functions that list, read and cancel occurrences and page through their logs.

use leptos::prelude::*;
use milvaion_api::{
    page::{ListPage, OccurrenceFilter},
    views::{OccurrenceRow, OccurrenceView},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::LogLine,
};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Lists occurrences, newest first.
#[server(input = GetUrl, output = JsonText, endpoint = "occurrences")]
pub async fn list_occurrences(
    #[server(default)] filter: OccurrenceFilter,
) -> Result<ListPage<OccurrenceRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.occurrences(&me, filter).await.map_err(super::with_error_status)
}

/// Returns the name of a job whose occurrences are listed; `None` if it is deleted or never existed.
#[server(input = GetUrl, output = JsonText, endpoint = "job_name")]
pub async fn get_job_name(id: JobId) -> Result<Option<String>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    match backend.job(&me, id, None).await {
        Ok(job) => Ok(Some(job.row.display_name)),
        // The occurrences of a deleted job are kept, so their list is no missing page.
        Err(AppError::NotFound(_)) => Ok(None),
        Err(error) => Err(super::with_error_status(error)),
    }
}

/// Returns the input of an occurrence of a job; `None` if the occurrence is deleted or belongs to another job.
#[server(input = GetUrl, output = JsonText, endpoint = "run_input")]
pub async fn run_input(id: OccurrenceId, job_id: JobId) -> Result<Option<serde_json::Value>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    // No lines of the log.
    match backend.occurrence(&me, id, Some(i64::MAX)).await {
        Ok(view) => Ok((view.row.job_id == job_id).then_some(view.job_data)),
        // The page is that of the job, which exists.
        Err(AppError::NotFound(_)) => Ok(None),
        Err(error) => Err(super::with_error_status(error)),
    }
}

/// Returns one occurrence with at most 500 lines of its log: the newest ones after `log_after`, or of the whole log.
///
/// # Errors
///
/// `NotFound` if retention has deleted it or it never existed.
#[server(input = GetUrl, output = JsonText, endpoint = "occurrence")]
pub async fn get_occurrence(
    id: OccurrenceId,
    #[server(default)] log_after: Option<i64>,
) -> Result<OccurrenceView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.occurrence(&me, id, log_after).await.map_err(super::with_error_status)
}

/// Returns at most 500 log lines of an occurrence: the oldest ones between `after` and `before`, both excluded.
#[server(input = GetUrl, output = JsonText, endpoint = "log_range")]
pub async fn log_range(id: OccurrenceId, after: i64, before: i64) -> Result<Vec<LogLine>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.log_range(&me, id, after, before).await.map_err(super::with_error_status)
}

/// Returns at most 500 log lines of an occurrence before `before_seq`, oldest first.
///
/// # Errors
///
/// `NotFound` if retention has deleted the occurrence or it never existed.
#[server(input = GetUrl, output = JsonText, endpoint = "log_before")]
pub async fn log_before(id: OccurrenceId, before_seq: i64) -> Result<Vec<LogLine>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.log_before(&me, id, before_seq).await.map_err(super::with_error_status)
}

/// Cancels an occurrence. Returns true if it is now Cancelled, false if its worker runs it and was requested to stop.
/// `reason` is stored with the occurrence.
///
/// # Errors
///
/// `Fields` if `reason` exceeds 500 characters; `Conflict` if it has already ended; `NotFound`; `Denied` below
/// Operator.
#[server(output = JsonText, endpoint = "cancel_occurrence")]
pub async fn cancel_occurrence(id: OccurrenceId, #[server(default)] reason: String) -> Result<bool, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::CancelOccurrence).await?;
    let result =
        backend.cancel_occurrence(&me, id, &reason).await.map(milvaion_protocol::status::OccurrenceStatus::is_final);
    let notice = cancel_notice(*result.as_ref().unwrap_or(&false));
    let page = format!("/occurrences/{id}");
    let typed = serde_json::json!({ "reason": reason });
    super::respond("cancel", result, |_| page.clone(), notice, &page, typed).await
}

/// Returns the notice after [`cancel_occurrence`] returned `has_ended`.
#[must_use]
pub const fn cancel_notice(has_ended: bool) -> &'static str {
    if has_ended { "The occurrence is cancelled." } else { "A cancel request was sent to the worker." }
}
