//! The switch that pauses all schedules.
//!
//! It is a plain form that a script takes over. The switch is an inconspicuous button, because it is seldom needed. Its
//! form asks for a reason, because other users see that nothing runs and need to know why. The
//! [banner](crate::components::status_banner) that is shown during the pause is conspicuous for the same reason.

use leptos::{ev, html, prelude::*, server_fn::ServerFn};

use crate::{
    api::{
        cluster::{CLUSTER_PAUSED_NOTICE, PauseCluster, pause_cluster},
        session::FlashView,
    },
    browser,
    components::{
        action::{ErrorPlace, UserAction},
        dialog::{Dialog, Impossible},
        fields::InputField,
        focus::recover_focus_when,
        form::ErrorSummary,
        icon::Icon,
        input_form::{error_of, other_errors},
    },
};

/// The id of the button that opens the dialog.
const BUTTON_ID: &str = "pause-all";

/// Pauses all schedules with a reason: in a dialog, or without scripts in a section that unfolds.
#[component]
pub fn PauseAllButton(
    /// The input and errors that a plain form left behind.
    flash: FlashView,
    /// True while the cluster is paused. The button is then hidden, and an open dialog stays.
    is_paused: Memo<bool>,
    /// Called after a pause.
    on_change: Callback<()>,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let was_refused = !flash.fields.is_empty();
    recover_focus_when(is_paused, BUTTON_ID);
    view! {
        <button
            type="button"
            id=BUTTON_ID
            class="btn btn-quiet needs-js"
            hidden=move || is_paused.get()
            on:click=move |_| open.set(true)
        >
            <Icon name="pause"/>
            "Pause all schedules…"
        </button>
        <Dialog open id="pause-all-title" title="Pause all schedules?">
            <PauseAllForm field="pause-all-reason" flash=FlashView::default() open is_paused on_change/>
        </Dialog>
        <details class="hide-js" open=was_refused>
            <summary>"Pause all schedules"</summary>
            <PauseAllForm field="plain-pause-all-reason" flash open is_paused on_change/>
        </details>
    }
}

#[component]
fn PauseAllForm(
    /// The id of the reason field.
    field: &'static str,
    flash: FlashView,
    open: RwSignal<bool>,
    is_paused: Memo<bool>,
    on_change: Callback<()>,
) -> impl IntoView {
    let typed = flash.typed("reason");
    let wrong = RwSignal::new(flash.fields);
    let reason = NodeRef::<html::Input>::new();
    let action = UserAction::new(ErrorPlace::Fields(wrong));
    let pause = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let Some(reason) = reason.get_untracked() else { return };
        if is_paused.get_untracked() {
            return;
        }
        action.run(async move {
            pause_cluster(reason.value()).await.inspect_err(|_| browser::focus(field))?;
            reason.set_value("");
            let _ = open.try_set(false);
            let _ = on_change.try_run(());
            Ok(Some(CLUSTER_PAUSED_NOTICE.to_owned()))
        });
    };
    let impossible = Signal::derive(move || is_paused.get().then(|| "All schedules are paused already.".to_owned()));
    let is_disabled = move || (action.is_running() || is_paused.get()).then_some("true");
    view! {
        <form method="post" action=PauseCluster::PATH class="stack" data-guarded="true" on:submit=pause>
            <ErrorSummary errors=other_errors(wrong, &["reason"])/>
            <p>
                "No schedule starts a run until the pause ends. Runs that have already started or were sent to a worker continue. Runs that wait for a slot, for a retry or for the broker stay queued. Each job's misfire policy applies to the due times that pass meanwhile."
            </p>
            <InputField
                id=field
                name="reason"
                label="Reason"
                hint="Shown to all users during the pause; at most 500 characters."
                maxlength="500"
                value=typed
                required=true
                error=error_of(wrong.into(), "reason")
                node=reason
            />
            <Impossible reason=impossible/>
            <div class="dialog-actions">
                <button type="button" class="btn needs-js" on:click=move |_| open.set(false)>"Cancel"</button>
                <button type="submit" class="btn btn-primary" aria-disabled=is_disabled>
                    "Pause all schedules"
                </button>
            </div>
        </form>
    }
}
