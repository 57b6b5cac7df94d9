//! Deletes a calendar. The server refuses while a job uses it.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_protocol::id::CalendarId;

use crate::{
    api::calendars::{DeleteCalendar, delete_calendar},
    components::{
        action::use_action,
        action_error::LastError,
        confirm::{ConfirmAction, Confirmation},
        input_form::FormState,
    },
};

/// Returns the question before a calendar is deleted.
pub fn delete_question(id: CalendarId, name: &str) -> Confirmation {
    const CONSEQUENCE: &str = "The calendar is deleted permanently. A calendar that jobs use cannot be deleted; \
                               remove it from those jobs first.";
    Confirmation::new(format!("Delete calendar {name}?"), CONSEQUENCE, "Delete calendar").with_form(
        DeleteCalendar::PATH,
        vec![("id", id.to_string())],
        format!("/calendars/{id}/edit"),
    )
}

/// Deletes a calendar after a confirmation.
#[component]
pub fn DeleteCalendarButton(
    /// The calendar's id.
    id: CalendarId,
    /// The calendar's name.
    name: String,
    /// The state of the form on the page.
    state: FormState,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
) -> impl IntoView {
    let navigate = use_navigate();
    let action = use_action(error);
    let delete = move |()| {
        let navigate = navigate.clone();
        action.run(async move {
            let name = delete_calendar(id).await?;
            let _ = state.is_dirty.try_set(false);
            navigate("/calendars", NavigateOptions::default());
            Ok(Some(format!("The calendar {name} is deleted.")))
        });
    };
    let what = delete_question(id, &name);
    view! { <ConfirmAction action id="delete" label="Delete…" icon="trash-2" what on_confirm=delete/> }
}
