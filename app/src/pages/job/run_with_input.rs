//! Runs a job once with another input than that of its definition.

use leptos::{ev, html, prelude::*, server_fn::ServerFn};
use milvaion_api::requests::FieldError;
use milvaion_protocol::id::JobId;

use crate::{
    api::{
        jobs::{TriggerJob, trigger_job},
        session::FlashView,
    },
    browser,
    components::{
        action::{ErrorPlace, UserAction},
        dialog::Dialog,
        fields::{InputField, TextareaField},
        form::ErrorSummary,
        icon::Icon,
        input_form::{LastInputButton, error_of, other_errors},
        toast::toasts,
    },
};

/// Runs a job once with a different input, typed in a dialog. Without scripts the form is a section of the page, reached
/// by a link.
#[component]
pub fn RunWithInput(
    /// The job's id.
    id: JobId,
    /// The job's name.
    #[prop(into)]
    name: Signal<String>,
    /// The input from the job's definition, from which the text of the field starts.
    #[prop(into)]
    current: Signal<String>,
    /// The input of an earlier run to run again with. The dialog is then open from the start.
    again: Option<String>,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let is_asked = again.is_some();
    Effect::new(move |_| {
        if is_asked {
            open.set(true);
            // A reload and a later return to this page do not ask again.
            browser::replace_address(&format!("/jobs/{id}"));
        }
    });
    let input = again.unwrap_or_else(|| current.get_untracked());
    view! {
        <button type="button" class="btn needs-js" on:click=move |_| open.set(true)>
            <Icon name="play"/>
            "Run with different input…"
        </button>
        <a class="btn hide-js" href=format!("/jobs/{id}?confirm=run#run-with-input")>
            <Icon name="play"/>
            "Run with different input…"
        </a>
        <Dialog open id="run-with-title" title=Signal::derive(move || format!("Run {} with different input", name.get()))>
            <RunForm
                prefix="run"
                id
                name
                current
                text=input
                is_of_run=is_asked
                reason=String::new()
                before=Vec::new()
                open
            />
        </Dialog>
    }
}

/// The form as a section of the page, for readers without scripts.
#[component]
pub fn RunWithInputSection(
    /// The job's id.
    id: JobId,
    /// The job's name.
    #[prop(into)]
    name: Signal<String>,
    /// The input from the job's definition, from which the text of the field starts.
    #[prop(into)]
    current: Signal<String>,
    /// The input and errors that a plain form left behind.
    flash: FlashView,
    /// The input of an earlier run to run again with.
    again: Option<String>,
) -> impl IntoView {
    let (typed, reason) = (flash.typed("input_json"), flash.typed("reason"));
    let is_of_run = typed.is_empty() && again.is_some();
    let text = if typed.is_empty() { again.unwrap_or_else(|| current.get_untracked()) } else { typed };
    view! {
        <section class="card stack hide-js" id="run-with-input" aria-labelledby="run-with-input-heading">
            <h2 id="run-with-input-heading">{format!("Run {} with different input", name.get_untracked())}</h2>
            <RunForm
                prefix="plain-run"
                id
                name
                current
                text
                is_of_run
                reason
                before=flash.fields
                open=RwSignal::new(false)
            />
        </section>
    }
}

#[component]
fn RunForm(
    prefix: &'static str,
    id: JobId,
    name: Signal<String>,
    current: Signal<String>,
    /// The initial text of the field.
    text: String,
    /// True if the text is the input of an earlier run.
    is_of_run: bool,
    reason: String,
    before: Vec<FieldError>,
    open: RwSignal<bool>,
) -> impl IntoView {
    let toasts = toasts();
    let wrong = RwSignal::new(before);
    let whole = other_errors(wrong, &["input_json", "reason"]);
    let input = NodeRef::<html::Textarea>::new();
    let why = NodeRef::<html::Input>::new();
    let force = NodeRef::<html::Input>::new();
    let action = UserAction::new(ErrorPlace::Fields(wrong));
    let is_of_run = RwSignal::new(is_of_run);
    // The input of the definition when the text was filled in.
    let filled = RwSignal::new(current.get_untracked());
    let fill = move || {
        let Some(input) = input.get_untracked() else { return };
        let text = current.get_untracked();
        // The guard of the page's forms compares with the default. Setting it never fails.
        let _ = input.set_default_value(&text);
        input.set_value(&text);
        filled.set(text);
        is_of_run.set(false);
    };
    // One idempotency key for as long as the dialog is open: a call repeated after a lost response must not run twice.
    let key = StoredValue::new(String::new());
    Effect::new(move || {
        if open.get() {
            key.set_value(browser::random_key());
            // The job may have been changed since the page was loaded. Typed text stays.
            let is_own = !is_of_run.get_untracked();
            if is_own
                && input.get_untracked().is_some_and(|input| filled.with_untracked(|filled| input.value() == *filled))
            {
                fill();
            }
        }
    });
    let input_id = format!("{prefix}-input");
    let (focus_id, last_id) = (input_id.clone(), input_id.clone());
    let is_changed = Memo::new(move |_| current.with(|current| filled.with(|filled| filled != current)));
    let use_current = move |_: ev::MouseEvent| {
        // The button disappears.
        browser::focus(&format!("{prefix}-input"));
        fill();
    };
    let changed = move || {
        let reason = if is_of_run.get() {
            Some("This is the input of an earlier run.")
        } else {
            is_changed.get().then_some("The input of the job was changed after this text was filled in.")
        };
        reason.map(|reason| {
            view! {
                <div class="notice" data-kind="info">
                    <Icon name="info"/>
                    <p>{reason}</p>
                    <button type="button" class="btn btn-small" on:click=use_current>"Use the input of the job"</button>
                </div>
            }
        })
    };
    // The guard of the page's forms listens to typed text.
    let insert_last = Callback::new(move |data: serde_json::Value| {
        browser::type_value(&last_id, &serde_json::to_string_pretty(&data).unwrap_or_default());
    });
    let run = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let (Some(input), Some(why)) = (input.get_untracked(), why.get_untracked()) else { return };
        let focus_id = focus_id.clone();
        let force = force.get_untracked().is_some_and(|force| force.checked());
        action.run(async move {
            let key = key.try_get_value().unwrap_or_default();
            let run = trigger_job(id, input.value(), why.value(), key, force).await;
            let run = run.inspect_err(|_| browser::focus(&focus_id))?;
            let _ = open.try_set(false);
            let name = name.try_get_untracked().unwrap_or_default();
            toasts.show_run(format!("{name} is queued to run now with this input."), run);
            Ok(None)
        });
    };
    view! {
        <form method="post" action=TriggerJob::PATH class="stack" data-guarded="true" on:submit=run>
            <ErrorSummary errors=whole/>
            <input type="hidden" name="id" value=id.to_string()/>
            <TextareaField
                id=input_id
                name="input_json"
                label="Input as JSON"
                hint="Used for this run only; the job keeps its own input."
                text
                error=error_of(wrong.into(), "input_json")
                rows="8"
                node=input
            />
            <div role="status">{changed}</div>
            <LastInputButton job=id on_input=insert_last/>
            <InputField
                id=format!("{prefix}-reason")
                name="reason"
                label="Reason"
                hint="Stored with the occurrence; at most 500 characters."
                optional=true
                maxlength="500"
                value=reason
                error=error_of(wrong.into(), "reason")
                node=why
            />
            <label>
                <input type="checkbox" name="force" value="true" node_ref=force/>
                " Run anyway, even if the job or all schedules are paused or the previous run is still open"
            </label>
            <div class="dialog-actions">
                <button type="button" class="btn needs-js" on:click=move |_| open.set(false)>"Cancel"</button>
                <button type="submit" class="btn btn-primary" aria-disabled=move || action.disabled()>
                    <Icon name="play"/>
                    "Run"
                </button>
            </div>
        </form>
    }
}
