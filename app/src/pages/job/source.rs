//! The source of a job: the file that defines it, and the edits that the file does not have.

use leptos::prelude::*;
use milvaion_api::sources::{JobSource, JobSourceKind};

use crate::components::{icon::Icon, time::Time};

/// Says that a job comes from a file, and since when it differs from it.
#[component]
pub fn FileNotice(
    /// The source of the job.
    #[prop(into)]
    source: Signal<JobSource>,
) -> impl IntoView {
    move || {
        let JobSource { kind, file, edited } = source.get();
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
