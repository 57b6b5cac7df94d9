//! The operations on failures and dead letters.

use milvaion_api::{
    failures::{DeadLetterFilter, FailureFilter, FailureGroup, FailureRow, FailureSelection},
    permissions::Permission::{Read, SettleFailures},
    rest::{
        BulkResult, DeadLetter, DeadLetterQuery, FailureQuery, Page, ResolveDeadLetters, ResolveFailures,
        RetryFailures, RetryResult,
    },
};
use milvaion_app::{backend::RetryInput, error::AppError};

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    occurrences::OccurrencePath,
    operation::{Operation, TagScope},
    problem::ApiError,
};

/// The group of these operations in the document.
const GROUP: &str = "Failures";

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let read = Operation {
        method: "GET",
        path: "/failures",
        id: "listFailures",
        group: GROUP,
        summary: "List failures, newest first, with the first line of each error",
        permission: Read,
        scope: TagScope::Refused,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let change = Operation { method: "POST", permission: SettleFailures, ..read };
    vec![
        Endpoint::json(read, list),
        Endpoint::json(
            Operation {
                path: "/failures/groups",
                id: "listFailureGroups",
                summary: "List failures by cause, the most frequent first",
                ..read
            },
            groups,
        ),
        Endpoint::json(
            Operation {
                path: "/failures/{id}",
                id: "getFailure",
                summary: "Read the failure of an occurrence",
                scope: TagScope::Occurrence,
                ..read
            },
            get,
        ),
        Endpoint::json(
            Operation {
                path: "/failures/retry",
                id: "retryFailures",
                summary: "Retry failures, each as a new occurrence",
                ..change
            },
            retry,
        ),
        Endpoint::json(
            Operation {
                path: "/failures/resolve",
                id: "resolveFailures",
                summary: "Resolve failures with a note",
                ..change
            },
            resolve,
        ),
        Endpoint::json(
            Operation {
                path: "/dead-letters",
                id: "listDeadLetters",
                summary: "List messages that no consumer could read, newest first",
                ..read
            },
            dead_letters,
        ),
        Endpoint::json(
            Operation {
                path: "/dead-letters/resolve",
                id: "resolveDeadLetters",
                summary: "Resolve dead letters with a note",
                ..change
            },
            resolve_dead_letters,
        ),
    ]
}

fn filter(query: FailureQuery) -> FailureFilter {
    FailureFilter {
        resolved: query.resolved,
        job_id: query.job_id,
        fingerprint: query.fingerprint,
        cause: query.cause,
        text: query.text,
        since: query.since,
        after: query.after,
        limit: query.limit.unwrap_or_default(),
    }
}

async fn list(state: ApiState, call: Call<Nothing, FailureQuery, Nothing>) -> ApiResult<Page<FailureRow>> {
    Ok(Reply::of(Page::of(state.backend.failures(&call.me, filter(call.query)).await?)))
}

async fn groups(state: ApiState, call: Call<Nothing, FailureQuery, Nothing>) -> ApiResult<Page<FailureGroup>> {
    Ok(Reply::of(Page::of(state.backend.failure_groups(&call.me, filter(call.query)).await?)))
}

async fn get(state: ApiState, call: Call<OccurrencePath, Nothing, Nothing>) -> ApiResult<FailureRow> {
    Ok(Reply::of(state.backend.failure(&call.me, call.path.id).await?))
}

async fn retry(state: ApiState, call: Call<Nothing, Nothing, RetryFailures>) -> ApiResult<RetryResult> {
    let RetryFailures { selection, expected, reason } = call.body;
    let options = RetryInput { reason, ..RetryInput::default() };
    let expected = expected_matches(&selection, expected)?;
    match state.backend.retry_failures(&call.me, &selection, expected, options).await {
        Err(error) if matches_nothing(&selection, &error) => Ok(Reply::of(RetryResult::default())),
        retried => Ok(Reply::of(retried?.into())),
    }
}

async fn resolve(state: ApiState, call: Call<Nothing, Nothing, ResolveFailures>) -> ApiResult<BulkResult> {
    let ResolveFailures { selection, expected, note } = call.body;
    let expected = expected_matches(&selection, expected)?;
    let resolved = match state.backend.resolve_failures(&call.me, &selection, expected, &note).await {
        Err(error) if matches_nothing(&selection, &error) => return Ok(Reply::of(BulkResult::default())),
        resolved => resolved?,
    };
    Ok(Reply::of(BulkResult {
        done: resolved.count,
        skipped: resolved.left,
        skip_reason: (resolved.left > 0).then(|| "resolved before, or not a failure".into()),
        more: resolved.more,
    }))
}

async fn dead_letters(state: ApiState, call: Call<Nothing, DeadLetterQuery, Nothing>) -> ApiResult<Page<DeadLetter>> {
    let DeadLetterQuery { resolved, before, limit } = call.query;
    let filter = DeadLetterFilter { resolved, before, limit: limit.unwrap_or_default() };
    Ok(Reply::of(Page::of(state.backend.dead_letters(&call.me, filter).await?)))
}

async fn resolve_dead_letters(
    state: ApiState,
    call: Call<Nothing, Nothing, ResolveDeadLetters>,
) -> ApiResult<BulkResult> {
    let ResolveDeadLetters { ids, note } = call.body;
    let done = state.backend.resolve_dead_letters(&call.me, &ids, &note).await?;
    let skipped = ids.len().saturating_sub(done);
    let skip_reason = (skipped > 0).then(|| "resolved before, or not a dead letter".into());
    Ok(Reply::of(BulkResult { done, skipped, skip_reason, more: false }))
}

/// Returns the number of failures that a filter should match.
fn expected_matches(selection: &FailureSelection, expected: Option<u32>) -> Result<usize, ApiError> {
    match (selection, expected) {
        (FailureSelection::Filter(_), None) => Err(ApiError::field(
            "expected",
            "is needed with a filter: the number of failures that it should match, as the list of failures shows it",
        )),
        (_, expected) => Ok(expected.unwrap_or_default() as usize),
    }
}

/// Returns true if the only fault of a request is that its filter matches no open failure. A program that repeats a
/// request until nothing is left is done then.
fn matches_nothing(selection: &FailureSelection, error: &AppError) -> bool {
    matches!(selection, FailureSelection::Filter(_)) && error.field_message("ids").is_some()
}
