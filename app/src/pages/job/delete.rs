//! Deletes a job: the only action on its page that cannot be undone.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_protocol::id::JobId;

use crate::{
    api::jobs::{DeleteJob, delete_job},
    components::{
        action_error::LastError,
        busy::Busy,
        dialog::ConfirmDialog,
        icon::Icon,
        toast::{ToastKind, toasts},
    },
};

/// Deletes a job after a confirmation. Without scripts the confirmation is a section of the page, reached by a link.
#[component]
pub fn DeleteJobButton(
    /// The job's id.
    id: JobId,
    /// The job's name.
    #[prop(into)]
    name: Signal<String>,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
) -> impl IntoView {
    let toasts = toasts();
    let navigate = use_navigate();
    let open = RwSignal::new(false);
    let busy = Busy::new();
    let delete = Callback::new(move |()| {
        let navigate = navigate.clone();
        error.clear();
        busy.run(async move {
            match delete_job(id).await {
                Ok(name) => {
                    toasts.show(ToastKind::Success, format!("The job {name} is deleted."));
                    navigate("/jobs", NavigateOptions::default());
                }
                Err(found) => error.show(found),
            }
        });
    });
    view! {
        <button
            type="button"
            class="btn needs-js"
            aria-disabled=move || busy.disabled()
            on:click=move |_| busy.ask(open)
        >
            <Icon name="trash-2"/>
            "Delete…"
        </button>
        <a class="btn hide-js" href=format!("/jobs/{id}?confirm=delete#delete")>
            <Icon name="trash-2"/>
            "Delete…"
        </a>
        <ConfirmDialog
            open
            id="delete-title"
            title=Signal::derive(move || format!("Delete job {}?", name.get()))
            verb="Delete job"
            on_confirm=delete
        >
            <p>{DELETE_CONSEQUENCE}</p>
        </ConfirmDialog>
    }
}

/// The effect of deleting a job.
const DELETE_CONSEQUENCE: &str = "The job and its schedule are deleted permanently. Queued and running occurrences continue, and past occurrences stay \
     until their retention ends. To stop the job temporarily, pause it instead.";

/// The confirmation as a section of the page, for readers without scripts.
#[component]
pub fn DeleteJobSection(
    /// The job's id.
    id: JobId,
    /// The job's name.
    name: String,
) -> impl IntoView {
    view! {
        <section class="card stack hide-js" id="delete" aria-labelledby="delete-heading">
            <h2 id="delete-heading">{format!("Delete job {name}?")}</h2>
            <p>{DELETE_CONSEQUENCE}</p>
            <form class="form-actions" method="post" action=DeleteJob::PATH>
                <input type="hidden" name="id" value=id.to_string()/>
                <a class="btn" href=format!("/jobs/{id}")>"Cancel"</a>
                <button type="submit" class="btn btn-danger">"Delete job"</button>
            </form>
        </section>
    }
}
