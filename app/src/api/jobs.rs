//! Server functions that list, define, run, pause and delete jobs.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::{
    page::{JobFilter, ListPage},
    requests::{FieldError, JobForm},
    rest::CancelDelayedResult,
    views::{JobFormContext, JobRow, JobView, SchedulePreview},
};
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use super::session::FlashView;
use crate::error::AppError;

/// Validation result of the job form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobCheck {
    /// Errors in the form's order.
    pub errors: Vec<FieldError>,
    /// The schedule in words and dates, if the schedule's fields are valid.
    pub preview: Option<SchedulePreview>,
}

/// Everything the job form's page renders from, in one response, so that server and browser render the same page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobFormPage {
    /// The choices of the form.
    pub context: JobFormContext,
    /// Initial values: a new form, the job to edit, or the values of a rejected post.
    pub form: JobForm,
    /// Result of a plain form post, if there was one.
    pub flash: Option<FlashView>,
    /// The schedule of `form`, if it is valid.
    pub preview: Option<SchedulePreview>,
}

/// Result of saving a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedJob {
    /// The job's id.
    pub id: JobId,
    /// The occurrence of the requested run, if it was queued.
    pub run: Option<OccurrenceId>,
    /// The reason for which the requested run was not queued; `None` if it was, or if none was requested.
    pub refusal: Option<String>,
}

/// Returns the notice for a job that was created and whose run was refused for this reason.
#[must_use]
pub fn refused_run_notice(reason: &str) -> String {
    format!("The job is created, but it is not queued to run now. {reason}")
}

/// Lists jobs by name, one page at a time.
#[server(input = GetUrl, output = JsonText, endpoint = "jobs")]
pub async fn jobs(filter: JobFilter) -> Result<ListPage<JobRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.jobs(&me, filter).await.map_err(super::with_error_status)
}

/// Returns one job, with its schedule also in the user's zone.
///
/// # Errors
///
/// `NotFound` if it is deleted or never existed.
#[server(input = GetUrl, output = JsonText, endpoint = "job")]
pub async fn job(id: JobId) -> Result<JobView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.job(&me, id, super::session::viewer_zone().as_deref()).await.map_err(super::with_error_status)
}

/// Loads the job form's page for the job `id`, or for a new one.
///
/// `target` (`worker/type`) preselects the type of a new job, which starts with the rules that the code of the type declares.
/// A new job starts as a copy of the job `from`.
///
/// # Errors
///
/// `Denied` below Operator; `NotFound` if the job is deleted.
#[server(input = GetUrl, output = JsonText, endpoint = "job_form")]
pub async fn load_job_form(
    id: Option<JobId>,
    target: Option<String>,
    from: Option<JobId>,
) -> Result<JobFormPage, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let context = backend.form_context(&me, id.or(from)).await.map_err(super::with_error_status)?;
    let zone = super::session::viewer_zone();
    let flash = backend.take_flash(&super::request()?, "job-form").await?.map(FlashView::from);
    // A flash may hold the values of another job that was posted in another tab.
    let typed = flash
        .as_ref()
        .and_then(|flash| serde_json::from_value::<JobForm>(flash.typed.clone()).ok())
        .filter(|form| form.id == id.map(|id| id.to_string()).unwrap_or_default());
    let is_typed = typed.is_some();
    let mut form = match (typed, &context.job) {
        (Some(form), _) => form,
        (None, Some(job)) if id.is_none() => JobForm::from_job(job.row.id, job.version, &job.definition).into_copy(),
        (None, Some(job)) => JobForm::from_job(job.row.id, job.version, &job.definition),
        (None, None) => fresh(zone.clone(), &context),
    };
    if let Some(target) = target.filter(|_| id.is_none() && !is_typed) {
        form.target = target;
    }
    if context.job.is_none() && !is_typed {
        let known = context.job_types.iter().find(|known| known.target() == form.target);
        let declared = known.map(|known| known.info.defaults.clone()).unwrap_or_default();
        form.start_with(&milvaion_protocol::message::JobDefaults::default(), &declared);
    }
    // Schedule errors are shown beside their fields; the page itself loads.
    let preview = backend.preview(&me, &form, zone.as_deref()).await.ok();
    Ok(JobFormPage { context, form, flash, preview })
}

/// Builds the form of a new job with the common choices.
#[cfg(feature = "ssr")]
fn fresh(zone: Option<String>, context: &JobFormContext) -> JobForm {
    // An unknown zone would be rejected on save.
    let zone = zone.filter(|zone| context.zones.iter().any(|known| known == zone));
    let target = match context.job_types.as_slice() {
        [only] => only.target(),
        _ => String::new(),
    };
    JobForm {
        target,
        input_mode: "form".into(),
        input_json: "{}".into(),
        kind: "cron".into(),
        zone: zone.unwrap_or_else(|| "UTC".into()),
        every: "10".into(),
        every_unit: "minutes".into(),
        is_active: "on".into(),
        priority: "3".into(),
        rules: milvaion_api::rules_form::default_fields(),
        ..JobForm::default()
    }
}

/// Validates the form without saving it.
///
/// Invalid fields are a normal result here, not an error. A plain form post is redirected to the form, which shows the
/// errors beside their fields and the schedule's preview.
///
/// # Errors
///
/// `Denied` below Operator; `Unavailable` if a service is down.
#[server(output = JsonText, endpoint = "check_job")]
pub async fn check_job(form: JobForm) -> Result<JobCheck, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let errors = match backend.check_job(&me, &form).await {
        Ok(()) => Vec::new(),
        Err(AppError::Fields(errors)) => errors,
        Err(error) => return Err(super::with_error_status(error)),
    };
    if super::is_plain_form() {
        let notice = errors.is_empty().then(|| "All fields are valid. Nothing is saved yet.".to_owned());
        let flash = crate::backend::FlashMessage {
            form: "job-form".into(),
            notice,
            fields: errors,
            typed: serde_json::to_value(&form).unwrap_or_default(),
            ..crate::backend::FlashMessage::default()
        };
        backend.put_flash(&super::request()?, flash).await?;
        leptos_axum::redirect(&form_address(&form), false);
        return Ok(JobCheck::default());
    }
    let preview = backend.preview(&me, &form, super::session::viewer_zone().as_deref()).await.ok();
    Ok(JobCheck { errors, preview })
}

/// Creates or changes a job; with `then` = `run` also runs it now. The result states whether the run was queued.
///
/// # Errors
///
/// `Fields` for invalid fields; `Conflict` if another user changed the job meanwhile; `Denied` below Operator. A refused
/// run is not an error, because the job exists.
#[server(output = JsonText, endpoint = "save_job")]
pub async fn save_job(form: JobForm, #[server(default)] then: String) -> Result<SavedJob, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let mut result = backend.save_job(&me, &form).await.map(|id| SavedJob { id, ..SavedJob::default() });
    let mut notice = if form.id.is_empty() { "The job is created." } else { "The job is saved." };
    if let Ok(saved) = &mut result
        && then == "run"
    {
        notice = "The job is created and queued to run now.";
        match backend.trigger_job(&me, saved.id, crate::backend::TriggerInput::default()).await {
            Ok(run) => saved.run = Some(run),
            Err(error) => {
                let reason = error.to_string();
                if super::is_plain_form() {
                    notice = "";
                    let flash = crate::backend::FlashMessage {
                        form: "notice".into(),
                        error: Some(refused_run_notice(&reason)),
                        ..crate::backend::FlashMessage::default()
                    };
                    backend.put_flash(&super::request()?, flash).await?;
                }
                saved.refusal = Some(reason);
            }
        }
    }
    let back = form_address(&form);
    super::respond("job-form", result, |saved| format!("/jobs/{}", saved.id), notice, &back, form).await
}

/// Returns the address of the page whose form sent `form`.
#[cfg(feature = "ssr")]
fn form_address(form: &JobForm) -> String {
    match form.id.parse::<JobId>() {
        Ok(id) => format!("/jobs/{id}/edit"),
        Err(_) if form.target.is_empty() => "/jobs/new".into(),
        Err(_) => format!("/jobs/new?type={}", super::session::query_value(&form.target)),
    }
}

/// Runs a job now. `input_json` replaces the input for this occurrence only, and `reason` is stored with it. A repeated
/// `idempotency_key` returns the same occurrence.
///
/// # Errors
///
/// `Fields` for `input_json` and `reason`; `Conflict` if the job is paused or must not overlap, unless `force`;
/// `NotFound`; `Denied` below Operator.
#[server(output = JsonText, endpoint = "trigger_job")]
pub async fn trigger_job(
    id: JobId,
    #[server(default)] input_json: String,
    #[server(default)] reason: String,
    #[server(default)] idempotency_key: String,
    #[server(default)] force: bool,
) -> Result<OccurrenceId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::RunJob).await?;
    let typed = serde_json::json!({ "input_json": &input_json, "reason": &reason });
    let input = crate::backend::TriggerInput {
        input_json,
        reason,
        force,
        is_script: false,
        idempotency_key: Some(idempotency_key),
    };
    let result = backend.trigger_job(&me, id, input).await;
    let back = format!("/jobs/{id}");
    super::respond(
        "trigger",
        result,
        |run| format!("/occurrences/{run}"),
        "The job is queued to run now.",
        &back,
        typed,
    )
    .await
}

/// Pauses or resumes a job. Returns the reason of the pause that a resume has ended, so that an undo can restore it.
/// `back` is the page that a plain form post is redirected to; empty means the job's own page.
///
/// # Errors
///
/// `NotFound`; `Denied` below Operator.
#[server(output = JsonText, endpoint = "set_job_active")]
pub async fn set_job_active(
    id: JobId,
    active: bool,
    #[server(default)] reason: String,
    #[server(default)] back: String,
) -> Result<Option<String>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let result = backend.set_job_active(&me, id, active, &reason).await;
    let notice = if active { "The job is resumed." } else { "The job is paused." };
    let back = match super::session::local_path(&back) {
        "/" => format!("/jobs/{id}"),
        path => path.to_owned(),
    };
    super::respond("trigger", result, |_| back.clone(), notice, &back, ()).await
}

/// Skips the next due time of a job, which the caller names, so that a second click does not skip another one.
///
/// # Errors
///
/// `Conflict` if it is not the next due time any more or cannot be skipped now; `NotFound`; `Denied` below Operator.
#[server(output = JsonText, endpoint = "skip_due")]
pub async fn skip_due(id: JobId, due: DateTime<Utc>) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let result = backend.skip_due(&me, id, due).await;
    let back = format!("/jobs/{id}");
    super::respond("trigger", result, |()| back.clone(), SKIPPED_NOTICE, &back, ()).await
}

/// The notice after a due time was skipped.
pub const SKIPPED_NOTICE: &str = "The run is skipped.";

/// Makes a job be as the code of a worker declares again, after an edit has detached it.
///
/// # Errors
///
/// `NotFound`; `Conflict` if no code declares the job; `Denied` below Operator.
#[server(output = JsonText, endpoint = "attach_job")]
pub async fn attach_job(id: JobId) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let result = backend.attach_job(&me, id).await;
    let back = format!("/jobs/{id}");
    super::respond("trigger", result, |()| back.clone(), "The job follows the code again.", &back, ()).await
}

/// Counts the delayed occurrences of a job, up to [`MAX_COUNTED_OPEN`](milvaion_api::views::MAX_COUNTED_OPEN) + 1.
#[server(input = GetUrl, output = JsonText, endpoint = "delayed_count")]
pub async fn delayed_count(id: JobId) -> Result<i64, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.delayed_count(&me, id).await.map_err(super::with_error_status)
}

/// Cancels delayed occurrences of a job, as many as one request may. The result says whether some may be left.
///
/// # Errors
///
/// `NotFound` if neither the job nor a delayed occurrence of it exists; `Denied` below Operator.
#[server(output = JsonText, endpoint = "cancel_delayed")]
pub async fn cancel_delayed(id: JobId) -> Result<CancelDelayedResult, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::CancelOccurrence).await?;
    let result = backend.cancel_delayed(&me, id, "").await;
    let notice = result.as_ref().map(|result| cancel_delayed_notice(*result)).unwrap_or_default();
    let back = format!("/jobs/{id}");
    super::respond("trigger", result, |_| back.clone(), &notice, &back, ()).await
}

/// Returns the notice after delayed occurrences were cancelled.
#[must_use]
pub fn cancel_delayed_notice(CancelDelayedResult { cancelled, more }: CancelDelayedResult) -> String {
    let count = crate::format::plural(cancelled.into(), "delayed occurrence");
    let verb = if cancelled == 1 { "is" } else { "are" };
    let rest = if more { " More may be left: repeat the action." } else { "" };
    format!("{count} {verb} cancelled.{rest}")
}

/// Deletes a job and returns its name. Its occurrences are kept for their retention.
///
/// # Errors
///
/// `NotFound` if it is already deleted; `Denied` below Admin.
#[server(output = JsonText, endpoint = "delete_job")]
pub async fn delete_job(id: JobId) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DeleteJob).await?;
    let result = backend.delete_job(&me, id).await;
    let notice = result.as_ref().map(|name| format!("The job {name} is deleted.")).unwrap_or_default();
    super::respond("trigger", result, |_| "/jobs".into(), &notice, &format!("/jobs/{id}"), ()).await
}
