//! Failures and dead letters for the pages. A list holds only the beginning of an exception or a body.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{
    failures::{
        DeadLetterFilter, DeadLetterRow, FAILURE_SAMPLES, FailureFilter, FailureGroup, FailureRow, FailureScopePreview,
        FailureSelection, MAX_COUNTED_FAILURES, MAX_FAILURE_GROUP_DAYS, ResolveFailuresResult, RetryFailuresResult,
    },
    page::ListPage,
};
use milvaion_app::{
    backend::{RequestUser, RetryInput},
    error::AppError,
};
use milvaion_protocol::id::OccurrenceId;
use serde_json::Value;

use crate::{
    command::{failures::check_text, jobs::JobCommands},
    domain::transition::first_line,
    store::Store,
};

/// The most characters of a body, and of its headers, in a list of dead letters.
const MAX_PREVIEW_CHARS: usize = 2_000;

/// Returns a page of failures, grouped by cause, at `now`.
pub(super) async fn groups(
    store: &Store,
    filter: &FailureFilter,
    now: DateTime<Utc>,
) -> Result<ListPage<FailureGroup>, AppError> {
    check_text(filter)?;
    check_cursor(filter.after.is_some(), filter.group_cursor().is_some())?;
    // A single group is counted completely: its page offers to change all of it.
    let window = if filter.fingerprint.is_some() { None } else { Some(Duration::days(MAX_FAILURE_GROUP_DAYS)) };
    let since = filter.since.unwrap_or_else(|| window.map_or(DateTime::UNIX_EPOCH, |age| now - age));
    Ok(store.failure_groups(filter, since).await?)
}

/// Returns a page of failures.
pub(super) async fn page(store: &Store, filter: &FailureFilter) -> Result<ListPage<FailureRow>, AppError> {
    check_text(filter)?;
    check_cursor(filter.after.is_some(), filter.cursor().is_some())?;
    let mut page = store.failures(filter).await?;
    for row in &mut page.rows {
        row.exception = row.exception.as_deref().map(first_line);
        row.job_data = Value::Null;
    }
    Ok(page)
}

/// Returns the number and the newest of the open failures that match a filter.
pub(super) async fn preview(store: &Store, filter: &FailureFilter) -> Result<FailureScopePreview, AppError> {
    let open = FailureFilter { resolved: Some(false), after: None, limit: FAILURE_SAMPLES, ..filter.clone() };
    let samples = page(store, &open).await?.rows;
    Ok(FailureScopePreview { count: store.count_failures(&open, MAX_COUNTED_FAILURES).await?, samples })
}

/// Refuses a cursor that cannot be parsed: without it the first page would be shown in place of the requested one.
fn check_cursor(is_given: bool, is_valid: bool) -> Result<(), AppError> {
    if is_given && !is_valid {
        return Err(AppError::field("after", "the cursor is invalid: use the next of the previous page, or none"));
    }
    Ok(())
}

/// Returns one failure.
pub(super) async fn one(store: &Store, id: OccurrenceId) -> Result<FailureRow, AppError> {
    let failure = store.failure(id).await?;
    failure.ok_or_else(|| AppError::NotFound("This failure does not exist or was deleted by retention.".into()))
}

/// Retries the failures that a user saw and confirmed.
pub(super) async fn retry(
    jobs: &JobCommands,
    me: &RequestUser,
    selection: &FailureSelection,
    seen: usize,
    input: &RetryInput,
) -> Result<RetryFailuresResult, AppError> {
    let (selection, more) = jobs.confirm_selection(selection, seen).await?;
    let retried = jobs.retry_failures(me, &selection, input).await?;
    Ok(RetryFailuresResult { more, ..retried })
}

/// Resolves the failures that a user saw and confirmed.
pub(super) async fn resolve(
    jobs: &JobCommands,
    me: &RequestUser,
    selection: &FailureSelection,
    seen: usize,
    note: &str,
) -> Result<ResolveFailuresResult, AppError> {
    let (selection, more) = jobs.confirm_selection(selection, seen).await?;
    let resolved = jobs.resolve_failures(me, &selection, note).await?;
    Ok(ResolveFailuresResult { more, ..resolved })
}

/// Returns a page of dead letters.
pub(super) async fn dead_letters(
    store: &Store,
    filter: &DeadLetterFilter,
) -> Result<ListPage<DeadLetterRow>, AppError> {
    let mut page = store.dead_letters(filter).await?;
    for row in &mut page.rows {
        truncate(&mut row.body, MAX_PREVIEW_CHARS);
        let headers = row.headers.to_string();
        if headers.len() > MAX_PREVIEW_CHARS {
            row.headers = Value::String(headers.chars().take(MAX_PREVIEW_CHARS).chain(['…']).collect());
        }
    }
    Ok(page)
}

/// Truncates a text to `most` characters.
fn truncate(text: &mut String, most: usize) {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
    }
}
