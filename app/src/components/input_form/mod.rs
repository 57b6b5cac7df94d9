//! The input of a job: fields generated from the type's JSON Schema, or JSON text.
//!
//! Both are always in the form, and the radio button `form[input_mode]` selects the one that counts. A page without
//! scripts needs no more: a list shows empty rows after its items, a union the fields of its chosen variant, and the
//! button *Check* renders the form again with more rows or with the fields of another variant. With scripts only the
//! selected part is visible, and switching converts the input without loss.
//!
//! A change of the structure (another variant, one row more or less) reads all fields, changes their texts as a whole,
//! and renders them again. The fields thus stay plain HTML without a second copy of their values in signals.

mod controls;
mod groups;
pub mod last_input;

use std::collections::BTreeMap;

use leptos::{html, prelude::*};
use milvaion_api::{
    requests::{FieldError, parse_input_json},
    schema_form::{self, InputKind, InputObject, path},
};
use milvaion_protocol::id::JobId;
use serde_json::Value;

pub use self::last_input::LastInputButton;
pub use crate::components::form_state::{
    FormState, control_id, control_name, error_of, other_errors, summary_entries, textarea_html,
};
use crate::{
    browser,
    components::{
        fields::{TextareaField, use_script},
        form::{FieldErrorText, adopt_early_choice},
    },
    format::capitalized,
};

/// The form that a generated field belongs to.
#[derive(Clone, Copy)]
struct InputContext {
    /// The state of the enclosing form.
    state: FormState,
    /// The texts of the fields at their last rendering.
    values: RwSignal<BTreeMap<String, String>>,
    /// Called after a change of the structure.
    on_change: Callback<()>,
}

impl InputContext {
    /// Returns the text of a field at its rendering.
    fn text(self, path: &str) -> String {
        self.values.with_untracked(|values| values.get(path).cloned().unwrap_or_default())
    }

    /// Changes the structure of the form: reads the typed texts, changes them, renders the fields again, and focuses the
    /// control that `change` returns the id of.
    fn restructure(self, change: impl FnOnce(&mut BTreeMap<String, String>) -> String) {
        let Some(mut typed) = self.state.read_job_form().map(|form| form.input) else { return };
        let focused = change(&mut typed);
        self.values.set(typed);
        self.on_change.run(());
        browser::focus_on_next_frame(&focused);
    }
}

/// Returns the initial texts of the fields of `schema`: `typed`, `true` for each required checkbox that is checked by
/// default, and a row for each list that must have items.
#[must_use]
pub fn with_defaults(schema: Option<&Value>, mut typed: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for field in schema.map(schema_form::form_fields).unwrap_or_default() {
        if field.kind == InputKind::Boolean && field.default == "true" {
            typed.entry(path::child("", &field.name)).or_insert_with(|| "true".into());
        }
        // A list that must have items starts with one, so that its control is there to be filled in.
        let at = path::child("", &field.name);
        if field.required && matches!(field.kind, InputKind::List(_)) && path::rows(&typed, &at).is_empty() {
            path::add_row(&mut typed, &at);
        }
    }
    typed
}

/// Returns true if the fields of `schema` can show `data`: there are fields, and it is an object.
#[must_use]
pub fn fits_schema(schema: Option<&Value>, data: &Value) -> bool {
    data.is_object() && schema.is_some_and(|schema| !schema_form::form_fields(schema).is_empty())
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
    /// The job whose last input a button inserts; none for a new job.
    #[prop(optional_no_strip)]
    source: Option<JobId>,
    /// Called after a change that is no typed text: another row or variant, an inserted input, or a switch between
    /// fields and JSON, which changes the input that counts.
    #[prop(into)]
    on_change: Callback<()>,
) -> impl IntoView {
    let text = NodeRef::<html::Textarea>::new();
    let form_radio = NodeRef::<html::Input>::new();
    let json_radio = NodeRef::<html::Input>::new();
    let is_json = RwSignal::new(starts_as_json);
    adopt_early_choice("form[input_mode]", move |mode| is_json.set(mode == "json"));
    let note = RwSignal::new(None::<String>);
    let has_script = use_script();

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
    let whole_error = state.error("input");
    let object =
        Memo::new(move |_| schema.with(|schema| schema.as_ref().map(schema_form::form_object).unwrap_or_default()));
    let has_fields = Memo::new(move |_| object.with(|object| !object.fields.is_empty()));
    let context = InputContext { state, values, on_change };
    // Each rendering has a number, because reused controls would keep the typed text.
    let rendering = Memo::new(move |before: Option<&u32>| {
        object.track();
        values.track();
        before.map_or(0, |number| number + 1)
    });

    // A variant may have been chosen or a spare row filled in before the script ran, so that the fields of another
    // variant are shown, or the row is hidden.
    Effect::new(move |_| {
        let Some(typed) = state.read_job_form().map(|form| form.input) else { return };
        if values.with_untracked(|drawn| path::is_restructured(drawn, &typed)) {
            let focused = document().active_element().map(|element| element.id()).unwrap_or_default();
            values.set(typed);
            browser::focus_on_next_frame(&focused);
        }
    });

    let to_json = move |_| {
        let (Some(typed), Some(schema)) = (state.read_job_form(), schema.get_untracked()) else { return };
        if let (Some(text), false) = (text.get_untracked(), is_json.get_untracked()) {
            match schema_form::build_lenient(&schema, &typed.input) {
                Ok(data) => text.set_value(&serde_json::to_string_pretty(&data).unwrap_or_default()),
                Err(errors) => {
                    note.set(Some("Fix the fields with errors first. Then the input can be edited as JSON.".into()));
                    add_errors(state, errors);
                    if let Some(radio) = form_radio.get_untracked() {
                        radio.set_checked(true);
                    }
                    return;
                }
            }
        }
        note.set(None);
        is_json.set(true);
        on_change.run(());
    };
    let to_form = move |_| {
        let Some(typed) = state.read_job_form() else { return };
        match (parse_input_json(&typed.input_json), schema.get_untracked()) {
            (Ok(data), Some(schema)) => {
                values.set(schema_form::to_field_texts(&schema, &data));
                note.set(None);
                is_json.set(false);
                on_change.run(());
            }
            (parsed, _) => {
                note.set(Some("Fix the JSON first. Then it can be edited as fields.".into()));
                // The radio button has already changed, but JSON still counts.
                if let Some(radio) = json_radio.get_untracked() {
                    radio.set_checked(true);
                }
                add_errors(
                    state,
                    parsed.err().map(|message| FieldError::new("input_json", message)).into_iter().collect(),
                );
            }
        }
    };
    let insert_last = Callback::new(move |data: Value| {
        if let Some(text) = text.get_untracked() {
            text.set_value(&serde_json::to_string_pretty(&data).unwrap_or_default());
        }
        if let Some(schema) = schema.get_untracked() {
            values.set(schema_form::to_field_texts(&schema, &data));
        }
        note.set(None);
        on_change.run(());
    });
    let last = source.map(|job| view! { <LastInputButton job on_input=insert_last/> });

    view! {
        <fieldset class="form-section" id="f-input" tabindex="-1" aria-describedby="f-input-error">
            <legend>"Input"</legend>
            <FieldErrorText id="f-input-error" error=whole_error/>
            <fieldset class="cluster" hidden=move || !has_fields.get()>
                <legend class="sr-only">"Input format"</legend>
                <label class="check">
                    <input
                        type="radio"
                        name="form[input_mode]"
                        value="form"
                        checked=!starts_as_json
                        on:change=to_form
                        node_ref=form_radio
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
            </fieldset>
            {last}
            <p class="hint" role="status">{move || note.get()}</p>
            <div class="stack" hidden=move || !has_fields.get() || (has_script.get() && is_json.get())>
                <For each=move || [rendering.get()] key=|number| *number let:_number>
                    {render_fields(context, object.get_untracked())}
                </For>
            </div>
            <div hidden=move || has_fields.get() && has_script.get() && !is_json.get()>
                <TextareaField
                    id=control_id("input_json")
                    name="form[input_json]"
                    label="Input as JSON"
                    hint="A JSON object, such as {\"key\": \"value\"}. At most 64 KiB."
                    text=json
                    error=json_error
                    rows="8"
                    node=text
                />
            </div>
        </fieldset>
    }
}

fn render_fields(context: InputContext, object: InputObject) -> AnyView {
    groups::object_fields(context, object, "")
}

/// Replaces the errors of the named fields and shows all errors.
fn add_errors(state: FormState, added: Vec<FieldError>) {
    state.shows_all.set(true);
    state.errors.update(|errors| {
        errors.retain(|error| added.iter().all(|added| added.field != error.field));
        errors.extend(added);
    });
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
                "verify": {"type": "boolean", "default": true},
            },
            "required": ["url", "follow"],
        })
    }

    #[test]
    fn only_objects_are_shown_as_fields() {
        let schema = schema();
        assert!(fits_schema(Some(&schema), &json!({"url": 5, "other": 1})));
        assert!(!fits_schema(Some(&schema), &json!([1])));
        assert!(!fits_schema(Some(&json!({"type": "object"})), &json!({})));
        assert!(!fits_schema(None, &json!({})));
    }

    #[test]
    fn default_checks_apply_to_required_boxes_of_new_forms() {
        let new = with_defaults(Some(&schema()), BTreeMap::new());
        assert_eq!(new.get("follow").map(String::as_str), Some("true"));
        assert_eq!(new.get("verify"), None, "an optional choice starts with its default");
        let off = BTreeMap::from([("follow".to_owned(), "false".to_owned())]);
        assert_eq!(with_defaults(Some(&schema()), off).get("follow").map(String::as_str), Some("false"));
    }
}
