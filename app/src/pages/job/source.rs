//! The source of a job: the file or the code that defines it, and the edits that the source does not have.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use milvaion_api::sources::{CodeSource, JobSource, JobSourceKind};
use milvaion_protocol::id::JobId;

use crate::{
    api::jobs::{AttachJob, attach_job},
    browser::PAGE_TITLE_ID,
    components::{action::use_action, action_error::LastError, focus::hand_focus, icon::Icon, time::Time},
};

/// Says that a job comes from a file, and since when it differs from it.
#[component]
pub fn FileNotice(
    /// The source of the job.
    #[prop(into)]
    source: Signal<JobSource>,
) -> impl IntoView {
    move || {
        let JobSource { kind, file, edited, .. } = source.get();
        let file = file.filter(|_| kind == JobSourceKind::File)?;
        let kind = if edited.is_some() { "warn" } else { "info" };
        let icon = if edited.is_some() { "triangle-alert" } else { "info" };
        let edit = edited.map(|edited| {
            view! {
                <span>
                    " It differs from the file since "
                    <Time at=edited.at/>
                    {format!(", when {} edited it. The next apply of the file overwrites the edit.", edited.by)}
                </span>
            }
        });
        Some(view! {
            <div class="notice" data-kind=kind id="job-file">
                <Icon name=icon/>
                <p>
                    "This job comes from the file "
                    <span class="mono">{file}</span>
                    "."
                    {edit}
                </p>
            </div>
        })
    }
}

/// Warns in the form of a job that its file overwrites an edit.
#[component]
pub fn FileEditWarning(
    /// The source of the job.
    source: JobSource,
) -> impl IntoView {
    let file = source.file.filter(|_| source.kind == JobSourceKind::File)?;
    Some(view! {
        <div class="notice" data-kind="warn" id="job-file">
            <Icon name="triangle-alert"/>
            <p>
                "This job comes from the file "
                <span class="mono">{file}</span>
                ". The next apply of the file overwrites what you change here. Change the file instead, or as well."
            </p>
        </div>
    })
}

/// The id of the notice about the code that declares the job.
const CODE_NOTICE_ID: &str = "job-code";

/// Says that the code of a worker declares a job, whether an edit has detached it, and whether the code still declares it.
#[component]
pub fn CodeNotice(
    /// The job's id.
    id: JobId,
    /// The source of the job.
    #[prop(into)]
    source: Signal<JobSource>,
    /// True if the user may attach the job again.
    may_attach: bool,
    /// The error of the last try, which the page shows near the notice.
    error: LastError,
    /// Called after the job was attached.
    on_change: Callback<()>,
) -> impl IntoView {
    let action = use_action(error);
    let attach = move |event: ev::SubmitEvent| {
        event.prevent_default();
        action.run(async move {
            attach_job(id).await?;
            hand_focus(CODE_NOTICE_ID, PAGE_TITLE_ID);
            let _ = on_change.try_run(());
            Ok(Some("The job follows the code again.".to_owned()))
        });
    };
    move || {
        let JobSource { edited, declared, .. } = source.get();
        let CodeSource { worker_id, job_type, schedule, is_retired } = declared?;
        let is_warning = edited.is_some() || is_retired;
        let subject = match schedule.is_empty() {
            true => view! { "This job runs the occurrences that programs enqueue by job type. Its rules come from the code of worker " }.into_any(),
            false => view! { "Schedule " <span class="mono">{schedule}</span> " in the code of worker " }.into_any(),
        };
        let state = match &edited {
            Some(edited) => view! {
                <span>
                    " It is detached from the code since "
                    <Time at=edited.at/>
                    {format!(", when {} edited it: a deployment does not change it.", edited.by)}
                </span>
            }
            .into_any(),
            None if is_retired => view! {
                <span>
                    " The code no longer declares it, so the job is paused. It is resumed if the code declares it again, and can be deleted if it is not needed."
                </span>
            }
            .into_any(),
            None => view! { <span>" A deployment that changes it changes this job. An edit here detaches it from the code."</span> }.into_any(),
        };
        let form = (edited.is_some() && !is_retired && may_attach).then(|| {
            view! {
                <form method="post" action=AttachJob::PATH on:submit=attach>
                    <input type="hidden" name="id" value=id.to_string()/>
                    <button type="submit" class="btn" aria-disabled=move || action.disabled()>"Attach to the code"</button>
                </form>
            }
        });
        Some(view! {
            <div class="notice" data-kind=if is_warning { "warn" } else { "info" } id=CODE_NOTICE_ID>
                <Icon name=if is_warning { "triangle-alert" } else { "info" }/>
                <p>
                    {subject}
                    <span class="mono">{worker_id}</span>
                    ", job type "
                    <span class="mono">{job_type}</span>
                    "."
                    {state}
                </p>
                {form}
            </div>
        })
    }
}

/// Warns in the form of a job that an edit detaches it from the code.
#[component]
pub fn CodeEditWarning(
    /// The source of the job.
    source: JobSource,
) -> impl IntoView {
    let declared = source.declared.filter(|_| source.edited.is_none())?;
    Some(view! {
        <div class="notice" data-kind="warn" id=CODE_NOTICE_ID>
            <Icon name="triangle-alert"/>
            <p>
                "The code of worker "
                <span class="mono">{declared.worker_id}</span>
                " declares this job. A change here detaches it: deployments no longer change the job until it is attached again on its page."
            </p>
        </div>
    })
}
