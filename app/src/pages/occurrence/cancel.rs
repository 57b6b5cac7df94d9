//! Cancelling an occurrence, after a question. Without scripts the question stands below a line that opens, as a plain form.

use leptos::{html, prelude::*, server_fn::ServerFn, task::spawn_local};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};

use crate::{
    api::{
        occurrences::{CancelOccurrence, cancel_notice, cancel_occurrence},
        session::FlashView,
    },
    components::{
        dialog::ConfirmDialog,
        form::{FormField, described_by},
        icon::Icon,
        input_form::error_of,
        toast::{ToastKind, toasts},
    },
};

/// Cancels what waits, asks what runs to end.
#[component]
pub fn CancelButton(
    /// Which.
    id: OccurrenceId,
    /// Its job's name.
    #[prop(into)]
    name: Signal<String>,
    /// What it is now.
    #[prop(into)]
    status: Signal<OccurrenceStatus>,
    /// What a plain form left.
    flash: FlashView,
    /// Hears when it has been done.
    on_done: Callback<()>,
) -> impl IntoView {
    let toasts = toasts();
    let open = RwSignal::new(false);
    let reason = NodeRef::<html::Input>::new();
    let cancel = Callback::new(move |()| {
        let reason = reason.get_untracked().map(|reason| reason.value()).unwrap_or_default();
        spawn_local(async move {
            match cancel_occurrence(id, reason).await {
                Ok(has_ended) => toasts.show(ToastKind::Success, cancel_notice(has_ended)),
                Err(error) => toasts.show(ToastKind::Error, error.to_string()),
            }
            // Whatever the answer was, what the page shows may be older than it.
            let _ = on_done.try_run(());
        });
    });
    let was_refused = !flash.fields.is_empty();
    let typed = flash.typed("reason");
    let error = error_of(Signal::stored(flash.fields), "reason");
    view! {
        <button type="button" class="btn needs-js" on:click=move |_| open.set(true)>
            <Icon name="ban"/>
            "Cancel…"
        </button>
        <ConfirmDialog
            open
            id="cancel-title"
            title=Signal::derive(move || format!("Cancel this occurrence of {}?", name.get()))
            verb="Cancel occurrence"
            otherwise="Keep it"
            on_confirm=cancel
        >
            <p>{move || consequence(status.get())}</p>
            <ReasonField field="cancel-reason" typed=String::new() error=Signal::stored(None) node=reason/>
        </ConfirmDialog>
        <details class="hide-js" open=was_refused>
            <summary>"Cancel"</summary>
            <form method="post" action=CancelOccurrence::PATH class="stack">
                <p>{consequence(status.get_untracked())}</p>
                <input type="hidden" name="id" value=id.to_string()/>
                <ReasonField field="plain-cancel-reason" typed error node=NodeRef::new()/>
                <div class="dialog-actions">
                    <button type="submit" class="btn btn-danger">"Cancel occurrence"</button>
                </div>
            </form>
        </details>
    }
}

/// What cancelling does to an occurrence that is `status` now.
const fn consequence(status: OccurrenceStatus) -> &'static str {
    match status {
        OccurrenceStatus::Running => {
            "Its worker is asked to end it, and asked again until it has. What the job has done so far is not undone."
        }
        OccurrenceStatus::Unknown => {
            "It is cancelled at once. Its worker was lost; should it run on there all the same, it is asked to end."
        }
        _ => "No worker runs it yet. It is cancelled at once and will not run.",
    }
}

#[component]
fn ReasonField(
    /// The control's id.
    field: &'static str,
    /// What stood there before a refusal.
    typed: String,
    error: Signal<Option<String>>,
    node: NodeRef<html::Input>,
) -> impl IntoView {
    view! {
        <FormField id=field label="Reason" hint="Kept with the occurrence." optional=true error>
            <input
                type="text"
                id=field
                name="reason"
                maxlength="500"
                value=typed
                autocomplete="off"
                aria-describedby=described_by(field)
                aria-invalid=move || error.get().is_some().then_some("true")
                node_ref=node
            />
        </FormField>
    }
}
