//! A field: its label, its hint, its error, tied together for every kind of reader.

use leptos::prelude::*;

use super::icon::Icon;

/// The value of `aria-describedby` for the control of a [`FormField`] with this id. Both ends exist from the start, so that
/// an error which appears later is found.
#[must_use]
pub fn described_by(id: &str) -> String {
    format!("{id}-hint {id}-error")
}

/// A labelled control. The control itself comes as the child and must carry `id`, `aria-describedby` as
/// [`described_by`] says, and `aria-invalid` while there is an error.
#[component]
pub fn FormField(
    /// The control's id.
    #[prop(into)]
    id: String,
    /// Its label.
    #[prop(into)]
    label: String,
    /// What to know before filling it in.
    #[prop(optional, into)]
    hint: String,
    /// Whether the form works without it; said in words beside the label.
    #[prop(optional)]
    optional: bool,
    /// What is wrong with it.
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

/// What is wrong with one field. The element stays when nothing is, so that what describes the control never points
/// nowhere.
#[component]
pub fn FieldErrorText(
    /// The element's id.
    #[prop(into)]
    id: String,
    /// What is wrong.
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

/// All that is wrong with a form, above it, each with a link to its field.
#[component]
pub fn ErrorSummary(
    /// Id of the control, and what is wrong with it. An empty id stands for the form as a whole.
    #[prop(into)]
    errors: Signal<Vec<(String, String)>>,
) -> impl IntoView {
    let entries = move || {
        errors
            .get()
            .into_iter()
            .map(|(id, text)| {
                if id.is_empty() {
                    view! { <li>{text}</li> }.into_any()
                } else {
                    view! { <li><a href=format!("#{id}") rel="external">{text}</a></li> }.into_any()
                }
            })
            .collect::<Vec<_>>()
    };
    let heading = move || match errors.with(Vec::len) {
        1 => "One thing needs another look".to_owned(),
        n => format!("{n} things need another look"),
    };
    view! {
        <div class="error-summary" role="alert" tabindex="-1" id="error-summary" hidden=move || errors.with(Vec::is_empty)>
            <p><strong>{heading}</strong></p>
            <ul>{entries}</ul>
        </div>
    }
}
