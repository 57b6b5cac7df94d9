//! A checkbox of a form with its help text and error.

use leptos::prelude::*;

use super::{
    form::{FieldErrorText, described_by},
    input_form::{control_id, control_name},
};

/// A checkbox with help text.
#[component]
pub fn CheckField(
    /// The name of the field in the request.
    field: &'static str,
    /// The visible label.
    label: &'static str,
    /// The help text.
    hint: &'static str,
    /// True if the box is checked at first.
    checked: bool,
    /// The error, if the value is refused.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let id = control_id(field);
    view! {
        <div class="field" class:has-error=move || error.get().is_some()>
            <label class="check">
                <input
                    type="checkbox"
                    id=id.clone()
                    name=control_name(field)
                    value="on"
                    checked=checked
                    aria-describedby=described_by(&id)
                    aria-invalid=move || error.get().is_some().then_some("true")
                />
                <span>{label}</span>
            </label>
            <p class="hint" id=format!("{id}-hint")>{hint}</p>
            <FieldErrorText id=format!("{id}-error") error/>
        </div>
    }
}
