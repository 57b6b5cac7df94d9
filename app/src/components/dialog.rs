//! Dialogs on the browser's own element: focus stays inside, Escape closes, and the focus returns where it came from,
//! none of which is ours to get wrong.

use leptos::{ev, html, prelude::*};

/// A dialog that follows a signal.
#[component]
pub fn Dialog(
    /// Whether it is open. Set to false when the reader closes it.
    open: RwSignal<bool>,
    /// The heading's id, unique on the page.
    #[prop(into)]
    id: String,
    /// The heading.
    #[prop(into)]
    title: Signal<String>,
    /// What it says.
    children: Children,
) -> impl IntoView {
    let heading = id.clone();
    let node = NodeRef::<html::Dialog>::new();
    Effect::new(move |_| {
        let wanted = open.get();
        let Some(dialog) = node.get() else { return };
        if wanted && !dialog.open() {
            // It refuses only when it is not in the document, and then there is nobody to show it to.
            let _ = dialog.show_modal();
        } else if !wanted && dialog.open() {
            dialog.close();
        }
    });
    view! {
        <dialog class="dialog" node_ref=node aria-labelledby=heading on:close=move |_: ev::Event| open.set(false)>
            <h2 id=id>{move || title.get()}</h2>
            {children()}
        </dialog>
    }
}

/// Asks before something that cannot be taken back. The focus begins on the button that leaves all as it is; the other
/// says the verb.
#[component]
pub fn ConfirmDialog(
    /// Whether it is open.
    open: RwSignal<bool>,
    /// Its id, unique on the page.
    #[prop(into)]
    id: String,
    /// What is asked, naming the object: "Delete job nightly-report?".
    #[prop(into)]
    title: Signal<String>,
    /// What the button does: "Delete job".
    #[prop(into)]
    verb: String,
    /// What the button says that does nothing. Where the verb is to cancel, "Cancel" would mean both.
    #[prop(default = "Cancel")]
    otherwise: &'static str,
    /// Runs when the reader agrees; the dialog is closed by then.
    #[prop(into)]
    on_confirm: Callback<()>,
    /// What will happen.
    children: Children,
) -> impl IntoView {
    let agree = move |_| {
        open.set(false);
        on_confirm.run(());
    };
    view! {
        <Dialog open id title>
            {children()}
            <div class="dialog-actions">
                <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>{otherwise}</button>
                <button type="button" class="btn btn-danger" on:click=agree>{verb}</button>
            </div>
        </Dialog>
    }
}
