//! Occurrences: finding them, reading one, paging through its log, and cancelling it.

use leptos::prelude::*;
use milvaion_api::{
    page::{ListPage, OccurrenceFilter},
    views::{OccurrenceRow, OccurrenceView},
};
use milvaion_protocol::{id::OccurrenceId, message::LogLine};
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// A page of occurrences, newest first.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "occurrences")]
pub async fn list_occurrences(
    #[server(default)] filter: OccurrenceFilter,
) -> Result<ListPage<OccurrenceRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.occurrences(&me, filter).await.map_err(super::with_error_status)
}

/// One occurrence with the newest lines of its log.
///
/// # Errors
///
/// `NotFound` when retention has taken it or it never was.
#[server(input = GetUrl, endpoint = "occurrence")]
pub async fn get_occurrence(id: OccurrenceId) -> Result<OccurrenceView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.occurrence(&me, id).await.map_err(super::with_error_status)
}

/// At most 500 lines of an occurrence's log before `before_seq`, oldest first.
///
/// # Errors
///
/// `NotFound` as above.
#[server(input = GetUrl, endpoint = "log_before")]
pub async fn log_before(id: OccurrenceId, before_seq: i64) -> Result<Vec<LogLine>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.log_before(&me, id, before_seq).await.map_err(super::with_error_status)
}

/// Cancels an occurrence. Answers whether that is all: true when it is Cancelled now, false when a worker runs it and was
/// asked to end it. `reason` is kept with the occurrence.
///
/// # Errors
///
/// A `reason` of more than 500 characters; `Conflict` when it has ended already; `NotFound`; `Denied` below Operator.
#[server(endpoint = "cancel_occurrence")]
pub async fn cancel_occurrence(id: OccurrenceId, #[server(default)] reason: String) -> Result<bool, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::CancelOccurrence).await?;
    let result =
        backend.cancel_occurrence(&me, id, &reason).await.map(milvaion_protocol::status::OccurrenceStatus::is_final);
    let notice = cancel_notice(*result.as_ref().unwrap_or(&false));
    let page = format!("/occurrences/{id}");
    let typed = serde_json::json!({ "reason": reason });
    super::respond("cancel", result, |_| page.clone(), notice, &page, typed).await
}

/// What is said after [`cancel_occurrence`] answered `has_ended`.
#[must_use]
pub const fn cancel_notice(has_ended: bool) -> &'static str {
    if has_ended { "The occurrence is cancelled." } else { "The worker was asked to end it." }
}
