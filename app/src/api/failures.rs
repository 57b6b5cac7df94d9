//! Server functions that list, retry and resolve failures and dead letters.

use leptos::prelude::*;
use milvaion_api::{
    failures::{
        DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow, FailureScopePreview,
        ResolveFailuresResult, RetryFailuresResult,
    },
    page::ListPage,
};
use milvaion_protocol::id::{DeadLetterId, OccurrenceId};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::{error::AppError, format::plural};

/// Lists failures grouped by cause, most numerous first.
#[server(input = GetUrl, output = JsonText, endpoint = "failure_groups")]
pub async fn failure_groups(#[server(default)] filter: FailureFilter) -> Result<ListPage<FailureGroup>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.failure_groups(&me, filter).await.map_err(super::with_error_status)
}

/// Lists failures, newest first, each with only the first line of its exception and without its input.
#[server(input = GetUrl, output = JsonText, endpoint = "failures")]
pub async fn list_failures(#[server(default)] filter: FailureFilter) -> Result<ListPage<FailureRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.failures(&me, filter).await.map_err(super::with_error_status)
}

/// Returns the number and the newest of the open failures that match `filter`, for the dialog that asks before all of
/// them are changed.
///
/// # Errors
///
/// `Fields` for an invalid filter; `Denied` below Operator; `Unavailable` if a service is down.
#[server(input = GetUrl, output = JsonText, endpoint = "failure_preview")]
pub async fn preview_failures(filter: FailureFilter) -> Result<FailureScopePreview, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    backend.failure_preview(&me, filter).await.map_err(super::with_error_status)
}

/// Returns one complete failure.
///
/// # Errors
///
/// `NotFound` if retention has deleted it or the occurrence never failed.
#[server(input = GetUrl, output = JsonText, endpoint = "failure")]
pub async fn get_failure(id: OccurrenceId) -> Result<FailureRow, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.failure(&me, id).await.map_err(super::with_error_status)
}

/// Retries a failure as a new occurrence and returns the id of that occurrence.
///
/// `input_json` replaces the input for this occurrence only. `force` permits a second retry of the same failure.
///
/// # Errors
///
/// `Fields` for `input_json` and `note`; `Conflict` if it was already retried, its job is deleted or the cluster is
/// paused; `NotFound`; `Denied` below Operator.
#[server(output = JsonText, endpoint = "retry_failure")]
pub async fn retry_failure(
    id: OccurrenceId,
    #[server(default)] input_json: String,
    #[server(default)] note: String,
    #[server(default)] force: bool,
) -> Result<OccurrenceId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    let typed = serde_json::json!({ "form": "retry", "input_json": &input_json, "note": &note });
    let selection = milvaion_api::failures::FailureSelection::Ids(vec![id]);
    let options = crate::backend::RetryInput { input_json, reason: note, force };
    let result = match backend.retry_failures(&me, &selection, 1, options).await {
        Ok(retried) => retried
            .made
            .first()
            .map(|(_, made)| *made)
            .ok_or_else(|| AppError::Conflict("This failure was already retried, or its job was deleted.".into())),
        Err(error) => Err(rename_reason_to_note(error)),
    };
    let back = format!("/failed/{id}");
    super::respond("failure", result, |made| format!("/occurrences/{made}"), FAILURE_RETRIED_NOTICE, &back, typed).await
}

/// Retries failures, each as a new occurrence with the input that failed.
///
/// Selects the failures in `ids` or, with `all`, the open ones that match `filter`, of which the user has seen `seen`. A
/// request with neither ids nor `all` is refused, and so is `all` with a filter without a condition: an empty choice
/// never means all.
/// `back` is the page that a plain form post is redirected to.
///
/// # Errors
///
/// `Fields` for `ids`, `filter` and `note`; `Conflict` if the cluster is paused or if many more failures match by now;
/// `Denied` below Operator.
#[server(output = JsonText, endpoint = "retry_failures")]
pub async fn retry_failures(
    #[server(default)] ids: Vec<OccurrenceId>,
    #[server(default)] all: bool,
    #[server(default)] filter: FailureFilter,
    #[server(default)] seen: usize,
    #[server(default)] note: String,
    #[server(default)] back: String,
) -> Result<RetryFailuresResult, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    let selection = selection(ids, all, filter);
    let options = crate::backend::RetryInput { reason: note.clone(), ..Default::default() };
    let result = backend.retry_failures(&me, &selection, seen, options).await.map_err(rename_reason_to_note);
    let notice = result.as_ref().map(retry_notice).unwrap_or_default();
    let back = list_address(&back);
    super::respond("failures", result, |_| back.clone(), &notice, &back, serde_json::json!({ "note": note })).await
}

/// Resolves failures with a note, selected as in [`retry_failures`].
///
/// # Errors
///
/// `Fields` for `ids`, `filter` and `note`; `Conflict` if many more failures match by now; `Denied` below Operator.
#[server(output = JsonText, endpoint = "resolve_failures")]
pub async fn resolve_failures(
    #[server(default)] ids: Vec<OccurrenceId>,
    #[server(default)] all: bool,
    #[server(default)] filter: FailureFilter,
    #[server(default)] seen: usize,
    #[server(default)] note: String,
    #[server(default)] back: String,
) -> Result<ResolveFailuresResult, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    let result = backend.resolve_failures(&me, &selection(ids, all, filter), seen, &note).await;
    let notice = result.as_ref().map(resolve_notice).unwrap_or_default();
    let back = list_address(&back);
    let typed = serde_json::json!({ "form": "resolve", "note": note });
    super::respond("failures", result, |_| back.clone(), &notice, &back, typed).await
}

/// Lists dead letters, newest first, each with only the start of its body.
#[server(input = GetUrl, output = JsonText, endpoint = "dead_letters")]
pub async fn list_dead_letters(
    #[server(default)] filter: DeadLetterFilter,
) -> Result<ListPage<DeadLetterRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.dead_letters(&me, filter).await.map_err(super::with_error_status)
}

/// Resolves dead letters with a note. Returns the number of open ones among them.
///
/// # Errors
///
/// `Fields` for `ids` and `note`; `Denied` below Operator.
#[server(output = JsonText, endpoint = "resolve_dead_letters")]
pub async fn resolve_dead_letters(
    #[server(default)] ids: Vec<DeadLetterId>,
    #[server(default)] note: String,
    #[server(default)] back: String,
) -> Result<usize, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    let result = backend.resolve_dead_letters(&me, &ids, &note).await;
    let notice = result.as_ref().map(|count| dead_letters_notice(*count, ids.len())).unwrap_or_default();
    let back = list_address(&back);
    super::respond("failures", result, |_| back.clone(), &notice, &back, serde_json::json!({ "note": note })).await
}

/// Notice after the retry of a single failure, shown on the page of the new occurrence.
pub const FAILURE_RETRIED_NOTICE: &str = "Retry started. This is the new run.";

/// Builds the notice after a retry.
#[must_use]
pub fn retry_notice(retried: &RetryFailuresResult) -> String {
    let skipped = match retried.left {
        1 => "already retried, its job is deleted, or another run has its uniqueness key.",
        _ => "already retried, their job is deleted, or another run has their uniqueness key.",
    };
    bulk_notice(retried.made.len(), "failure", "retried", retried.left, skipped, retried.more)
}

/// Builds the notice after resolving failures.
#[must_use]
pub fn resolve_notice(resolved: &ResolveFailuresResult) -> String {
    bulk_notice(resolved.count, "failure", "resolved", resolved.left, "already resolved.", resolved.more)
}

/// Builds the notice after resolving `count` of `requested` dead letters.
#[must_use]
pub fn dead_letters_notice(count: usize, requested: usize) -> String {
    bulk_notice(count, "dead letter", "resolved", requested.saturating_sub(count), "already resolved.", false)
}

/// Builds the notice after an action on several objects, of which `left` were not changed.
fn bulk_notice(count: usize, noun: &str, done: &str, left: usize, skipped: &str, more: bool) -> String {
    let mut notice = match count {
        0 => format!("No {noun} was {done}."),
        n => format!("{} {done}.", count_with_verb(n, noun)),
    };
    if left > 0 {
        let verb = if left == 1 { "was" } else { "were" };
        notice.push_str(&format!(" {left} {verb} skipped: {skipped}"));
    }
    if more {
        notice.push_str(MORE_REMAIN_NOTICE);
    }
    notice
}

/// Appended when a selection holds more than
/// [`MAX_FAILURE_SELECTION`](milvaion_api::failures::MAX_FAILURE_SELECTION) failures.
const MORE_REMAIN_NOTICE: &str = " Only the first 1,000 were processed. Repeat for the rest.";

/// Formats a count with its verb: `1 failure was`, `2 failures were`.
fn count_with_verb(count: usize, noun: &str) -> String {
    let verb = if count == 1 { "was" } else { "were" };
    format!("{} {verb}", plural(i64::try_from(count).unwrap_or(i64::MAX), noun))
}

/// Returns the failures that a form selects.
#[cfg(feature = "ssr")]
fn selection(ids: Vec<OccurrenceId>, all: bool, filter: FailureFilter) -> milvaion_api::failures::FailureSelection {
    use milvaion_api::failures::FailureSelection;

    if all { FailureSelection::Filter(filter) } else { FailureSelection::Ids(ids) }
}

/// Moves errors of the field `reason` to `note`, because the forms have a single text field of that name.
#[cfg(feature = "ssr")]
fn rename_reason_to_note(error: AppError) -> AppError {
    match error {
        AppError::Fields(mut fields) => {
            for field in fields.iter_mut().filter(|field| field.field == "reason") {
                field.field = "note".into();
            }
            AppError::Fields(fields)
        }
        other => other,
    }
}

/// Returns the address of the list that a plain form post came from.
#[cfg(feature = "ssr")]
fn list_address(back: &str) -> String {
    match super::session::local_path(back) {
        "/" => "/failed".into(),
        path => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_state_their_counts() {
        let id = OccurrenceId::default();
        let retried = RetryFailuresResult { made: vec![(id, id); 2], left: 1, more: true };
        assert_eq!(
            retry_notice(&retried),
            "2 failures were retried. 1 was skipped: already retried, its job is deleted, or another run has its uniqueness \
             key. Only the first 1,000 were processed. Repeat for the rest."
        );
        let resolved = |count, left| resolve_notice(&ResolveFailuresResult { count, left, more: false });
        assert_eq!(resolved(1, 0), "1 failure was resolved.");
        assert_eq!(resolved(0, 1), "No failure was resolved. 1 was skipped: already resolved.");
        assert_eq!(dead_letters_notice(1, 1), "1 dead letter was resolved.");
        assert_eq!(dead_letters_notice(0, 2), "No dead letter was resolved. 2 were skipped: already resolved.");
    }
}
