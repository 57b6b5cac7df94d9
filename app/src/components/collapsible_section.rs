//! What most people never open: a part of a form behind a line that says what is in it.

use leptos::prelude::*;

use super::input_form::FormState;

/// A folded part of a job form. It opens by itself when something in it is wrong: an error that is folded away cannot be
/// found.
#[component]
pub fn CollapsibleSection(
    /// The form it is in.
    state: FormState,
    /// Every field in it.
    fields: &'static [&'static str],
    /// True to begin open, as when something in it is not as usual.
    #[prop(optional)]
    is_open: bool,
    /// What is in it.
    summary: &'static str,
    /// The fields.
    children: Children,
) -> impl IntoView {
    let starts_open = is_open || untrack(|| state.is_wrong(fields));
    let folded = NodeRef::<leptos::html::Details>::new();
    Effect::new(move |_| {
        let hidden = state.shows_all.get() && state.is_wrong(fields);
        if hidden && let Some(details) = folded.get() {
            details.set_open(true);
        }
    });
    view! {
        <details open=starts_open node_ref=folded>
            <summary>{summary}</summary>
            <div class="stack">{children()}</div>
        </details>
    }
}
