//! The operations on definitions from files: plan, apply and export.
//!
//! A plan changes nothing and needs the right to read only, so that a pipeline can show the effect of a proposed change
//! with a token that can do no harm.

use milvaion_api::{
    permissions::Permission::{self, DefineCalendar, DefineJob, DeleteJob, Read},
    rest::{ApplyFiles, DocumentKind, ExportQuery, FileDocument, FilesPlan, Page, files::MAX_FILES_BYTES},
};
use milvaion_app::error::AppError;
use serde_json::Value;

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    input::input_schema,
    operation::{Operation, TagScope},
    problem::ApiError,
};
use crate::{
    command::files::{FilesCaller, FilesError},
    http::guard::denial,
};

/// The group of these operations in the document.
const GROUP: &str = "Files";

/// Returns the JSON Schema of a document of a file: the one against which requests are checked.
pub(super) fn schema() -> Value {
    let mut schema = input_schema::<FileDocument>().schema().clone();
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "A document of a file of Milvaion".into();
    schema
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let export_all = Operation {
        method: "GET",
        path: "/files/export",
        id: "exportFiles",
        group: GROUP,
        summary: "Export jobs by name as documents of files, after their calendars",
        permission: Read,
        scope: TagScope::Handler,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let plan_all = Operation {
        method: "POST",
        path: "/files/plan",
        id: "planFiles",
        summary: "Show what applying files changes",
        ..export_all
    };
    let apply_all = Operation {
        path: "/files/apply",
        id: "applyFiles",
        summary: "Make jobs and calendars be as files say",
        permission: DefineJob,
        ..plan_all
    };
    vec![
        Endpoint::json(export_all, export),
        Endpoint::json(plan_all, plan).with_body_limit(MAX_FILES_BYTES),
        Endpoint::json(apply_all, apply).with_body_limit(MAX_FILES_BYTES),
    ]
}

async fn export(state: ApiState, call: Call<Nothing, ExportQuery, Nothing>) -> ApiResult<Page<FileDocument>> {
    let mut query = call.query;
    query.tag = super::jobs::own_tag(call.tag, query.tag)?;
    super::jobs::check_cursor(query.after.as_deref())?;
    Ok(Reply::of(Page::of(state.jobs.export_files(query).await?)))
}

async fn plan(state: ApiState, call: Call<Nothing, Nothing, ApplyFiles>) -> ApiResult<FilesPlan> {
    let caller = FilesCaller { me: &call.me, tag: call.tag.as_deref() };
    Ok(Reply::of(state.jobs.plan_files(caller, &call.body).await.map_err(problem)?))
}

async fn apply(state: ApiState, call: Call<Nothing, Nothing, ApplyFiles>) -> ApiResult<FilesPlan> {
    let require = |action: Permission| match call.me.role.allows(action) {
        true => Ok(()),
        false => Err(ApiError::from(AppError::Denied(denial(call.me.role, action)))),
    };
    let documents = call.body.files.iter().flat_map(|file| &file.documents);
    if documents.into_iter().any(|document| document.kind() == DocumentKind::Calendar) {
        require(DefineCalendar)?;
    }
    if call.body.prune.is_some() {
        require(DeleteJob)?;
    }
    let caller = FilesCaller { me: &call.me, tag: call.tag.as_deref() };
    Ok(Reply::of(state.jobs.apply_files(caller, &call.body).await.map_err(problem)?))
}

fn problem(error: FilesError) -> ApiError {
    match error {
        FilesError::Documents(errors) => ApiError::fields(errors),
        FilesError::Other(error) => error.into(),
    }
}
