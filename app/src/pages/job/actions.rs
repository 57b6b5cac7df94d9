//! The reversible actions on a job: run, pause, resume.
//!
//! Each is a plain form that works without a script. A script takes the form over: it calls the same server function,
//! stays on the page, shows a success in a toast, and shows an error at the place of the action.

use leptos::{ev, html, prelude::*, server_fn::ServerFn};
use milvaion_protocol::id::JobId;

use super::shown_state::ShownState;
use crate::{
    api::jobs::{SetJobActive, TriggerJob, set_job_active, trigger_job},
    browser,
    components::{
        action::{UserAction, use_action},
        action_error::{ActionError, LastError},
        dialog::{Dialog, Impossible},
        fields::InputField,
        icon::{Icon, LiveIcon},
        toast::{ToastQueue, toasts},
    },
    error::AppError,
};

/// The class of a button with only an icon, for places with many buttons; its label is its accessible name and title.
pub const ICON_BUTTON_CLASS: &str = "icon-btn";

/// Runs a job now, with the input from its definition.
#[component]
pub fn RunNow(
    /// The job's id.
    id: JobId,
    /// The job's name, part of the button's accessible name.
    #[prop(into)]
    name: Signal<String>,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
    /// The button's CSS class.
    #[prop(default = "btn")]
    class: &'static str,
) -> impl IntoView {
    let toasts = toasts();
    let is_bare = class == ICON_BUTTON_CLASS;
    let action = use_action(error);
    let run = move |event: ev::SubmitEvent| {
        event.prevent_default();
        action.run(async move {
            let run = trigger_job(id, String::new(), String::new(), browser::random_key(), false).await?;
            let name = name.try_get_untracked().unwrap_or_default();
            toasts.show_run(format!("{name} is queued to run now."), run);
            Ok(None)
        });
    };
    view! {
        <form method="post" action=TriggerJob::PATH on:submit=run>
            <input type="hidden" name="id" value=id.to_string()/>
            <button
                type="submit"
                class=class
                aria-label=move || format!("Run now: {}", name.get())
                title=is_bare.then_some("Run now")
                aria-disabled=move || action.disabled()
            >
                <Icon name="play"/>
                {(!is_bare).then_some("Run now")}
            </button>
        </form>
    }
}

/// Pauses an active job or resumes a paused one, by an icon in a list. It asks for no confirmation, because either can be
/// undone.
#[component]
pub fn PauseOrResume(
    /// The job's id.
    id: JobId,
    /// The job's name.
    #[prop(into)]
    name: Signal<String>,
    /// True if the job is active.
    #[prop(into)]
    is_active: Signal<bool>,
    /// Shows the new state: before the answer, and again after it.
    #[prop(into)]
    on_change: Callback<ShownState>,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
    /// The address that a plain form returns to.
    #[prop(into)]
    back: String,
) -> impl IntoView {
    let change = ActiveChange::new(id, name, on_change, error);
    let toggle = move |event: ev::SubmitEvent| {
        event.prevent_default();
        change.start(!is_active.get_untracked());
    };
    let verb = move || if is_active.get() { "Pause" } else { "Resume" };
    view! {
        <form method="post" action=SetJobActive::PATH on:submit=toggle>
            <input type="hidden" name="id" value=id.to_string()/>
            <input type="hidden" name="active" value=move || (!is_active.get()).to_string()/>
            <input type="hidden" name="back" value=back/>
            <button
                type="submit"
                class=ICON_BUTTON_CLASS
                aria-label=move || format!("{}: {}", verb(), name.get())
                title=verb
                aria-disabled=move || change.action.disabled()
            >
                <LiveIcon name=Signal::derive(move || if is_active.get() { "pause" } else { "play" })/>
            </button>
        </form>
    }
}

/// The change of a job between active and paused, with the parts of the page that show its outcome.
#[derive(Clone, Copy)]
struct ActiveChange {
    id: JobId,
    name: Signal<String>,
    /// Shows the new state: before the answer, and again after it.
    on_change: Callback<ShownState>,
    /// The change that is shown before its answer, and its undo.
    action: UserAction,
    toasts: ToastQueue,
}

impl ActiveChange {
    fn new(id: JobId, name: Signal<String>, on_change: Callback<ShownState>, error: LastError) -> Self {
        Self { id, name, on_change, action: use_action(error), toasts: toasts() }
    }

    /// Shows a state before its answer or after it. The page may have been left.
    fn show(self, is_active: bool, is_answered: bool) {
        let _ = self.on_change.try_run(ShownState { is_active, is_answered });
    }

    /// Pauses or resumes the job without a reason, unless an earlier change has no answer. The page shows the new state
    /// before the answer.
    fn start(self, active: bool) {
        self.action.run(async move {
            self.show(active, false);
            let answer = self.send(active, String::new()).await;
            self.show(active == answer.is_ok(), true);
            answer
        });
    }

    /// Pauses or resumes the job, and offers to undo that.
    async fn send(self, active: bool, reason: String) -> Result<Option<String>, AppError> {
        let ended_reason = set_job_active(self.id, active, reason, String::new()).await?;
        let name = self.name.try_get_untracked().unwrap_or_default();
        let state = if active { "resumed" } else { "paused" };
        // The undo of a resume pauses the job for the same reason as before.
        let reason = ended_reason.unwrap_or_default();
        let undo = Callback::new(move |()| self.undo(active, reason.clone()));
        self.toasts.with_undo(format!("{name} is {state}."), undo);
        Ok(None)
    }

    /// Undoes the change to `active`.
    fn undo(self, active: bool, reason: String) {
        self.show(!active, false);
        self.action.undo(async move {
            let answer = set_job_active(self.id, !active, reason, String::new()).await;
            self.show(active != answer.is_ok(), true);
            answer.map(|_| None)
        });
    }
}

/// Pauses a job with a reason, or resumes it. With a script one button does both, so that the focus stays on it: it asks
/// for the reason in a dialog, or resumes. Without scripts the reason is asked in a section that unfolds.
#[component]
pub fn PauseWithReason(
    /// The job's id.
    id: JobId,
    /// The job's name.
    #[prop(into)]
    name: Signal<String>,
    /// True if the job is active.
    #[prop(into)]
    is_active: Signal<bool>,
    /// Shows the new state: before the answer, and again after it.
    #[prop(into)]
    on_change: Callback<ShownState>,
    /// The error of a resume or an undo, which the page shows near the button.
    error: LastError,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let pause_error = LastError::of("Pause job");
    let change = ActiveChange::new(id, name, on_change, error);
    let act = move |_| {
        if is_active.get_untracked() {
            pause_error.clear();
            open.set(true);
        } else {
            change.start(true);
        }
    };
    let resume_label = move || format!("Resume: {}", name.get());
    let plain = if is_active.get_untracked() {
        view! {
            <details class="hide-js">
                <summary>"Pause"</summary>
                <PauseForm field="plain-pause-reason" is_active open change error=pause_error/>
            </details>
        }
        .into_any()
    } else {
        view! {
            <form method="post" action=SetJobActive::PATH class="hide-js">
                <input type="hidden" name="id" value=id.to_string()/>
                <input type="hidden" name="active" value="true"/>
                <button type="submit" class="btn" aria-label=resume_label>
                    <Icon name="play"/>
                    "Resume"
                </button>
            </form>
        }
        .into_any()
    };
    view! {
        <button
            type="button"
            class="btn needs-js"
            aria-label=move || (!is_active.get()).then(resume_label)
            aria-disabled=move || change.action.disabled()
            on:click=act
        >
            <LiveIcon name=Signal::derive(move || if is_active.get() { "pause" } else { "play" })/>
            {move || if is_active.get() { "Pause…" } else { "Resume" }}
        </button>
        <Dialog open id="pause-title" title=Signal::derive(move || format!("Pause {}?", name.get()))>
            <ActionError error=pause_error/>
            <PauseForm field="pause-reason" is_active open change error=pause_error/>
        </Dialog>
        {plain}
    }
}

#[component]
fn PauseForm(
    /// The id of the reason field.
    field: &'static str,
    is_active: Signal<bool>,
    open: RwSignal<bool>,
    change: ActiveChange,
    /// The error of the last try, which the dialog shows above this form.
    error: LastError,
) -> impl IntoView {
    let reason = NodeRef::<html::Input>::new();
    let action = use_action(error);
    let pause = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let Some(reason) = reason.get_untracked() else { return };
        if !is_active.get_untracked() {
            return;
        }
        change.action.clear_error();
        // After an error the dialog stays open and keeps the reason.
        action.run(async move {
            change.send(false, reason.value()).await?;
            reason.set_value("");
            let _ = open.try_set(false);
            change.show(false, true);
            Ok(None)
        });
    };
    let impossible = Signal::derive(move || (!is_active.get()).then(|| "The job is paused already.".to_owned()));
    let is_disabled = move || (action.is_running() || !is_active.get()).then_some("true");
    view! {
        <form method="post" action=SetJobActive::PATH class="stack" data-guarded="true" on:submit=pause>
            <p>"The schedule starts no runs until the job is resumed. Runs that have already started continue. A manual run of a paused job needs “Run anyway”."</p>
            <input type="hidden" name="id" value=change.id.to_string()/>
            <input type="hidden" name="active" value="false"/>
            <InputField
                id=field
                name="reason"
                label="Reason"
                hint="At most 500 characters."
                optional=true
                maxlength="500"
                error=Signal::stored(None::<String>)
                node=reason
            />
            <Impossible reason=impossible/>
            <div class="dialog-actions">
                <button type="button" class="btn needs-js" on:click=move |_| open.set(false)>"Cancel"</button>
                <button type="submit" class="btn btn-primary" aria-disabled=is_disabled>
                    "Pause job"
                </button>
            </div>
        </form>
    }
}
