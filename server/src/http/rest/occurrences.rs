//! The operations on occurrences and their logs.

use chrono::{DateTime, Utc};
use milvaion_api::{
    failures::FailureSelection,
    page::OccurrenceFilter,
    permissions::Permission::{CancelOccurrence as MayCancel, Read, RunJob as MayRun, SettleFailures},
    rest::{
        CancelOccurrence, EnqueueOccurrences, EnqueueResults, LogPage, LogQuery, Occurrence, OccurrenceDetail,
        OccurrenceQuery, Page, RetryOccurrence,
    },
};
use milvaion_app::{backend::RetryInput, error::AppError};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{MAX_MESSAGE_BYTES, NewOccurrence},
};
use milvaion_telemetry::occurrences::SpanStart;
use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    guard::{require_job_tag, require_occurrence_tag},
    operation::{Operation, TagScope},
    problem::ApiError,
};

/// The group of these operations in the document.
const GROUP: &str = "Occurrences";

/// The path of an occurrence.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct OccurrencePath {
    /// The id of the occurrence.
    pub(super) id: OccurrenceId,
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let read = Operation {
        method: "GET",
        path: "/occurrences",
        id: "listOccurrences",
        group: GROUP,
        summary: "List occurrences, newest first",
        permission: Read,
        scope: TagScope::Handler,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let of_one = Operation { path: "/occurrences/{id}", scope: TagScope::Occurrence, ..read };
    vec![
        Endpoint::json(read, list),
        Endpoint::json(
            Operation {
                method: "POST",
                id: "enqueueOccurrences",
                summary: "Create occurrences, at most 500",
                permission: MayRun,
                ..read
            },
            enqueue,
        )
        .with_body_limit(MAX_MESSAGE_BYTES),
        Endpoint::json(Operation { id: "getOccurrence", summary: "Read an occurrence", ..of_one }, get),
        Endpoint::json(
            Operation {
                path: "/occurrences/{id}/log",
                id: "getLog",
                summary: "Read a part of the log of an occurrence",
                ..of_one
            },
            log,
        ),
        Endpoint::json(
            Operation {
                method: "POST",
                path: "/occurrences/{id}/cancel",
                id: "cancelOccurrence",
                summary: "Cancel an occurrence, or request the end of its run",
                permission: MayCancel,
                ..of_one
            },
            cancel,
        ),
        Endpoint::json(
            Operation {
                method: "POST",
                path: "/occurrences/{id}/retry",
                id: "retryOccurrence",
                summary: "Retry a failed occurrence as a new one",
                permission: SettleFailures,
                success: 201,
                ..of_one
            },
            retry,
        ),
    ]
}

async fn list(state: ApiState, call: Call<Nothing, OccurrenceQuery, Nothing>) -> ApiResult<Page<Occurrence>> {
    let query = call.query;
    if let Some(tag) = &call.tag {
        let Some(job) = query.job_id else {
            return Err(ApiError::field(
                "jobId",
                format!("is needed: this token is limited to jobs with the tag {tag}"),
            ));
        };
        require_job_tag(&state, tag, job).await?;
    }
    let filter = OccurrenceFilter {
        job_id: query.job_id,
        status: query.status.map(Into::into),
        delayed: query.delayed,
        parent_id: query.parent_id,
        before: query.before,
        since: query.since,
        window: query.window,
        ended_since: None,
        limit: query.limit.unwrap_or_default(),
    };
    Ok(Reply::of(Page::of(state.backend.occurrences(&call.me, filter).await?)))
}

async fn enqueue(state: ApiState, call: Call<Nothing, Nothing, EnqueueOccurrences>) -> ApiResult<EnqueueResults> {
    // A repetition with the same key makes the same ids, because its first request may have created the occurrences.
    let made_id = |index: usize| match &call.idempotency_key {
        Some(key) => id_of_key(call.received_at, &call.caller, key, index),
        None => state.clock.occurrence_id(),
    };
    let occurrences = call.body.occurrences.into_iter().enumerate();
    let occurrences: Vec<NewOccurrence> =
        occurrences.map(|(index, occurrence)| occurrence.into_new(made_id(index))).collect();
    if let Some(tag) = &call.tag {
        for (index, occurrence) in occurrences.iter().enumerate() {
            let Some(key) = &occurrence.job_key else {
                return Err(ApiError::field(
                    format!("occurrences/{index}/jobKey"),
                    format!("is needed: this token is limited to jobs with the tag {tag}"),
                ));
            };
            // A key without a job is a result and no refusal.
            if let Some(job) = state.store.job_id_of_key(key).await.map_err(AppError::from)? {
                require_job_tag(&state, tag, job).await?;
            }
            if let Some(parent) = occurrence.parent_id {
                require_occurrence_tag(&state, tag, parent).await?;
            }
        }
    }
    let start = SpanStart::now();
    let report = state.jobs.enqueue(&occurrences, Some(&call.me.email)).await.map_err(AppError::from)?;
    state.jobs.send_created(report.created, start);
    Ok(Reply::of(EnqueueResults { results: report.results }))
}

/// Returns the id of an occurrence that names none, in a request with an idempotency key.
fn id_of_key(received_at: DateTime<Utc>, caller: &str, key: &str, index: usize) -> OccurrenceId {
    let mut hasher = Sha256::new();
    for part in [caller, key] {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hasher.update(index.to_le_bytes());
    let mut random = [0; 10];
    random.copy_from_slice(&hasher.finalize()[..10]);
    OccurrenceId::from_parts(received_at, random)
}

async fn show<P, Q, B>(state: &ApiState, call: &Call<P, Q, B>, id: OccurrenceId) -> ApiResult<OccurrenceDetail> {
    Ok(Reply::of(state.backend.occurrence(&call.me, id, Some(i64::MAX - 1)).await?.into()))
}

async fn get(state: ApiState, call: Call<OccurrencePath, Nothing, Nothing>) -> ApiResult<OccurrenceDetail> {
    show(&state, &call, call.path.id).await
}

async fn log(state: ApiState, call: Call<OccurrencePath, LogQuery, Nothing>) -> ApiResult<LogPage> {
    let (id, LogQuery { after, before }) = (call.path.id, call.query);
    let found = state.store.occurrence_status(id).await.map_err(AppError::from)?;
    let Some((status, _)) = found else {
        return Err(AppError::NotFound("This occurrence does not exist or was deleted by retention.".into()).into());
    };
    let lines = match (after, before) {
        (None, before) => state.backend.log_before(&call.me, id, before.unwrap_or(i64::MAX)).await?,
        (Some(after), before) => state.backend.log_range(&call.me, id, after, before.unwrap_or(i64::MAX)).await?,
    };
    Ok(Reply::of(LogPage { lines, status: status.into() }))
}

async fn cancel(state: ApiState, call: Call<OccurrencePath, Nothing, CancelOccurrence>) -> ApiResult<OccurrenceDetail> {
    state.backend.cancel_occurrence(&call.me, call.path.id, &call.body.reason).await?;
    show(&state, &call, call.path.id).await
}

async fn retry(state: ApiState, call: Call<OccurrencePath, Nothing, RetryOccurrence>) -> ApiResult<OccurrenceDetail> {
    let RetryOccurrence { input, reason, force } = &call.body;
    let options = RetryInput {
        input_json: input.as_ref().map(ToString::to_string).unwrap_or_default(),
        reason: reason.clone(),
        force: *force,
    };
    let selection = FailureSelection::Ids(vec![call.path.id]);
    let retried = state.backend.retry_failures(&call.me, &selection, 1, options).await;
    let retried = retried.map_err(ApiError::of_input)?;
    let Some((_, id)) = retried.made.first() else {
        return Err(AppError::Conflict("This occurrence was retried in this moment by another request.".into()).into());
    };
    Ok(show(&state, &call, *id).await?.location(format!("/occurrences/{id}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_of_a_key_are_the_same_each_time_and_differ_otherwise() {
        let at = DateTime::UNIX_EPOCH;
        let one = id_of_key(at, "token:1", "deploy", 0);
        assert_eq!(id_of_key(at, "token:1", "deploy", 0), one);
        assert_eq!((one.created_at(), one.0.get_version_num()), (at, 7));
        let others = [("token:1", "deploy", 1), ("token:1", "deplo", 0), ("token:2", "deploy", 0)];
        let others: BTreeSet<_> =
            others.into_iter().map(|(caller, key, index)| id_of_key(at, caller, key, index)).collect();
        assert_eq!((others.len(), others.contains(&one)), (3, false));
    }
}
