//! What can be done with a job and taken back: run it, pause it, resume it.
//!
//! Each is a plain form that works by itself. A script takes the form's place: it calls the same function, keeps the page,
//! and tells the outcome in a notice.

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
        dialog::Dialog,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{error_of, problems, textarea_html},
        toast::{ToastKind, toasts},
    },
};

/// A button that is only an icon, for where there are many; its words are its name and its title.
pub const ICON_BUTTON_CLASS: &str = "icon-btn";

/// Runs a job now, with its own input.
#[component]
pub fn RunNow(
    /// Which.
    id: JobId,
    /// Its name, for those who cannot see where the button stands.
    #[prop(into)]
    name: Signal<String>,
    /// How the button looks.
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
        spawn_local(async move {
            let answer = trigger_job(id, String::new(), String::new(), browser::random_key(), false).await;
            let _ = is_busy.try_set(false);
            let name = name.try_get_untracked().unwrap_or_default();
            match answer {
                Ok(_) => toasts.show(ToastKind::Success, format!("{name} is queued to run now.")),
                Err(error) => toasts.show(ToastKind::Error, error.to_string()),
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

/// Pauses an active job, resumes a paused one; at once, since either can be taken back.
#[component]
pub fn PauseOrResume(
    /// Which.
    id: JobId,
    /// Its name.
    #[prop(into)]
    name: Signal<String>,
    /// Whether it is active; set when that changes.
    #[prop(into)]
    is_active: Signal<bool>,
    /// Hears what it became.
    #[prop(into)]
    on_change: Callback<bool>,
    /// Where a plain form is led back to.
    #[prop(into)]
    back: String,
    /// How the button looks.
    #[prop(default = "btn")]
    class: &'static str,
) -> impl IntoView {
    let change = change_active(id, name, on_change);
    let toggle = move |event: ev::SubmitEvent| {
        event.prevent_default();
        change.run((!is_active.get_untracked(), String::new()));
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
                <svg class="icon" aria-hidden="true" focusable="false">
                    <use href=move || format!("/pkg/icons.svg#{}", if is_active.get() { "pause" } else { "play" })></use>
                </svg>
                {move || (!is_bare).then(verb)}
            </button>
        </form>
    }
}

/// A call that pauses or resumes, with a reason, and offers to take it back.
fn change_active(id: JobId, name: Signal<String>, on_change: Callback<bool>) -> Callback<(bool, String)> {
    let toasts = toasts();
    Callback::new(move |(active, reason): (bool, String)| {
        on_change.run(active);
        spawn_local(async move {
            let answer = set_job_active(id, active, reason, String::new()).await;
            let name = name.try_get_untracked().unwrap_or_default();
            match answer {
                Ok(()) => {
                    let undo = Callback::new(move |()| {
                        let _ = on_change.try_run(!active);
                        spawn_local(async move {
                            if let Err(error) = set_job_active(id, !active, String::new(), String::new()).await {
                                let _ = on_change.try_run(active);
                                toasts.show(ToastKind::Error, error.to_string());
                            }
                        });
                    });
                    let what = if active { "resumed" } else { "paused" };
                    toasts.with_undo(format!("{name} is {what}."), undo);
                }
                Err(error) => {
                    let _ = on_change.try_run(!active);
                    toasts.show(ToastKind::Error, error.to_string());
                }
            }
        });
    })
}

/// Pauses a job and says why: in a dialog, or without scripts below a line that opens.
#[component]
pub fn PauseWithReason(
    /// Which.
    id: JobId,
    /// Its name.
    #[prop(into)]
    name: Signal<String>,
    /// Hears what it became.
    #[prop(into)]
    on_change: Callback<bool>,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let change = change_active(id, name, on_change);
    view! {
        <button type="button" class="btn needs-js" on:click=move |_| open.set(true)>
            <Icon name="pause"/>
            "Pause…"
        </button>
        <Dialog open id="pause-title" title=Signal::derive(move || format!("Pause {}?", name.get()))>
            <PauseForm field="pause-reason" id open change/>
        </Dialog>
        <details class="hide-js">
            <summary>"Pause"</summary>
            <PauseForm field="plain-pause-reason" id open change/>
        </details>
    }
}

#[component]
fn PauseForm(
    /// The id of its only field.
    field: &'static str,
    id: JobId,
    open: RwSignal<bool>,
    change: Callback<(bool, String)>,
) -> impl IntoView {
    let reason = NodeRef::<html::Input>::new();
    let pause = move |event: ev::SubmitEvent| {
        event.prevent_default();
        open.set(false);
        change.run((false, reason.get_untracked().map(|reason| reason.value()).unwrap_or_default()));
    };
    view! {
        <form method="post" action=SetJobActive::PATH class="stack" on:submit=pause>
            <p>"Its schedule stops until somebody resumes it. What runs already goes on. Running it by hand then takes “Run anyway”."</p>
            <input type="hidden" name="id" value=id.to_string()/>
            <input type="hidden" name="active" value="false"/>
            <FormField id=field label="Reason" optional=true error=Signal::stored(None::<String>)>
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
                <button type="submit" class="btn btn-primary">"Pause job"</button>
            </div>
        </form>
    }
}

/// Runs a job once with another input: in a dialog, or without scripts below a line that opens.
#[component]
pub fn RunWithInput(
    /// Which.
    id: JobId,
    /// Its name.
    #[prop(into)]
    name: Signal<String>,
    /// The job's own input, to begin with.
    input_json: String,
    /// What a plain form left.
    flash: FlashView,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let was_refused = !flash.fields.is_empty();
    let typed = flash.typed("input_json");
    let plain_input = if typed.is_empty() { input_json.clone() } else { typed };
    let reason = flash.typed("reason");
    view! {
        <button type="button" class="btn needs-js" on:click=move |_| open.set(true)>
            "Run with other input…"
        </button>
        <Dialog open id="run-with-title" title=Signal::derive(move || format!("Run {} with other input", name.get()))>
            <RunForm prefix="run" id name input_json reason=String::new() before=Vec::new() open/>
        </Dialog>
        <details class="hide-js" open=was_refused>
            <summary>"Run with other input"</summary>
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
    // One wish for as long as the dialog is open: sent again after a lost answer, it must not run twice.
    let key = StoredValue::new(String::new());
    Effect::new(move || {
        if open.get() {
            key.set_value(browser::random_key());
        }
    });
    let (input_id, reason_id) = (format!("{prefix}-input"), format!("{prefix}-reason"));
    let focus_id = input_id.clone();
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
        <form method="post" action=TriggerJob::PATH class="stack" on:submit=run>
            <ErrorSummary errors=whole/>
            <input type="hidden" name="id" value=id.to_string()/>
            <FormField id=input_id.clone() label="Input as JSON" hint="For this one occurrence. The job itself stays as it is." error=input_error>
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
            <FormField id=reason_id.clone() label="Reason" hint="Kept with the occurrence." optional=true error=reason_error>
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
                " Run anyway: even if the job is paused or its previous run is still open"
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
