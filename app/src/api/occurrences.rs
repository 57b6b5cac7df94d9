//! Occurrences: finding them, reading one, and paging through its log.

use leptos::prelude::*;
use protocol::{
    id::OccurrenceId,
    message::LogLine,
    page::{OccurrenceFilter, Page},
    view::{OccurrenceRow, OccurrenceView},
};
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// A page of occurrences, newest first.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "occurrences")]
pub async fn list_occurrences(#[server(default)] filter: OccurrenceFilter) -> Result<Page<OccurrenceRow>, AppError> {
    let (backend, me) = super::allowed(protocol::access::Action::Read).await?;
    backend.occurrences(&me, filter).await.map_err(super::failed)
}

/// One occurrence with the newest lines of its log.
///
/// # Errors
///
/// `NotFound` when retention has taken it or it never was.
#[server(input = GetUrl, endpoint = "occurrence")]
pub async fn get_occurrence(id: OccurrenceId) -> Result<OccurrenceView, AppError> {
    let (backend, me) = super::allowed(protocol::access::Action::Read).await?;
    backend.occurrence(&me, id).await.map_err(super::failed)
}

/// At most 500 lines of an occurrence's log before `before_seq`, oldest first.
///
/// # Errors
///
/// `NotFound` as above.
#[server(input = GetUrl, endpoint = "log_before")]
pub async fn log_before(id: OccurrenceId, before_seq: i64) -> Result<Vec<LogLine>, AppError> {
    let (backend, me) = super::allowed(protocol::access::Action::Read).await?;
    backend.log_before(&me, id, before_seq).await.map_err(super::failed)
}
