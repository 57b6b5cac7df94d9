//! The input of a job: fields generated from the type's JSON Schema, or JSON text.
//!
//! Both are always in the form, and the radio button `form[input_mode]` selects the one that counts. A page without
//! scripts needs no more. With scripts only the selected one is visible, and switching converts the input if the other
//! form can represent it.

mod form_state;

use std::collections::BTreeMap;

use leptos::{html, prelude::*};
use milvaion_api::{
    requests::{FieldError, parse_input_json},
    schema_form::{self, InputField, InputKind},
};
use serde_json::Value;

pub use self::form_state::{
    FormState, capitalized, control_id, control_name, error_of, problems, summary_entries, textarea_html,
};
use crate::components::{
    form::{FieldErrorText, FormField, described_by},
    radio_field::adopt_early_choice,
};

/// A generated field with its value at rendering.
#[derive(Clone, Debug, PartialEq)]
struct InputFieldRow {
    field: InputField,
    value: String,
    /// Number of the rendering. A new number replaces the control, which would otherwise keep the typed value.
    revision: u32,
}

/// Returns the initial values of the fields of `schema`: `typed`, and `true` for each checkbox that is checked by
/// default.
#[must_use]
pub fn with_defaults(schema: Option<&Value>, mut typed: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for field in schema.map(schema_form::form_fields).unwrap_or_default() {
        if field.kind == InputKind::Boolean && field.default == "true" {
            typed.entry(field.name).or_insert_with(|| "true".into());
        }
    }
    typed
}

/// Returns true if the fields can represent all of `data` without loss.
#[must_use]
pub fn fits_schema(schema: Option<&Value>, data: &Value) -> bool {
    let Some(schema) = schema else { return false };
    let kept = schema_form::build_input(schema, &with_defaults(Some(schema), schema_form::to_field_texts(data)));
    match (kept, data) {
        (Ok(Value::Object(kept)), Value::Object(data)) => data.iter().all(|(name, value)| {
            // An empty field stands for empty text and for null.
            kept.get(name) == Some(value) || value.is_null() || value.as_str() == Some("")
        }),
        // A required field that is still empty loses nothing.
        (Err(_), Value::Object(data)) => {
            let known: Vec<String> = schema_form::form_fields(schema).into_iter().map(|field| field.name).collect();
            data.keys().all(|name| known.contains(name))
        }
        _ => false,
    }
}

/// Converts the fields to JSON, without the invalid ones.
fn as_json(schema: &Value, typed: &BTreeMap<String, String>) -> Value {
    let mut typed = typed.clone();
    let mut lenient = schema.clone();
    if let Some(map) = lenient.as_object_mut() {
        map.remove("required");
    }
    for _ in 0..2 {
        match schema_form::build_input(&lenient, &typed) {
            Ok(data) => return data,
            Err(errors) => {
                for error in errors {
                    typed.remove(error.field.trim_start_matches("input."));
                }
            }
        }
    }
    Value::Object(serde_json::Map::new())
}

/// The input section of a job form.
#[component]
pub fn InputForm(
    /// The state of the enclosing form.
    state: FormState,
    /// The schema of the chosen type, if it has one.
    #[prop(into)]
    schema: Signal<Option<Value>>,
    /// The values of the fields. Setting them renders the fields again.
    values: RwSignal<BTreeMap<String, String>>,
    /// The initial text of the JSON editor.
    json: String,
    /// True to start with the JSON editor.
    starts_as_json: bool,
    /// Called after switching between fields and JSON, which changes the input that counts.
    #[prop(into)]
    on_switch: Callback<()>,
) -> impl IntoView {
    let text = NodeRef::<html::Textarea>::new();
    let json_radio = NodeRef::<html::Input>::new();
    let is_json = RwSignal::new(starts_as_json);
    adopt_early_choice("form[input_mode]", move |mode| is_json.set(mode == "json"));
    let note = RwSignal::new(None::<String>);
    // Without a script nothing is hidden, because nothing could show it again.
    let has_script = RwSignal::new(false);
    Effect::new(move |_| has_script.set(true));

    let own_error = state.error("input_json");
    // While the JSON counts, the error of one of its parts is shown beside it, because that part's field is hidden.
    let json_error = Signal::derive(move || {
        let part = || {
            state
                .errors
                .with(|errors| errors.iter().find(|e| e.field.starts_with("input.")).map(|e| capitalized(&e.message)))
        };
        own_error.get().or_else(|| if is_json.get() && state.shows_all.get() { part() } else { None })
    });
    let has_fields = Memo::new(move |_| {
        schema.with(|schema| schema.as_ref().is_some_and(|s| !schema_form::form_fields(s).is_empty()))
    });
    let rows = Memo::new(move |before: Option<&Vec<InputFieldRow>>| {
        let revision = before.and_then(|rows| rows.first()).map_or(0, |row| row.revision + 1);
        let fields = schema.with(|schema| schema.as_ref().map(schema_form::form_fields).unwrap_or_default());
        values.with(|values| {
            let row = |field: InputField| InputFieldRow {
                value: values.get(&field.name).cloned().unwrap_or_default(),
                field,
                revision,
            };
            fields.into_iter().map(row).collect::<Vec<_>>()
        })
    });

    let to_json = move |_| {
        let (Some(typed), Some(schema)) = (state.read_job_form(), schema.get_untracked()) else { return };
        if let (Some(text), false) = (text.get_untracked(), is_json.get_untracked()) {
            text.set_value(&serde_json::to_string_pretty(&as_json(&schema, &typed.input)).unwrap_or_default());
        }
        note.set(None);
        is_json.set(true);
        on_switch.run(());
    };
    let to_form = move |_| {
        let Some(typed) = state.read_job_form() else { return };
        let keep_json = |reason: &str| {
            note.set(Some(reason.to_owned()));
            // The radio button has already changed, but JSON still counts.
            if let Some(radio) = json_radio.get_untracked() {
                radio.set_checked(true);
            }
        };
        let schema = schema.get_untracked();
        match parse_input_json(&typed.input_json) {
            Ok(data) if fits_schema(schema.as_ref(), &data) => {
                values.set(with_defaults(schema.as_ref(), schema_form::to_field_texts(&data)));
                note.set(None);
                is_json.set(false);
                on_switch.run(());
            }
            Ok(_) => keep_json("The form fields cannot represent this input. It stays JSON."),
            Err(message) => {
                keep_json("Fix the JSON first. Then it can be edited as fields.");
                state.shows_all.set(true);
                state.errors.update(|errors| {
                    errors.retain(|error| error.field != "input_json");
                    errors.push(FieldError::new("input_json", message));
                });
            }
        }
    };

    view! {
        <fieldset class="form-section" id="f-input" tabindex="-1">
            <legend>"Input"</legend>
            <fieldset class="cluster" hidden=move || !has_fields.get()>
                <legend class="sr-only">"Input format"</legend>
                <label class="check">
                    <input
                        type="radio"
                        name="form[input_mode]"
                        value="form"
                        checked=!starts_as_json
                        on:change=to_form
                    />
                    <span>"Fields"</span>
                </label>
                <label class="check">
                    <input
                        type="radio"
                        name="form[input_mode]"
                        value="json"
                        checked=starts_as_json
                        on:change=to_json
                        node_ref=json_radio
                    />
                    <span>"JSON"</span>
                </label>
                <span class="hint" role="status">{move || note.get()}</span>
            </fieldset>
            <div class="stack" hidden=move || !has_fields.get() || (has_script.get() && is_json.get())>
                <For each=move || rows.get() key=|row| (row.revision, row.field.name.clone()) let:row>
                    <InputFieldControl state row/>
                </For>
            </div>
            <div hidden=move || has_fields.get() && has_script.get() && !is_json.get()>
                <FormField
                    id=control_id("input_json")
                    label="Input as JSON"
                    hint="A JSON object, such as {\"key\": \"value\"}. At most 64 KiB."
                    error=json_error
                >
                    <textarea
                        id=control_id("input_json")
                        name="form[input_json]"
                        class="input-mono"
                        rows="8"
                        spellcheck="false"
                        autocapitalize="off"
                        aria-describedby=described_by("f-input_json")
                        aria-invalid=move || json_error.get().is_some().then_some("true")
                        node_ref=text
                        inner_html=textarea_html(&json)
                    ></textarea>
                </FormField>
            </div>
        </fieldset>
    }
}

/// The control of one generated field.
#[component]
fn InputFieldControl(state: FormState, row: InputFieldRow) -> impl IntoView {
    let InputFieldRow { field, value, .. } = row;
    let path = format!("input.{}", field.name);
    let (id, name) = (control_id(&path), control_name(&path));
    let error = state.error(path);
    let is_wrong = move || error.get().is_some().then_some("true");
    let described = described_by(&id);
    let hint = hint(&field);
    let no_hint = hint.is_empty();
    let required = field.required.then_some("true");
    let placeholder = if field.example.is_empty() { String::new() } else { format!("e.g. {}", field.example) };

    let control = match field.kind {
        InputKind::Boolean => {
            return view! {
                <div class="field" class:has-error=move || error.get().is_some()>
                    <label class="check">
                        <input
                            type="checkbox"
                            id=id.clone()
                            name=name
                            value="true"
                            checked=matches!(value.as_str(), "true" | "on")
                            aria-describedby=described
                            aria-invalid=is_wrong
                        />
                        <span>{field.label}</span>
                    </label>
                    <p class="hint" id=format!("{id}-hint") hidden=no_hint>{hint}</p>
                    <FieldErrorText id=format!("{id}-error") error/>
                </div>
            }
            .into_any();
        }
        InputKind::Choice(choices) => {
            let empty = (!field.required || value.is_empty()).then(|| {
                let label = match (field.required, field.default.is_empty()) {
                    (true, _) => "Choose…".to_owned(),
                    (false, true) => "Worker's default".to_owned(),
                    (false, false) => format!("Default ({})", field.default),
                };
                view! { <option value="">{label}</option> }
            });
            let options: Vec<_> = choices
                .into_iter()
                .map(|choice| {
                    let selected = choice == value;
                    view! { <option value=choice.clone() selected=selected>{choice.clone()}</option> }
                })
                .collect();
            view! {
                <select id=id.clone() name=name aria-describedby=described aria-invalid=is_wrong aria-required=required>
                    {empty}
                    {options}
                </select>
            }
            .into_any()
        }
        InputKind::Multiline | InputKind::Lines | InputKind::Json => {
            let is_code = field.kind == InputKind::Json;
            view! {
                <textarea
                    id=id.clone()
                    name=name
                    class=if is_code { "input-mono" } else { "" }
                    rows="4"
                    placeholder=placeholder
                    spellcheck=if is_code { "false" } else { "true" }
                    aria-describedby=described
                    aria-invalid=is_wrong
                    aria-required=required
                    inner_html=textarea_html(&value)
                ></textarea>
            }
            .into_any()
        }
        InputKind::Text | InputKind::Integer | InputKind::Number => {
            let inputmode = match field.kind {
                InputKind::Integer => "numeric",
                InputKind::Number => "decimal",
                _ => "text",
            };
            view! {
                <input
                    type="text"
                    id=id.clone()
                    name=name
                    value=value
                    inputmode=inputmode
                    placeholder=placeholder
                    autocomplete="off"
                    autocapitalize="off"
                    aria-describedby=described
                    aria-invalid=is_wrong
                    aria-required=required
                />
            }
            .into_any()
        }
    };
    view! {
        <FormField id label=field.label hint optional=!field.required error>
            {control}
        </FormField>
    }
    .into_any()
}

/// Returns the hint of a field: the schema's description, its format and its default.
fn hint(field: &InputField) -> String {
    let mut parts = Vec::new();
    if !field.description.is_empty() {
        parts.push(field.description.clone());
    }
    match field.kind {
        InputKind::Lines => parts.push("One value per line.".into()),
        InputKind::Json => parts.push("A JSON value.".into()),
        _ => {}
    }
    if !field.default.is_empty() && field.kind != InputKind::Boolean {
        parts.push(format!("Default: {}.", field.default));
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "properties": {
                "url": {"type": "string"},
                "count": {"type": "integer"},
                "follow": {"type": "boolean", "default": true},
            },
            "required": ["url"],
        })
    }

    #[test]
    fn input_beyond_the_fields_stays_json() {
        let schema = schema();
        assert!(fits_schema(Some(&schema), &json!({"url": "http://x", "count": 3})));
        assert!(fits_schema(Some(&schema), &json!({})));
        assert!(!fits_schema(Some(&schema), &json!({"url": "http://x", "other": 1})));
        assert!(!fits_schema(Some(&schema), &json!({"url": 5})));
        assert!(!fits_schema(None, &json!({})));
    }

    #[test]
    fn as_json_omits_invalid_fields() {
        let typed = BTreeMap::from([("url".to_owned(), String::new()), ("count".to_owned(), "many".to_owned())]);
        assert_eq!(as_json(&schema(), &typed), json!({"follow": false}));
    }

    #[test]
    fn default_checks_apply_to_new_forms_only() {
        assert_eq!(with_defaults(Some(&schema()), BTreeMap::new()).get("follow").map(String::as_str), Some("true"));
        let off = BTreeMap::from([("follow".to_owned(), "false".to_owned())]);
        assert_eq!(with_defaults(Some(&schema()), off).get("follow").map(String::as_str), Some("false"));
    }
}
