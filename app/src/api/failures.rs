//! Failures and dead letters: finding them, running them again, settling them.

use leptos::prelude::*;
use milvaion_api::{
    failures::{
        DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow, ResolveFailuresResult,
        RetryFailuresResult,
    },
    page::ListPage,
};
use milvaion_protocol::id::{DeadLetterId, OccurrenceId};
use server_fn::codec::GetUrl;

use crate::{error::AppError, format::plural};

/// A page of failures by cause, most numerous first.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "failure_groups")]
pub async fn failure_groups(#[server(default)] filter: FailureFilter) -> Result<ListPage<FailureGroup>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.failure_groups(&me, filter).await.map_err(super::with_error_status)
}

/// A page of failures, newest first: of each only the first line of its exception, and not its input.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "failures")]
pub async fn list_failures(#[server(default)] filter: FailureFilter) -> Result<ListPage<FailureRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.failures(&me, filter).await.map_err(super::with_error_status)
}

/// One failure, whole.
///
/// # Errors
///
/// `NotFound` when retention has taken it or the occurrence never failed.
#[server(input = GetUrl, endpoint = "failure")]
pub async fn get_failure(id: OccurrenceId) -> Result<FailureRow, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.failure(&me, id).await.map_err(super::with_error_status)
}

/// Runs a failure again, as a new occurrence, and answers which. With `input_json`, this once with that input; `force`
/// runs one again that was retried before.
///
/// # Errors
///
/// A wrong `input_json` or `note`; `Conflict` when it was retried already, its job is deleted or everything is paused;
/// `NotFound`; `Denied` below Operator.
#[server(endpoint = "retry_failure")]
pub async fn retry_failure(
    id: OccurrenceId,
    #[server(default)] input_json: String,
    #[server(default)] note: String,
    #[server(default)] force: bool,
) -> Result<OccurrenceId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    let typed = serde_json::json!({ "form": "retry", "input_json": &input_json, "note": &note });
    let which = milvaion_api::failures::FailureSelection::Ids(vec![id]);
    let how = crate::backend::RetryInput { input_json, reason: note, force };
    let result = match backend.retry_failures(&me, &which, 1, how).await {
        Ok(retried) => retried.made.first().map(|(_, made)| *made).ok_or_else(|| {
            AppError::Conflict("Somebody else has just retried this failure, or deleted its job.".into())
        }),
        Err(error) => Err(as_note(error)),
    };
    let back = format!("/failed/{id}");
    super::respond("failure", result, |made| format!("/occurrences/{made}"), FAILURE_RETRIED_NOTICE, &back, typed).await
}

/// Runs failures again, each as a new occurrence with the input that failed: those with `ids`, or with `all` the open ones
/// that `filter` finds, of which the reader has seen `seen`. `back` is the page a plain form is led to.
///
/// # Errors
///
/// `Fields` for `ids` and `note`; `Conflict` when everything is paused or there are many more by now; `Denied` below
/// Operator.
#[server(endpoint = "retry_failures")]
pub async fn retry_failures(
    #[server(default)] ids: Vec<OccurrenceId>,
    #[server(default)] all: bool,
    #[server(default)] filter: FailureFilter,
    #[server(default)] seen: usize,
    #[server(default)] note: String,
    #[server(default)] back: String,
) -> Result<RetryFailuresResult, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    let how = crate::backend::RetryInput { reason: note.clone(), ..Default::default() };
    let result = backend.retry_failures(&me, &which(ids, all, filter), seen, how).await.map_err(as_note);
    let notice = result.as_ref().map(retry_notice).unwrap_or_default();
    let back = list_address(&back);
    super::respond("failures", result, |_| back.clone(), &notice, &back, serde_json::json!({ "note": note })).await
}

/// Settles failures with a note: those chosen as in [`retry_failures`].
///
/// # Errors
///
/// `Fields` for `ids` and `note`; `Conflict` when there are many more by now; `Denied` below Operator.
#[server(endpoint = "resolve_failures")]
pub async fn resolve_failures(
    #[server(default)] ids: Vec<OccurrenceId>,
    #[server(default)] all: bool,
    #[server(default)] filter: FailureFilter,
    #[server(default)] seen: usize,
    #[server(default)] note: String,
    #[server(default)] back: String,
) -> Result<ResolveFailuresResult, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    let result = backend.resolve_failures(&me, &which(ids, all, filter), seen, &note).await;
    let notice = result.as_ref().map(resolve_notice).unwrap_or_default();
    let back = list_address(&back);
    let typed = serde_json::json!({ "form": "resolve", "note": note });
    super::respond("failures", result, |_| back.clone(), &notice, &back, typed).await
}

/// A page of dead letters, newest first: of each body only the beginning.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "dead_letters")]
pub async fn list_dead_letters(
    #[server(default)] filter: DeadLetterFilter,
) -> Result<ListPage<DeadLetterRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.dead_letters(&me, filter).await.map_err(super::with_error_status)
}

/// Settles dead letters with a note. Answers how many were open.
///
/// # Errors
///
/// `Fields` for `ids` and `note`; `Denied` below Operator.
#[server(endpoint = "resolve_dead_letters")]
pub async fn resolve_dead_letters(
    #[server(default)] ids: Vec<DeadLetterId>,
    #[server(default)] note: String,
    #[server(default)] back: String,
) -> Result<usize, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::SettleFailures).await?;
    let result = backend.resolve_dead_letters(&me, &ids, &note).await;
    let notice = result.as_ref().map(|count| dead_letters_notice(*count)).unwrap_or_default();
    let back = list_address(&back);
    super::respond("failures", result, |_| back.clone(), &notice, &back, serde_json::json!({ "note": note })).await
}

/// What is said after one failure was retried.
pub const FAILURE_RETRIED_NOTICE: &str = "The failure is retried as this occurrence.";

/// What is said after a retry.
#[must_use]
pub fn retry_notice(retried: &RetryFailuresResult) -> String {
    let mut words = format!("{} retried.", was(retried.made.len(), "failure"));
    match retried.left {
        0 => {}
        1 => words.push_str(" One was left alone: it was retried before, or its job is deleted."),
        n => words.push_str(&format!(" {n} were left alone: they were retried before, or their job is deleted.")),
    }
    if retried.more {
        words.push_str(MORE_REMAIN_NOTICE);
    }
    words
}

/// What is said after settling.
#[must_use]
pub fn resolve_notice(resolved: &ResolveFailuresResult) -> String {
    let more = if resolved.more { MORE_REMAIN_NOTICE } else { "" };
    format!("{} resolved.{more}", was(resolved.count, "failure"))
}

/// What is said after settling dead letters.
#[must_use]
pub fn dead_letters_notice(count: usize) -> String {
    format!("{} resolved.", was(count, "dead letter"))
}

const MORE_REMAIN_NOTICE: &str = " There are more than can be taken at once: do it again.";

/// `1 failure is`, `2 failures are`.
fn was(count: usize, noun: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", plural(i64::try_from(count).unwrap_or(i64::MAX), noun))
}

/// Which failures a form means.
#[cfg(feature = "ssr")]
fn which(ids: Vec<OccurrenceId>, all: bool, filter: FailureFilter) -> milvaion_api::failures::FailureSelection {
    use milvaion_api::failures::FailureSelection;

    if all { FailureSelection::Filter(filter) } else { FailureSelection::Ids(ids) }
}

/// The forms here have one field for words, whatever the command calls it.
#[cfg(feature = "ssr")]
fn as_note(error: AppError) -> AppError {
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

/// The list a plain form came from.
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
    fn what_was_done_is_said_with_its_numbers() {
        let id = OccurrenceId::default();
        let retried = RetryFailuresResult { made: vec![(id, id); 2], left: 1, more: true };
        assert_eq!(
            retry_notice(&retried),
            "2 failures are retried. One was left alone: it was retried before, or its job is deleted. There are more than can \
             be taken at once: do it again."
        );
        assert_eq!(resolve_notice(&ResolveFailuresResult { count: 1, more: false }), "1 failure is resolved.");
        assert_eq!(dead_letters_notice(0), "0 dead letters are resolved.");
    }
}
