//! Form fields with their label, hint and error associated for assistive technology, and the error summary of a form.

use leptos::prelude::*;

use super::{action_error::error_text, icon::Icon};
use crate::browser;

/// Returns the value of `aria-describedby` for the control of a [`FormField`] with this id. Both referenced elements
/// exist from the start, so that an error that appears later is announced.
#[must_use]
pub fn described_by(id: &str) -> String {
    format!("{id}-hint {id}-error")
}

/// Calls `adopt` once with the checked radio button of the group `name`. A button may have been selected before the
/// script ran, or restored by the browser on a reload, and then the page's own value is no longer the chosen one.
pub fn adopt_early_choice(name: impl Into<String>, adopt: impl Fn(String) + 'static) {
    let name = name.into();
    Effect::new(move |_| {
        if let Some(value) = browser::checked_value(&name) {
            untrack(|| adopt(value));
        }
    });
}

/// A labeled control. The control itself is the child and must carry `id`, `aria-describedby` from [`described_by`],
/// and `aria-invalid` while it has an error.
#[component]
pub fn FormField(
    /// The control's id.
    #[prop(into)]
    id: String,
    /// The visible label.
    #[prop(into)]
    label: String,
    /// Help text below the label.
    #[prop(optional, into)]
    hint: String,
    /// True if the field may stay empty, which is stated beside the label.
    #[prop(optional)]
    optional: bool,
    /// The error, if the value is invalid.
    #[prop(into)]
    error: Signal<Option<String>>,
    /// The control.
    children: Children,
) -> impl IntoView {
    let hint_id = format!("{id}-hint");
    let error_id = format!("{id}-error");
    let no_hint = hint.is_empty();
    view! {
        <div class="field" class:has-error=move || error.with(Option::is_some)>
            <label for=id>
                {label}
                {optional.then(|| view! { <span class="muted">" (optional)"</span> })}
            </label>
            <p class="hint" id=hint_id hidden=no_hint>{hint}</p>
            {children()}
            <FieldErrorText id=error_id error/>
        </div>
    }
}

/// The error of one field. The element stays in the page while there is no error, so that `aria-describedby` always
/// refers to an existing element.
#[component]
pub fn FieldErrorText(
    /// The element's id.
    #[prop(into)]
    id: String,
    /// The error, if the value is invalid.
    #[prop(into)]
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <p class="field-error" id=id hidden=move || error.with(Option::is_none)>
            <Icon name="circle-alert"/>
            <span>{move || error.get()}</span>
        </p>
    }
}

/// The list of all errors above a form, each with a link to its field.
#[component]
pub fn ErrorSummary(
    /// Pairs of a control's id and its error. An empty id means the form as a whole.
    #[prop(into)]
    errors: Signal<Vec<(String, String)>>,
    /// The element's id, if the focus moves here after a refusal. Unique on the page, which may have several forms.
    #[prop(optional)]
    id: &'static str,
) -> impl IntoView {
    let id = (!id.is_empty()).then_some(id);
    let entries = move || {
        errors
            .get()
            .into_iter()
            .map(|(id, text)| {
                if id.is_empty() {
                    view! { <li>{error_text(text)}</li> }.into_any()
                } else {
                    view! { <li><a href=format!("#{id}") rel="external">{text}</a></li> }.into_any()
                }
            })
            .collect::<Vec<_>>()
    };
    let heading = move || match errors.with(Vec::len) {
        1 => "1 problem needs attention".to_owned(),
        n => format!("{n} problems need attention"),
    };
    view! {
        <div class="error-summary" role="alert" tabindex="-1" id=id hidden=move || errors.with(Vec::is_empty)>
            <p><strong>{heading}</strong></p>
            <ul>{entries}</ul>
        </div>
    }
}
