//! Jobs: finding, defining, running and ending them.

use leptos::prelude::*;
use milvaion_api::{
    page::{JobFilter, ListPage},
    requests::{FieldError, JobForm},
    views::{JobFormContext, JobRow, JobView, SchedulePreview},
};
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::session::FlashView;
use crate::error::AppError;

/// What the job form judges of itself while it is being filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobCheck {
    /// What is wrong, in the form's order.
    pub errors: Vec<FieldError>,
    /// The schedule in words and dates, when that part is right.
    pub preview: Option<SchedulePreview>,
}

/// Everything the page with the job form is drawn from, in one answer, so that it is drawn alike on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobFormPage {
    /// What can be chosen.
    pub context: JobFormContext,
    /// What stands in the fields: a fresh form, the job to edit, or what was typed before a refusal.
    pub form: JobForm,
    /// What a plain form post left.
    pub flash: Option<FlashView>,
    /// The schedule of `form`, when it is right.
    pub preview: Option<SchedulePreview>,
}

/// A page of jobs by name.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "jobs")]
pub async fn jobs(filter: JobFilter) -> Result<ListPage<JobRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.jobs(&me, filter).await.map_err(super::with_error_status)
}

/// One job, its schedule also in the reader's zone.
///
/// # Errors
///
/// `NotFound` when it is deleted or never was.
#[server(input = GetUrl, endpoint = "job")]
pub async fn job(id: JobId) -> Result<JobView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.job(&me, id, super::session::viewer_zone().as_deref()).await.map_err(super::with_error_status)
}

/// Everything the page with the job form is drawn from: of the job `id`, or of a new one, for the type `target`
/// (`worker/type`) if that is chosen already.
///
/// # Errors
///
/// `Denied` below Operator, `NotFound` when the job is deleted.
#[server(input = GetUrl, endpoint = "job_form")]
pub async fn load_job_form(id: Option<JobId>, target: Option<String>) -> Result<JobFormPage, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let context = backend.form_context(&me, id).await.map_err(super::with_error_status)?;
    let zone = super::session::viewer_zone();
    let flash = backend.take_flash(&super::request()?, "job-form").await?.map(FlashView::from);
    // What was typed for another job in another tab does not belong here.
    let typed = flash
        .as_ref()
        .and_then(|flash| serde_json::from_value::<JobForm>(flash.typed.clone()).ok())
        .filter(|form| form.id == id.map(|id| id.to_string()).unwrap_or_default());
    let is_typed = typed.is_some();
    let mut form = match (typed, &context.job) {
        (Some(form), _) => form,
        (None, Some(job)) => JobForm::from_job(job.row.id, job.version, &job.definition),
        (None, None) => fresh(zone.clone(), &context),
    };
    if let Some(target) = target.filter(|_| id.is_none() && !is_typed) {
        form.target = target;
    }
    // What is wrong with the schedule is told beside its fields; the page itself is fine.
    let preview = backend.preview(&me, &form, zone.as_deref()).await.ok();
    Ok(JobFormPage { context, form, flash, preview })
}

/// An empty form with what most people would choose.
#[cfg(feature = "ssr")]
fn fresh(zone: Option<String>, context: &JobFormContext) -> JobForm {
    // A zone we do not know would only be refused later.
    let zone = zone.filter(|zone| context.zones.iter().any(|known| known == zone));
    let target = match context.job_types.as_slice() {
        [only] => format!("{}/{}", only.worker_id, only.info.job_type),
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

/// Judges the form without saving it. Wrong fields are an answer here, not an error; a plain form is led back to the
/// form, where they stand beside their fields, with the schedule's preview.
///
/// # Errors
///
/// `Denied` below Operator, or a service that is away.
#[server(endpoint = "check_job")]
pub async fn check_job(form: JobForm) -> Result<JobCheck, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let errors = match backend.check_job(&me, &form).await {
        Ok(()) => Vec::new(),
        Err(AppError::Fields(errors)) => errors,
        Err(error) => return Err(super::with_error_status(error)),
    };
    if super::is_plain_form() {
        let notice = errors.is_empty().then(|| "Everything is right. Nothing is saved yet.".to_owned());
        let flash = crate::backend::FlashMessage {
            form: "job-form".into(),
            notice,
            fields: errors,
            typed: serde_json::to_value(&form).unwrap_or_default(),
            ..crate::backend::FlashMessage::default()
        };
        backend.put_flash(&super::request()?, flash).await?;
        leptos_axum::redirect(&form_address(&form));
        return Ok(JobCheck::default());
    }
    let preview = backend.preview(&me, &form, super::session::viewer_zone().as_deref()).await.ok();
    Ok(JobCheck { errors, preview })
}

/// Creates or changes a job; with `then` = `run` also runs it at once.
///
/// # Errors
///
/// The wrong fields; `Conflict` when somebody else changed the job meanwhile; `Denied` below Operator.
#[server(endpoint = "save_job")]
pub async fn save_job(form: JobForm, #[server(default)] then: String) -> Result<JobId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let result = backend.save_job(&me, &form).await;
    let mut notice = if form.id.is_empty() { "The job is created." } else { "The job is saved." };
    if let Ok(id) = &result
        && then == "run"
    {
        // The job exists now whatever becomes of this, so a failure here must not read as "not created".
        notice = match backend.trigger_job(&me, *id, crate::backend::TriggerInput::default()).await {
            Ok(_) => "The job is created and queued to run now.",
            Err(_) => "The job is created, but could not be run at once. Try Run now.",
        };
    }
    let back = form_address(&form);
    super::respond("job-form", result, |id| format!("/jobs/{id}"), notice, &back, form).await
}

/// Where the form that sent `form` stands.
#[cfg(feature = "ssr")]
fn form_address(form: &JobForm) -> String {
    match form.id.parse::<JobId>() {
        Ok(id) => format!("/jobs/{id}/edit"),
        Err(_) if form.target.is_empty() => "/jobs/new".into(),
        Err(_) => format!("/jobs/new?type={}", super::session::query_value(&form.target)),
    }
}

/// Runs a job now; with `input_json`, this once with that input. `reason` is kept with the occurrence. The same
/// `idempotency_key` again is the same run again.
///
/// # Errors
///
/// A wrong `input_json` or `reason`; `Conflict` when the job is paused or must not overlap, unless `force`; `NotFound`;
/// `Denied` below Operator.
#[server(endpoint = "trigger_job")]
pub async fn trigger_job(
    id: JobId,
    #[server(default)] input_json: String,
    #[server(default)] reason: String,
    #[server(default)] idempotency_key: String,
    #[server(default)] force: bool,
) -> Result<OccurrenceId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::RunJob).await?;
    let typed = serde_json::json!({ "input_json": &input_json, "reason": &reason });
    let input = crate::backend::TriggerInput { input_json, reason, force, idempotency_key: Some(idempotency_key) };
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

/// Pauses or resumes a job. `back` is the page a plain form is led to: the job's own when empty.
///
/// # Errors
///
/// `NotFound`, or `Denied` below Operator.
#[server(endpoint = "set_job_active")]
pub async fn set_job_active(
    id: JobId,
    active: bool,
    #[server(default)] reason: String,
    #[server(default)] back: String,
) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let result = backend.set_job_active(&me, id, active, &reason).await;
    let notice = if active { "The job is resumed." } else { "The job is paused." };
    let back = match super::session::local_path(&back) {
        "/" => format!("/jobs/{id}"),
        path => path.to_owned(),
    };
    super::respond("trigger", result, |()| back.clone(), notice, &back, ()).await
}

/// Deletes a job and answers its name. Its occurrences stay until retention takes them.
///
/// # Errors
///
/// `NotFound` when it is gone already; `Denied` for anybody but an Admin.
#[server(endpoint = "delete_job")]
pub async fn delete_job(id: JobId) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DeleteJob).await?;
    let result = backend.delete_job(&me, id).await;
    let notice = result.as_ref().map(|name| format!("The job {name} is deleted.")).unwrap_or_default();
    super::respond("trigger", result, |_| "/jobs".into(), &notice, &format!("/jobs/{id}"), ()).await
}
