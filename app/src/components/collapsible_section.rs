//! A collapsible section of a form, for rarely used settings.

use leptos::prelude::*;

use super::input_form::FormState;

/// A collapsible section of a job form. It opens by itself if one of its fields is invalid, because a hidden error
/// cannot be found.
#[component]
pub fn CollapsibleSection(
    /// The state of the enclosing form.
    state: FormState,
    /// The names of all fields in it.
    fields: &'static [&'static str],
    /// True to start open, for a section whose fields differ from their defaults.
    #[prop(optional)]
    is_open: bool,
    /// The label of the section.
    summary: &'static str,
    /// The fields.
    children: Children,
) -> impl IntoView {
    let starts_open = is_open || untrack(|| state.is_wrong(fields));
    let details = NodeRef::<leptos::html::Details>::new();
    Effect::new(move |_| {
        let has_error = state.shows_all.get() && state.is_wrong(fields);
        if has_error && let Some(details) = details.get() {
            details.set_open(true);
        }
    });
    view! {
        <details open=starts_open node_ref=details>
            <summary>{summary}</summary>
            <div class="stack">{children()}</div>
        </details>
    }
}
