//! Dialogs based on the browser's `<dialog>` element, which keeps the focus inside, closes on Escape and returns the
//! focus afterwards.

use leptos::{ev, html, prelude::*};

use super::session_end::DialogSessionEndNotice;

/// A modal dialog controlled by a signal.
#[component]
pub fn Dialog(
    /// True while the dialog is open. Set to false when the user closes it.
    open: RwSignal<bool>,
    /// The heading's id, unique on the page.
    #[prop(into)]
    id: String,
    /// The heading.
    #[prop(into)]
    title: Signal<String>,
    /// The contents.
    children: Children,
) -> impl IntoView {
    let heading = id.clone();
    let node = NodeRef::<html::Dialog>::new();
    Effect::new(move |_| {
        let wanted = open.get();
        let Some(dialog) = node.get() else { return };
        if wanted && !dialog.open() {
            // Fails only if the element is not in the document, and then it is not visible.
            let _ = dialog.show_modal();
        } else if !wanted && dialog.open() {
            dialog.close();
        }
    });
    view! {
        <dialog class="dialog" node_ref=node aria-labelledby=heading on:close=move |_: ev::Event| open.set(false)>
            <DialogSessionEndNotice open/>
            <h2 id=id>{move || title.get()}</h2>
            {children()}
        </dialog>
    }
}

/// A dialog that asks for confirmation of an irreversible action. The initial focus is on the button that changes
/// nothing; the other button is labeled with the action's verb.
#[component]
pub fn ConfirmDialog(
    /// True while the dialog is open.
    open: RwSignal<bool>,
    /// The heading's id, unique on the page.
    #[prop(into)]
    id: String,
    /// The question with the object's name: "Delete job nightly-report?".
    #[prop(into)]
    title: Signal<String>,
    /// The label of the confirming button: "Delete job".
    #[prop(into)]
    verb: String,
    /// The label of the button that changes nothing. Must differ from "Cancel" if the verb is to cancel.
    #[prop(default = "Cancel")]
    otherwise: &'static str,
    /// Called after the dialog has closed with a confirmation.
    #[prop(into)]
    on_confirm: Callback<()>,
    /// The consequences of the action.
    children: Children,
) -> impl IntoView {
    let confirm = move |_| {
        open.set(false);
        on_confirm.run(());
    };
    view! {
        <Dialog open id title>
            {children()}
            <div class="dialog-actions">
                <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>{otherwise}</button>
                <button type="button" class="btn btn-danger" on:click=confirm>{verb}</button>
            </div>
        </Dialog>
    }
}
