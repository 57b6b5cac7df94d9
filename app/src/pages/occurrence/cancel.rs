//! Cancels an occurrence, after a confirmation.
//!
//! With a script the confirmation is a dialog; without one it is a plain form in a section that unfolds.

use leptos::{ev, html, prelude::*, server_fn::ServerFn};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};

use crate::{
    api::{
        occurrences::{CancelOccurrence, cancel_notice, cancel_occurrence},
        session::FlashView,
    },
    components::{
        action::use_action,
        action_error::LastError,
        confirm::{ConfirmDialog, Confirmation},
        fields::InputField,
        focus::recover_focus_when,
        icon::Icon,
        input_form::error_of,
    },
};

/// The id of the sentence that explains the status. It states why a second cancel request is not possible.
pub const EXPLANATION_ID: &str = "occurrence-explanation";

/// The id of the button that opens the dialog.
const BUTTON_ID: &str = "cancel-run";

/// Cancels a waiting occurrence; for a running one, sends a cancel request to its worker.
#[component]
pub fn CancelButton(
    /// The occurrence's id.
    id: OccurrenceId,
    /// The job's name.
    #[prop(into)]
    name: Signal<String>,
    /// The occurrence's current status.
    #[prop(into)]
    status: Signal<OccurrenceStatus>,
    /// True while a cancel request is stored and the run has not ended.
    #[prop(into)]
    cancelling: Signal<bool>,
    /// The input and errors that a plain form left behind.
    flash: FlashView,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
    /// Called after the call, successful or not.
    on_done: Callback<()>,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let action = use_action(error);
    let reason = NodeRef::<html::Input>::new();
    let cancel = Callback::new(move |()| {
        let reason = reason.get_untracked().map(|reason| reason.value()).unwrap_or_default();
        action.run(async move {
            let answer = cancel_occurrence(id, reason).await;
            // The page may be older than this response, successful or not.
            let _ = on_done.try_run(());
            answer.map(|has_ended| Some(cancel_notice(has_ended).to_owned()))
        });
    });
    let has_ended = Memo::new(move |_| status.get().is_final());
    recover_focus_when(has_ended, BUTTON_ID);
    let impossible =
        Signal::derive(move || has_ended.get().then(|| "The run has ended and cannot be cancelled.".to_owned()));
    let is_disabled = move || cancelling.get() || action.is_running();
    let what = Signal::derive(move || {
        let text = if has_ended.get() { "" } else { consequence(status.get()) };
        let question = Confirmation::new(format!("Cancel this run of {}?", name.get()), text, "Cancel run");
        Confirmation { otherwise: "Keep run", ..question }
    });
    let was_refused = !flash.fields.is_empty();
    let typed = flash.typed("reason");
    let reason_error = error_of(Signal::stored(flash.fields), "reason");
    view! {
        <button
            type="button"
            id=BUTTON_ID
            class="btn needs-js"
            hidden=move || has_ended.get()
            aria-disabled=move || is_disabled().then_some("true")
            aria-describedby=move || cancelling.get().then_some(EXPLANATION_ID)
            title=move || cancelling.get().then_some("A cancel request was sent. The run has not ended yet.")
            on:click=move |_| open.set(!untrack(is_disabled))
        >
            <Icon name="ban"/>
            "Cancel run…"
        </button>
        <ConfirmDialog open id="cancel-title" what on_confirm=cancel impossible>
            // A form only for the leave guard; the dialog's buttons answer the question.
            <form data-guarded="true" on:submit=|event: ev::SubmitEvent| event.prevent_default()>
                <ReasonField field="cancel-reason" typed=String::new() error=Signal::stored(None) node=reason/>
            </form>
        </ConfirmDialog>
        <details class="hide-js" open=was_refused hidden=move || cancelling.get()>
            <summary>"Cancel run"</summary>
            <form method="post" action=CancelOccurrence::PATH class="stack">
                <p>{consequence(status.get_untracked())}</p>
                <input type="hidden" name="id" value=id.to_string()/>
                <ReasonField field="plain-cancel-reason" typed error=reason_error node=NodeRef::new()/>
                <div class="dialog-actions">
                    <button type="submit" class="btn btn-danger">"Cancel run"</button>
                </div>
            </form>
        </details>
    }
}

/// Describes the effect of a cancellation in the current status.
const fn consequence(status: OccurrenceStatus) -> &'static str {
    match status {
        OccurrenceStatus::Running => {
            "A cancel request is sent to the worker until the run stops. Work already done is not undone."
        }
        OccurrenceStatus::Unknown => {
            "The run is cancelled immediately. A cancel request is sent to its worker, in case the run is still active there."
        }
        _ => "It is queued. It is cancelled immediately and will not run.",
    }
}

#[component]
fn ReasonField(
    /// The id of the input element.
    field: &'static str,
    /// The text that was typed before a refusal.
    typed: String,
    error: Signal<Option<String>>,
    node: NodeRef<html::Input>,
) -> impl IntoView {
    view! {
        <InputField
            id=field
            name="reason"
            label="Reason"
            hint="Stored with the occurrence; at most 500 characters."
            optional=true
            maxlength="500"
            value=typed
            error
            node
        />
    }
}
