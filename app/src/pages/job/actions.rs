//! The reversible actions on a job: run, pause, resume.
//!
//! Each is a plain form that works without a script. A script takes the form over: it calls the same server function,
//! stays on the page, shows a success in a toast, and shows an error at the place of the action.

use leptos::{ev, html, prelude::*, server_fn::ServerFn, task::spawn_local};
use milvaion_api::requests::FieldError;
use milvaion_protocol::id::JobId;

use crate::{
    api::{
        jobs::{SetJobActive, TriggerJob, set_job_active, trigger_job},
        session::FlashView,
    },
    browser,
    components::{
        action_error::{ActionError, LastError},
        dialog::Dialog,
        form::{ErrorSummary, FormField, described_by},
        icon::{Icon, LiveIcon},
        input_form::{LastInputButton, error_of, problems, textarea_html},
        toast::{ToastKind, ToastQueue, toasts},
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
    let is_busy = RwSignal::new(false);
    let run = move |event: ev::SubmitEvent| {
        event.prevent_default();
        if is_busy.get_untracked() {
            return;
        }
        is_busy.set(true);
        error.clear();
        spawn_local(async move {
            let answer = trigger_job(id, String::new(), String::new(), browser::random_key(), false).await;
            let _ = is_busy.try_set(false);
            match answer {
                Ok(_) => {
                    let name = name.try_get_untracked().unwrap_or_default();
                    toasts.show(ToastKind::Success, format!("{name} is queued to run now."));
                }
                Err(found) => error.show(found),
            }
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
                aria-disabled=move || is_busy.get().then_some("true")
            >
                <Icon name="play"/>
                {(!is_bare).then_some("Run now")}
            </button>
        </form>
    }
}

/// Pauses an active job or resumes a paused one. It asks for no confirmation, because either can be undone.
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
    /// Called with the new state.
    #[prop(into)]
    on_change: Callback<bool>,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
    /// The address that a plain form returns to.
    #[prop(into)]
    back: String,
    /// The button's CSS class.
    #[prop(default = "btn")]
    class: &'static str,
) -> impl IntoView {
    let change = ActiveChange::new(id, name, on_change, error);
    let toggle = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let active = !is_active.get_untracked();
        error.clear();
        on_change.run(active);
        spawn_local(async move {
            if let Err(found) = change.send(active, String::new()).await {
                let _ = on_change.try_run(!active);
                error.show(found);
            }
        });
    };
    let is_bare = class == ICON_BUTTON_CLASS;
    let verb = move || if is_active.get() { "Pause" } else { "Resume" };
    view! {
        <form method="post" action=SetJobActive::PATH on:submit=toggle>
            <input type="hidden" name="id" value=id.to_string()/>
            <input type="hidden" name="active" value=move || (!is_active.get()).to_string()/>
            <input type="hidden" name="back" value=back/>
            <button
                type="submit"
                class=class
                aria-label=move || format!("{}: {}", verb(), name.get())
                title=move || is_bare.then(verb)
            >
                <LiveIcon name=Signal::derive(move || if is_active.get() { "pause" } else { "play" })/>
                {move || (!is_bare).then(verb)}
            </button>
        </form>
    }
}

/// The change of a job between active and paused, with the parts of the page that show its outcome.
#[derive(Clone, Copy)]
struct ActiveChange {
    id: JobId,
    name: Signal<String>,
    /// Called with the new state.
    on_change: Callback<bool>,
    /// The error of an undo.
    error: LastError,
    toasts: ToastQueue,
}

impl ActiveChange {
    fn new(id: JobId, name: Signal<String>, on_change: Callback<bool>, error: LastError) -> Self {
        Self { id, name, on_change, error, toasts: toasts() }
    }

    /// Pauses or resumes the job, and offers to undo that.
    async fn send(self, active: bool, reason: String) -> Result<(), AppError> {
        let ended_reason = set_job_active(self.id, active, reason, String::new()).await?;
        let name = self.name.try_get_untracked().unwrap_or_default();
        let state = if active { "resumed" } else { "paused" };
        // The undo of a resume pauses the job for the same reason as before.
        let reason = ended_reason.unwrap_or_default();
        let undo = Callback::new(move |()| self.undo(active, reason.clone()));
        self.toasts.with_undo(format!("{name} is {state}."), undo);
        Ok(())
    }

    /// Undoes the change to `active`.
    fn undo(self, active: bool, reason: String) {
        let _ = self.on_change.try_run(!active);
        self.error.clear();
        spawn_local(async move {
            if let Err(error) = set_job_active(self.id, !active, reason, String::new()).await {
                let _ = self.on_change.try_run(active);
                self.error.show(error);
            }
        });
    }
}

/// Pauses a job with a reason: in a dialog, or without scripts in a section that unfolds.
#[component]
pub fn PauseWithReason(
    /// The job's id.
    id: JobId,
    /// The job's name.
    #[prop(into)]
    name: Signal<String>,
    /// Called with the new state.
    #[prop(into)]
    on_change: Callback<bool>,
    /// The error of an undo, which the page shows near the button.
    undo_error: LastError,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let error = LastError::of("Pause job");
    let change = ActiveChange::new(id, name, on_change, undo_error);
    let ask = move |_| {
        error.clear();
        open.set(true);
    };
    view! {
        <button type="button" class="btn needs-js" on:click=ask>
            <Icon name="pause"/>
            "Pause…"
        </button>
        <Dialog open id="pause-title" title=Signal::derive(move || format!("Pause {}?", name.get()))>
            <ActionError error/>
            <PauseForm field="pause-reason" open change error/>
        </Dialog>
        <details class="hide-js">
            <summary>"Pause"</summary>
            <PauseForm field="plain-pause-reason" open change error/>
        </details>
    }
}

#[component]
fn PauseForm(
    /// The id of the reason field.
    field: &'static str,
    open: RwSignal<bool>,
    change: ActiveChange,
    /// The error of the last try, which the dialog shows above this form.
    error: LastError,
) -> impl IntoView {
    let reason = NodeRef::<html::Input>::new();
    let is_busy = RwSignal::new(false);
    let pause = move |event: ev::SubmitEvent| {
        event.prevent_default();
        if is_busy.get_untracked() {
            return;
        }
        is_busy.set(true);
        error.clear();
        change.error.clear();
        let reason = reason.get_untracked().map(|reason| reason.value()).unwrap_or_default();
        spawn_local(async move {
            let answer = change.send(false, reason).await;
            let _ = is_busy.try_set(false);
            match answer {
                Ok(()) => {
                    let _ = open.try_set(false);
                    let _ = change.on_change.try_run(false);
                }
                // The dialog stays open and keeps the reason.
                Err(found) => error.show(found),
            }
        });
    };
    view! {
        <form method="post" action=SetJobActive::PATH class="stack" data-guarded="true" on:submit=pause>
            <p>"The schedule starts no runs until the job is resumed. Runs that have already started continue. A manual run of a paused job needs “Run anyway”."</p>
            <input type="hidden" name="id" value=change.id.to_string()/>
            <input type="hidden" name="active" value="false"/>
            <FormField id=field label="Reason" hint="At most 500 characters." optional=true error=Signal::stored(None::<String>)>
                <input
                    type="text"
                    id=field
                    name="reason"
                    maxlength="500"
                    autocomplete="off"
                    aria-describedby=described_by(field)
                    node_ref=reason
                />
            </FormField>
            <div class="dialog-actions">
                <button type="button" class="btn needs-js" on:click=move |_| open.set(false)>"Cancel"</button>
                <button type="submit" class="btn btn-primary" aria-disabled=move || is_busy.get().then_some("true")>
                    "Pause job"
                </button>
            </div>
        </form>
    }
}

/// Runs a job once with a different input: in a dialog, or without scripts in a section that unfolds.
#[component]
pub fn RunWithInput(
    /// The job's id.
    id: JobId,
    /// The job's name.
    #[prop(into)]
    name: Signal<String>,
    /// The input from the job's definition; the initial text of the field.
    input_json: String,
    /// The input and errors that a plain form left behind.
    flash: FlashView,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let was_refused = !flash.fields.is_empty();
    let typed = flash.typed("input_json");
    let plain_input = if typed.is_empty() { input_json.clone() } else { typed };
    let reason = flash.typed("reason");
    view! {
        <button type="button" class="btn needs-js" on:click=move |_| open.set(true)>
            "Run with different input…"
        </button>
        <Dialog open id="run-with-title" title=Signal::derive(move || format!("Run {} with different input", name.get()))>
            <RunForm prefix="run" id name input_json reason=String::new() before=Vec::new() open/>
        </Dialog>
        <details class="hide-js" open=was_refused>
            <summary>"Run with different input"</summary>
            <RunForm prefix="plain-run" id name input_json=plain_input reason before=flash.fields open/>
        </details>
    }
}

#[component]
fn RunForm(
    prefix: &'static str,
    id: JobId,
    name: Signal<String>,
    input_json: String,
    reason: String,
    before: Vec<FieldError>,
    open: RwSignal<bool>,
) -> impl IntoView {
    let toasts = toasts();
    let wrong = RwSignal::new(before);
    let input_error = error_of(wrong.into(), "input_json");
    let reason_error = error_of(wrong.into(), "reason");
    let whole = Signal::derive(move || {
        let whole = wrong.get().into_iter().filter(|error| !matches!(error.field.as_str(), "input_json" | "reason"));
        whole.map(|error| (String::new(), error.message)).collect::<Vec<_>>()
    });
    let input = NodeRef::<html::Textarea>::new();
    let why = NodeRef::<html::Input>::new();
    let force = NodeRef::<html::Input>::new();
    let is_busy = RwSignal::new(false);
    // One idempotency key for as long as the dialog is open: a call repeated after a lost response must not run twice.
    let key = StoredValue::new(String::new());
    Effect::new(move || {
        if open.get() {
            key.set_value(browser::random_key());
        }
    });
    let (input_id, reason_id) = (format!("{prefix}-input"), format!("{prefix}-reason"));
    let (focus_id, last_id) = (input_id.clone(), input_id.clone());
    // The guard of the page's forms listens to typed text.
    let insert_last = Callback::new(move |data: serde_json::Value| {
        browser::type_value(&last_id, &serde_json::to_string_pretty(&data).unwrap_or_default());
    });
    let run = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let (Some(input), Some(why)) = (input.get_untracked(), why.get_untracked()) else { return };
        if is_busy.get_untracked() {
            return;
        }
        is_busy.set(true);
        let focus_id = focus_id.clone();
        let force = force.get_untracked().is_some_and(|force| force.checked());
        spawn_local(async move {
            let key = key.try_get_value().unwrap_or_default();
            let answer = trigger_job(id, input.value(), why.value(), key, force).await;
            let _ = is_busy.try_set(false);
            match answer {
                Ok(_) => {
                    let _ = wrong.try_set(Vec::new());
                    let _ = open.try_set(false);
                    let name = name.try_get_untracked().unwrap_or_default();
                    toasts.show(ToastKind::Success, format!("{name} is queued to run now with this input."));
                }
                Err(error) => {
                    let _ = wrong.try_set(problems(&error));
                    browser::focus(&focus_id);
                }
            }
        });
    };
    view! {
        <form method="post" action=TriggerJob::PATH class="stack" data-guarded="true" on:submit=run>
            <ErrorSummary errors=whole/>
            <input type="hidden" name="id" value=id.to_string()/>
            <FormField id=input_id.clone() label="Input as JSON" hint="Used for this run only; the job keeps its own input." error=input_error>
                <textarea
                    id=input_id.clone()
                    name="input_json"
                    class="input-mono"
                    rows="8"
                    spellcheck="false"
                    autocapitalize="off"
                    aria-describedby=described_by(&input_id)
                    aria-invalid=move || input_error.get().is_some().then_some("true")
                    node_ref=input
                    inner_html=textarea_html(&input_json)
                ></textarea>
            </FormField>
            <LastInputButton job=id on_input=insert_last/>
            <FormField id=reason_id.clone() label="Reason" hint="Stored with the occurrence; at most 500 characters." optional=true error=reason_error>
                <input
                    type="text"
                    id=reason_id.clone()
                    name="reason"
                    maxlength="500"
                    value=reason
                    autocomplete="off"
                    aria-describedby=described_by(&reason_id)
                    aria-invalid=move || reason_error.get().is_some().then_some("true")
                    node_ref=why
                />
            </FormField>
            <label>
                <input type="checkbox" name="force" value="true" node_ref=force/>
                " Run anyway, even if the job or all schedules are paused or the previous run is still open"
            </label>
            <div class="dialog-actions">
                <button type="button" class="btn needs-js" on:click=move |_| open.set(false)>"Cancel"</button>
                <button type="submit" class="btn btn-primary" aria-disabled=move || is_busy.get().then_some("true")>
                    <Icon name="play"/>
                    "Run"
                </button>
            </div>
        </form>
    }
}
