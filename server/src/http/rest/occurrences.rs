//! The operations on occurrences and their logs.

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

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Operation, Reply, TagScope},
    guard::require_job_tag,
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
    let occurrences: Vec<NewOccurrence> =
        call.body.occurrences.into_iter().map(|occurrence| occurrence.into_new(state.clock.occurrence_id())).collect();
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
        }
    }
    let start = SpanStart::now();
    let report = state.jobs.enqueue(&occurrences, Some(&call.me.email)).await.map_err(AppError::from)?;
    state.jobs.send_created(report.created, start);
    Ok(Reply::of(EnqueueResults { results: report.results }))
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
