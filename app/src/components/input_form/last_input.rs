//! The button that inserts the input of a job's newest occurrence.
//!
//! The occurrence is requested when the button is used, so that a page costs nothing for it and the input is the newest
//! one at that moment.

use leptos::prelude::*;
use milvaion_api::page::OccurrenceFilter;
use milvaion_protocol::id::JobId;
use serde_json::Value;

use crate::{
    api::occurrences::{get_occurrence, list_occurrences},
    components::{
        action::{ErrorPlace, UserAction},
        action_error::error_text,
    },
    error::AppError,
};

/// Inserts the input of the job's newest occurrence into a form. It needs a script.
#[component]
pub fn LastInputButton(
    /// The job.
    job: JobId,
    /// Called with the input.
    #[prop(into)]
    on_input: Callback<Value>,
) -> impl IntoView {
    let note = RwSignal::new(None::<String>);
    let action = UserAction::new(ErrorPlace::Text(note));
    let insert = move |_| {
        action.run(async move {
            let text = match last_input(job).await? {
                Some(data) => {
                    let _ = on_input.try_run(data);
                    "The input of the last run is inserted. Nothing is saved yet."
                }
                None => "This job has no run whose input could be used.",
            };
            let _ = note.try_set(Some(text.to_owned()));
            Ok(None)
        });
    };
    view! {
        <div class="cluster needs-js">
            <button
                type="button"
                class="btn btn-small"
                aria-disabled=move || action.disabled()
                on:click=insert
            >
                "Use input of last run"
            </button>
            <span class="hint" role="status">{move || note.get().map(error_text)}</span>
        </div>
    }
}

/// Returns the input of the newest occurrence of a job; none if it has no occurrence.
async fn last_input(job: JobId) -> Result<Option<Value>, AppError> {
    let filter = OccurrenceFilter { job_id: Some(job), limit: 1, ..OccurrenceFilter::default() };
    match list_occurrences(filter).await?.rows.first() {
        Some(newest) => Ok(Some(get_occurrence(newest.id, None).await?.job_data)),
        None => Ok(None),
    }
}
