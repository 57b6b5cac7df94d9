//! Deletes a calendar. The server refuses while a job uses it.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_protocol::id::CalendarId;

use crate::{
    api::calendars::{DeleteCalendar, delete_calendar},
    components::{
        action_error::LastError,
        busy::Busy,
        dialog::ConfirmDialog,
        icon::Icon,
        input_form::FormState,
        toast::{ToastKind, toasts},
    },
};

/// The effect of deleting a calendar.
const DELETE_CONSEQUENCE: &str =
    "The calendar is deleted permanently. A calendar that jobs use cannot be deleted; remove it from those jobs first.";

/// Deletes a calendar after a confirmation. Without scripts the confirmation is a section of the page, reached by a
/// link.
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
    let toasts = toasts();
    let navigate = use_navigate();
    let open = RwSignal::new(false);
    let busy = Busy::new();
    let delete = Callback::new(move |()| {
        let navigate = navigate.clone();
        busy.run(async move {
            error.clear();
            match delete_calendar(id).await {
                Ok(name) => {
                    let _ = state.is_dirty.try_set(false);
                    toasts.show(ToastKind::Success, format!("The calendar {name} is deleted."));
                    navigate("/calendars", NavigateOptions::default());
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
        <a class="btn hide-js" href=format!("/calendars/{id}/edit?confirm=delete#delete")>"Delete…"</a>
        <ConfirmDialog
            open
            id="delete-title"
            title=Signal::stored(format!("Delete calendar {name}?"))
            verb="Delete calendar"
            on_confirm=delete
        >
            <p>{DELETE_CONSEQUENCE}</p>
        </ConfirmDialog>
    }
}

/// The confirmation as a section of the page, for readers without scripts.
#[component]
pub fn DeleteCalendarSection(
    /// The calendar's id.
    id: CalendarId,
    /// The calendar's name.
    name: String,
) -> impl IntoView {
    view! {
        <section class="card stack hide-js" id="delete" aria-labelledby="delete-heading">
            <h2 id="delete-heading">{format!("Delete calendar {name}?")}</h2>
            <p>{DELETE_CONSEQUENCE}</p>
            <form class="form-actions" method="post" action=DeleteCalendar::PATH>
                <input type="hidden" name="id" value=id.to_string()/>
                <a class="btn" href=format!("/calendars/{id}/edit")>"Cancel"</a>
                <button type="submit" class="btn btn-danger">"Delete calendar"</button>
            </form>
        </section>
    }
}
