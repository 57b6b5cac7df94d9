//! The control of a generated field with one value, and its label and hint.

use leptos::prelude::*;
use milvaion_api::schema_form::{InputField, InputKind};

use super::{InputContext, control_id, control_name, textarea_html};
use crate::components::form::{FieldErrorText, described_by};

/// Renders a checkbox with its label.
pub(super) fn check_box(context: InputContext, field: InputField, path: &str) -> AnyView {
    let name = format!("input.{path}");
    let id = control_id(&name);
    let hint = hint(&field);
    let no_hint = hint.is_empty();
    let error = context.state.error(name.clone());
    view! {
        <div class="field" class:has-error=move || error.get().is_some()>
            <label class="check">
                <input
                    type="checkbox"
                    id=id.clone()
                    name=control_name(&name)
                    value="true"
                    checked=matches!(context.text(path).as_str(), "true" | "on")
                    aria-describedby=described_by(&id)
                    aria-invalid=move || error.get().is_some().then_some("true")
                />
                <span>{field.label}</span>
            </label>
            <p class="hint" id=format!("{id}-hint") hidden=no_hint>{hint}</p>
            <FieldErrorText id=format!("{id}-error") error/>
        </div>
    }
    .into_any()
}

/// Renders the control alone. `label` is its accessible name if no visible label refers to it.
pub(super) fn value_control(context: InputContext, field: &InputField, path: &str, label: Option<String>) -> AnyView {
    let value = context.text(path);
    let full = format!("input.{path}");
    let (id, name) = (control_id(&full), control_name(&full));
    let error = context.state.error(full);
    let is_wrong = move || error.get().is_some().then_some("true");
    let described = described_by(&id);
    let required = field.required.then_some("true");
    let placeholder = if field.example.is_empty() { String::new() } else { format!("e.g. {}", field.example) };
    match &field.kind {
        InputKind::Choice(_) | InputKind::OptionalBoolean | InputKind::Boolean => {
            let choices = match &field.kind {
                InputKind::Choice(words) => words.iter().map(|word| (word.clone(), word.clone())).collect(),
                _ => vec![("true".to_owned(), "Yes".to_owned()), ("false".to_owned(), "No".to_owned())],
            };
            let default = choices.iter().find(|(value, _)| *value == field.default).map(|(_, label)| label.clone());
            let empty = (!field.required || value.is_empty()).then(|| {
                let label = match (field.required, default) {
                    (true, _) => "Choose…".to_owned(),
                    (false, None) => "Worker's default".to_owned(),
                    (false, Some(default)) => format!("Default ({default})"),
                };
                view! { <option value="">{label}</option> }
            });
            let options: Vec<_> = choices
                .into_iter()
                .map(|(choice, label)| {
                    let selected = choice == value;
                    view! { <option value=choice selected=selected>{label}</option> }
                })
                .collect();
            view! {
                <select
                    id=id
                    name=name
                    aria-label=label
                    aria-describedby=described
                    aria-invalid=is_wrong
                    aria-required=required
                >
                    {empty}
                    {options}
                </select>
            }
            .into_any()
        }
        // A control with one line would drop the line breaks of an existing text.
        kind if matches!(kind, InputKind::Multiline | InputKind::Json)
            || (*kind == InputKind::Text && value.contains('\n')) =>
        {
            let is_code = field.kind == InputKind::Json;
            view! {
                <textarea
                    id=id
                    name=name
                    class=if is_code { "input-mono" } else { "" }
                    rows="4"
                    placeholder=placeholder
                    spellcheck=if is_code { "false" } else { "true" }
                    aria-label=label
                    aria-describedby=described
                    aria-invalid=is_wrong
                    aria-required=required
                    inner_html=textarea_html(&value)
                ></textarea>
            }
            .into_any()
        }
        _ => {
            let inputmode = match field.kind {
                InputKind::Integer => "numeric",
                InputKind::Number => "decimal",
                _ => "text",
            };
            text_control(context, path, inputmode, placeholder, label, field.required)
        }
    }
}

/// Renders a control with one line of text.
pub(super) fn text_control(
    context: InputContext,
    path: &str,
    inputmode: &'static str,
    placeholder: String,
    label: Option<String>,
    is_required: bool,
) -> AnyView {
    let full = format!("input.{path}");
    let id = control_id(&full);
    let error = context.state.error(full.clone());
    view! {
        <input
            type="text"
            id=id.clone()
            name=control_name(&full)
            value=context.text(path)
            inputmode=inputmode
            placeholder=placeholder
            autocomplete="off"
            autocapitalize="off"
            aria-label=label
            aria-describedby=described_by(&id)
            aria-invalid=move || error.get().is_some().then_some("true")
            aria-required=is_required.then_some("true")
        />
    }
    .into_any()
}

/// Returns the hint of a field: the schema's description, its format and its default.
pub(super) fn hint(field: &InputField) -> String {
    let mut parts = Vec::new();
    if !field.description.is_empty() {
        parts.push(field.description.clone());
    }
    match &field.kind {
        InputKind::Json if field.label != "Other properties" => parts.push("A JSON value.".into()),
        InputKind::List(rows) | InputKind::Map(rows) => parts.extend(count_hint(rows.min, rows.max)),
        _ => {}
    }
    let is_switch = matches!(field.kind, InputKind::Boolean | InputKind::OptionalBoolean);
    if !field.default.is_empty() && !is_switch {
        parts.push(format!("Default: {}.", field.default));
    }
    parts.join(" ")
}

/// Returns the bounds of a number of rows in words; none if there are none.
fn count_hint(min: usize, max: usize) -> Option<String> {
    let is_bounded = max < milvaion_api::schema_form::MAX_FORM_ROWS;
    match (min, is_bounded) {
        (0, false) => None,
        (0, true) => Some(format!("At most {max}.")),
        (_, false) => Some(format!("At least {min}.")),
        (_, true) => Some(format!("{min} to {max}.")),
    }
}
