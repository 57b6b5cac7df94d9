//! The operations on jobs.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use milvaion_api::{
    audit::{AuditObject, AuditRow},
    page::JobFilter,
    permissions::Permission::{CancelOccurrence, DefineJob, DeleteJob, Read, ReadObjectAudit, RunJob as MayRun},
    requests::JobInput,
    rest::{
        CancelDelayed, CancelDelayedResult, CompareQuery, DuplicateJob, Job, JobAuditQuery, JobQuery, JobSummary,
        NewJob, OccurrenceDetail, Page, PauseRequest, PutJob, RunJob, SkipDue, VersionQuery,
    },
    versions::{RestoreVersionResult, VersionDiff, VersionStep},
};
use milvaion_app::{backend::TriggerInput, error::AppError};
use milvaion_protocol::id::JobId;
use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    guard::require_tag,
    operation::{Operation, TagScope},
    problem::ApiError,
};
use crate::command::definitions::SavedDefinition;

/// The group of these operations in the document.
const GROUP: &str = "Jobs";

/// The path of a job.
#[derive(Debug, Deserialize, JsonSchema)]
struct JobPath {
    /// The id of the job.
    id: JobId,
}

/// The path of a job by its key.
#[derive(Debug, Deserialize, JsonSchema)]
struct KeyPath {
    /// The key of the job.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,99}$"))]
    key: String,
}

/// The path of a version of a job.
#[derive(Debug, Deserialize, JsonSchema)]
struct VersionPath {
    /// The id of the job.
    id: JobId,
    /// The version.
    #[schemars(range(min = 1))]
    version: i32,
}

/// The parameters of a replaced definition.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct PutQuery {
    /// True if occurrences that wait for a slot keep the concurrency limits that they wait for; otherwise they get those of the
    /// new definition.
    keep_waiting_limits: bool,
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let read = Operation {
        method: "GET",
        path: "/jobs",
        id: "listJobs",
        group: GROUP,
        summary: "List jobs by name",
        permission: Read,
        scope: TagScope::Handler,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let of_job = Operation { scope: TagScope::Job, ..read };
    let change = Operation { method: "POST", permission: DefineJob, ..of_job };
    let by_key = Operation { path: "/jobs/by-key/{key}", scope: TagScope::JobKey, ..read };
    vec![
        Endpoint::json(read, list),
        Endpoint::json(
            Operation {
                path: "/jobs",
                id: "createJob",
                summary: "Create a job",
                success: 201,
                scope: TagScope::Handler,
                ..change
            },
            create,
        ),
        Endpoint::json(Operation { id: "getJobByKey", summary: "Read a job by its key", ..by_key }, get_by_key),
        Endpoint::json(
            Operation {
                method: "PUT",
                id: "putJobByKey",
                is_versioned: true,
                summary: "Create a job with this key, or replace its definition",
                permission: DefineJob,
                ..by_key
            },
            put_by_key,
        ),
        Endpoint::json(
            Operation {
                method: "DELETE",
                id: "deleteJobByKey",
                is_versioned: true,
                summary: "Delete a job by its key",
                permission: DeleteJob,
                success: 204,
                ..by_key
            },
            delete_by_key,
        ),
        Endpoint::json(Operation { path: "/jobs/{id}", id: "getJob", summary: "Read a job", ..of_job }, get),
        Endpoint::json(
            Operation {
                method: "PUT",
                path: "/jobs/{id}",
                id: "replaceJob",
                is_versioned: true,
                summary: "Replace the definition of a job",
                ..change
            },
            replace,
        ),
        Endpoint::json(
            Operation {
                method: "DELETE",
                path: "/jobs/{id}",
                id: "deleteJob",
                is_versioned: true,
                summary: "Delete a job",
                permission: DeleteJob,
                success: 204,
                ..of_job
            },
            delete,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/run",
                id: "runJob",
                summary: "Run a job now",
                permission: MayRun,
                success: 202,
                ..change
            },
            run,
        ),
        Endpoint::json(Operation { path: "/jobs/{id}/pause", id: "pauseJob", summary: "Pause a job", ..change }, pause),
        Endpoint::json(
            Operation { path: "/jobs/{id}/resume", id: "resumeJob", summary: "Resume a job", ..change },
            resume,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/skip-due",
                id: "skipDueTime",
                summary: "Skip the next due time of a job",
                ..change
            },
            skip_due,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/attach",
                id: "attachJob",
                summary: "Make an edited job be as the code of its worker declares again",
                ..change
            },
            attach,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/cancel-delayed",
                id: "cancelDelayedOccurrences",
                summary: "Cancel delayed occurrences of a job, at most 10,000, oldest first",
                permission: CancelOccurrence,
                ..change
            },
            cancel_delayed,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/duplicate",
                id: "duplicateJob",
                summary: "Create a paused copy of a job",
                success: 201,
                ..change
            },
            duplicate,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/versions",
                id: "listJobVersions",
                summary: "List the versions of a job, newest first",
                ..of_job
            },
            versions,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/versions/compare",
                id: "compareJobVersions",
                summary: "Compare two versions of a job",
                ..of_job
            },
            compare,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/versions/{version}/restore",
                id: "restoreJobVersion",
                summary: "Give a job the definition of an earlier version",
                ..change
            },
            restore,
        ),
        Endpoint::json(
            Operation {
                path: "/jobs/{id}/audit",
                id: "listJobAudit",
                summary: "List the changes of a job, newest first",
                permission: ReadObjectAudit,
                ..of_job
            },
            audit,
        ),
    ]
}

async fn list(state: ApiState, call: Call<Nothing, JobQuery, Nothing>) -> ApiResult<Page<JobSummary>> {
    let query = call.query;
    check_cursor(query.after.as_deref())?;
    let filter = JobFilter {
        text: query.text,
        tag: own_tag(call.tag, query.tag)?,
        active: query.active,
        after: query.after,
        limit: query.limit.unwrap_or_default(),
    };
    Ok(Reply::of(Page::of(state.backend.jobs(&call.me, filter).await?)))
}

async fn show<P, Q, B>(state: &ApiState, call: &Call<P, Q, B>, id: JobId) -> ApiResult<Job> {
    let job = Job::from(state.backend.job(&call.me, id, None).await?);
    let version = job.version;
    Ok(Reply::of(job).version(version))
}

async fn id_of_key(state: &ApiState, key: &str) -> Result<JobId, ApiError> {
    let found = state.store.job_id_of_key(key).await.map_err(AppError::from)?;
    found.ok_or_else(|| AppError::NotFound(format!("There is no job with the key {key}.")).into())
}

async fn get(state: ApiState, call: Call<JobPath, Nothing, Nothing>) -> ApiResult<Job> {
    show(&state, &call, call.path.id).await
}

async fn get_by_key(state: ApiState, call: Call<KeyPath, Nothing, Nothing>) -> ApiResult<Job> {
    let id = id_of_key(&state, &call.path.key).await?;
    show(&state, &call, id).await
}

async fn create(state: ApiState, call: Call<Nothing, Nothing, NewJob>) -> ApiResult<Job> {
    require_own_tag(call.tag.as_deref(), &call.body.definition)?;
    let id = state.jobs.create_definition(&call.me, call.body.key.as_deref(), &call.body.definition).await?;
    Ok(show(&state, &call, id).await?.location(format!("/jobs/{id}")))
}

async fn replace(state: ApiState, call: Call<JobPath, PutQuery, PutJob>) -> ApiResult<Job> {
    require_own_tag(call.tag.as_deref(), &call.body.definition)?;
    let expected = call.expected_version()?;
    let keeps_limits = call.query.keep_waiting_limits;
    let saved = state.jobs.replace_definition(&call.me, call.path.id, expected, &call.body, keeps_limits).await;
    saved.map_err(|error| ApiError::from(error).of_expected(expected.is_some()))?;
    show(&state, &call, call.path.id).await
}

async fn put_by_key(state: ApiState, call: Call<KeyPath, PutQuery, PutJob>) -> ApiResult<Job> {
    require_own_tag(call.tag.as_deref(), &call.body.definition)?;
    let expected = call.expected_version()?;
    let keeps_limits = call.query.keep_waiting_limits;
    let saved = state.jobs.put_definition(&call.me, &call.path.key, expected, &call.body, keeps_limits).await;
    let saved = saved.map_err(|error| ApiError::from(error).of_expected(expected.is_some()))?;
    let reply = show(&state, &call, saved.id()).await?;
    Ok(match saved {
        SavedDefinition::Created(id) => reply.status(StatusCode::CREATED).location(format!("/jobs/{id}")),
        SavedDefinition::Changed(_) | SavedDefinition::Unchanged(_) => reply,
    })
}

async fn delete(state: ApiState, call: Call<JobPath, Nothing, Nothing>) -> ApiResult<()> {
    delete_job(&state, &call, call.path.id).await
}

async fn delete_by_key(state: ApiState, call: Call<KeyPath, Nothing, Nothing>) -> ApiResult<()> {
    let id = id_of_key(&state, &call.path.key).await?;
    delete_job(&state, &call, id).await
}

async fn delete_job<P>(state: &ApiState, call: &Call<P, Nothing, Nothing>, id: JobId) -> ApiResult<()> {
    let expected = call.expected_version()?;
    let deleted = state.jobs.delete(&call.me, id, expected).await;
    deleted.map_err(|error| ApiError::from(error).of_expected(expected.is_some()))?;
    Ok(Reply::of(()))
}

async fn run(state: ApiState, call: Call<JobPath, Nothing, RunJob>) -> ApiResult<OccurrenceDetail> {
    let RunJob { input, reason, force } = &call.body;
    let input = TriggerInput {
        input_json: input.as_ref().map(ToString::to_string).unwrap_or_default(),
        reason: reason.clone(),
        force: *force,
        // Keys of different callers must not meet, and the command takes a short one.
        idempotency_key: call.idempotency_key.as_ref().map(|key| own_key(&call.caller, key)),
        is_script: call.is_script(),
    };
    let id = state.backend.trigger_job(&call.me, call.path.id, input).await.map_err(ApiError::of_input)?;
    let occurrence = state.backend.occurrence(&call.me, id, None).await?;
    Ok(Reply::of(occurrence.into()).location(format!("/occurrences/{id}")))
}

async fn pause(state: ApiState, call: Call<JobPath, Nothing, PauseRequest>) -> ApiResult<Job> {
    state.backend.set_job_active(&call.me, call.path.id, false, &call.body.reason).await?;
    show(&state, &call, call.path.id).await
}

async fn resume(state: ApiState, call: Call<JobPath, Nothing, Nothing>) -> ApiResult<Job> {
    state.backend.set_job_active(&call.me, call.path.id, true, "").await?;
    show(&state, &call, call.path.id).await
}

async fn skip_due(state: ApiState, call: Call<JobPath, Nothing, SkipDue>) -> ApiResult<Job> {
    state.backend.skip_due(&call.me, call.path.id, call.body.due_at).await?;
    show(&state, &call, call.path.id).await
}

async fn attach(state: ApiState, call: Call<JobPath, Nothing, Nothing>) -> ApiResult<Job> {
    state.backend.attach_job(&call.me, call.path.id).await?;
    show(&state, &call, call.path.id).await
}

async fn cancel_delayed(
    state: ApiState,
    call: Call<JobPath, Nothing, CancelDelayed>,
) -> ApiResult<CancelDelayedResult> {
    Ok(Reply::of(state.backend.cancel_delayed(&call.me, call.path.id, &call.body.reason).await?))
}

async fn duplicate(state: ApiState, call: Call<JobPath, Nothing, DuplicateJob>) -> ApiResult<Job> {
    let DuplicateJob { display_name, key } = &call.body;
    let id = state.jobs.duplicate(&call.me, call.path.id, display_name.as_deref(), key.as_deref()).await?;
    Ok(show(&state, &call, id).await?.location(format!("/jobs/{id}")))
}

async fn versions(state: ApiState, call: Call<JobPath, VersionQuery, Nothing>) -> ApiResult<Page<VersionStep>> {
    let page = state.backend.job_history(&call.me, call.path.id, call.query.before).await?;
    Ok(Reply::of(Page::of(page)))
}

async fn compare(state: ApiState, call: Call<JobPath, CompareQuery, Nothing>) -> ApiResult<VersionDiff> {
    let CompareQuery { from, to } = call.query;
    Ok(Reply::of(state.backend.compare_versions(&call.me, call.path.id, from, to).await?))
}

async fn restore(state: ApiState, call: Call<VersionPath, Nothing, Nothing>) -> ApiResult<RestoreVersionResult> {
    let VersionPath { id, version } = call.path;
    let job = state.backend.job(&call.me, id, None).await?;
    if let Some(tag) = &call.tag {
        let earlier = state.jobs.version(id, version).await?.definition;
        let tags = earlier["tags"].as_array().into_iter().flatten().filter_map(|tag| tag.as_str().map(str::to_owned));
        require_tag(tag, &tags.collect::<Vec<_>>())?;
    }
    let restored = state.backend.restore_version(&call.me, id, version, job.version).await?;
    let version = restored.version;
    Ok(Reply::of(restored).version(version))
}

async fn audit(state: ApiState, call: Call<JobPath, JobAuditQuery, Nothing>) -> ApiResult<Page<AuditRow>> {
    let before = super::people::audit_cursor(call.query.before.as_deref())?;
    let page = state.backend.object_audit(&call.me, AuditObject::Job(call.path.id), before).await?;
    Ok(Reply::of(Page::of(page)))
}

/// Checks that a definition keeps the tag that limits the token.
fn require_own_tag(tag: Option<&str>, job: &JobInput) -> Result<(), ApiError> {
    tag.map_or(Ok(()), |tag| require_tag(tag, &job.tags))
}

/// Returns the tag that limits a list: that of the token, or else the one in the query.
pub(super) fn own_tag(limit: Option<String>, asked: Option<String>) -> Result<Option<String>, ApiError> {
    match (limit, asked) {
        (Some(limit), Some(asked)) if limit != asked => {
            Err(ApiError::field("tag", format!("this token is limited to the tag {limit}")))
        }
        (limit, asked) => Ok(limit.or(asked)),
    }
}

/// Checks the cursor of a list of jobs.
pub(super) fn check_cursor(after: Option<&str>) -> Result<(), ApiError> {
    if after.is_some_and(|after| !is_job_cursor(after)) {
        return Err(ApiError::field("after", "the cursor is invalid: use the next of the previous page, or none"));
    }
    Ok(())
}

/// Returns true if a text is a cursor of the list of jobs: an id and the name that follows it.
fn is_job_cursor(text: &str) -> bool {
    text.split_once('~').is_some_and(|(id, _)| id.parse::<JobId>().is_ok())
}

/// Returns a key that no other caller has: of fixed length, because the caller's key may be as long as any.
fn own_key(caller: &str, key: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(caller.len().to_le_bytes());
    hasher.update(caller);
    hasher.update(key);
    format!("api:{}", URL_SAFE_NO_PAD.encode(hasher.finalize()))
}
