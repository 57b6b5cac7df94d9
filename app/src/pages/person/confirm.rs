//! An action that is confirmed in a dialog, or without scripts in a section that unfolds.

use leptos::prelude::*;

use super::PersonState;
use crate::components::dialog::Dialog;

/// A button that asks in a dialog before it acts. Without scripts the same text and a plain form unfold below it. The
/// initial focus of the dialog is on the button that changes nothing.
#[component]
pub fn ConfirmedAction(
    /// The page's user.
    person: PersonState,
    /// The id of the dialog's heading, unique on the page.
    id: &'static str,
    /// The label of the button that opens the dialog: "Deactivate…".
    label: &'static str,
    /// The question.
    #[prop(into)]
    title: Signal<String>,
    /// The label of the confirming button.
    verb: &'static str,
    /// The class of the confirming button.
    #[prop(default = "btn btn-danger")]
    class: &'static str,
    /// The address of the server function.
    path: &'static str,
    /// The further fields of the plain form.
    #[prop(optional)]
    fields: Vec<(&'static str, &'static str)>,
    /// Called after the dialog has closed with a confirmation.
    #[prop(into)]
    on_confirm: Callback<()>,
    /// The consequences of the action.
    children: ChildrenFn,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let confirm = move |_| {
        open.set(false);
        on_confirm.run(());
    };
    let in_dialog = children.clone();
    let fields: Vec<_> =
        fields.into_iter().map(|(name, value)| view! { <input type="hidden" name=name value=value/> }).collect();
    view! {
        <button
            type="button"
            class="btn needs-js"
            aria-disabled=move || person.busy.disabled()
            on:click=move |_| person.busy.ask(open)
        >
            {label}
        </button>
        <details class="hide-js">
            <summary>{label}</summary>
            <form method="post" action=path class="stack">
                <input type="hidden" name="id" value=person.id.to_string()/>
                {fields}
                {children()}
                <div class="form-actions">
                    <button type="submit" class=class>{verb}</button>
                </div>
            </form>
        </details>
        <Dialog open id title>
            <div class="stack">{move || open.get().then(|| in_dialog())}</div>
            <div class="dialog-actions">
                <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>"Cancel"</button>
                <button type="button" class=class on:click=confirm>{verb}</button>
            </div>
        </Dialog>
    }
}

/// A button of an action that is not possible now, with the reason.
#[component]
pub fn ImpossibleAction(
    /// The id of the reason, unique on the page.
    id: &'static str,
    /// The label of the button.
    label: &'static str,
    /// The reason and the remedy.
    reason: &'static str,
) -> impl IntoView {
    view! {
        <div class="cluster">
            <button type="button" class="btn" aria-disabled="true" aria-describedby=id>{label}</button>
            <p class="muted" id=id>{reason}</p>
        </div>
    }
}
