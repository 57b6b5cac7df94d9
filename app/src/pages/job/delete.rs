//! Deletes a job: the only action on its page that cannot be undone.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_protocol::id::JobId;

use crate::{
    api::jobs::{DeleteJob, delete_job},
    components::{
        action::use_action,
        action_error::LastError,
        confirm::{ConfirmAction, Confirmation},
    },
};

/// Returns the question before a job is deleted.
pub fn delete_question(id: JobId, name: &str) -> Confirmation {
    const CONSEQUENCE: &str = "The job and its schedule are deleted permanently. Queued and running occurrences continue, and past occurrences stay \
         until their retention ends. To stop the job temporarily, pause it instead.";
    Confirmation::new(format!("Delete job {name}?"), CONSEQUENCE, "Delete job").with_form(
        DeleteJob::PATH,
        vec![("id", id.to_string())],
        format!("/jobs/{id}"),
    )
}

/// Deletes a job after a confirmation.
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
    let navigate = use_navigate();
    let action = use_action(error);
    let delete = move |()| {
        let navigate = navigate.clone();
        action.run(async move {
            let name = delete_job(id).await?;
            navigate("/jobs", NavigateOptions::default());
            Ok(Some(format!("The job {name} is deleted.")))
        });
    };
    let what = Signal::derive(move || name.with(|name| delete_question(id, name)));
    view! { <ConfirmAction action id="delete" label="Delete…" icon="trash-2" what on_confirm=delete/> }
}
