//! The activation, timeout, priority, tags and description of a job. Each has a usable default.

use leptos::prelude::*;
use milvaion_api::requests::JobForm;

use crate::{
    components::{
        collapsible_section::CollapsibleSection,
        fields::{SelectField, TextareaField},
        input_form::FormState,
        schedule_field::TextField,
    },
    pages::job::definition::PRIORITY_LABELS,
};

/// The names of this section's fields.
const LIMIT_FIELDS: [&str; 4] = ["timeout_seconds", "priority", "tags", "description"];

/// The last section of the form. It is collapsed unless one of its fields has an error.
#[component]
pub fn LimitsSection(
    /// The state of the form.
    state: FormState,
    /// The initial values of the fields.
    form: JobForm,
) -> impl IntoView {
    let options: Vec<_> = PRIORITY_LABELS
        .into_iter()
        .zip(1..)
        .map(|(words, n): (&str, u8)| {
            let value = n.to_string();
            // An empty field stands for the default, 3.
            let selected = form.priority == value || (form.priority.is_empty() && n == 3);
            view! { <option value=value selected=selected>{words}</option> }
        })
        .collect();
    view! {
        <fieldset class="form-section">
            <legend>"Activation and details"</legend>
            <label class="check">
                <input type="checkbox" id="f-is_active" name="form[is_active]" value="on" checked=!form.is_active.is_empty()/>
                <span>"Active: runs start on schedule"</span>
            </label>
            <CollapsibleSection state fields=&LIMIT_FIELDS summary="Timeout, priority, tags, description">
                <div class="field-row">
                    <TextField
                        state
                        field="timeout_seconds"
                        label="Timeout (seconds)"
                        hint="A run is stopped after this time; 1 to 86,400. Empty: the default of the job type."
                        value=form.timeout_seconds
                        inputmode="numeric"
                        is_required=false
                    />
                    <SelectField id="f-priority" name="form[priority]" label="Priority" error=state.error("priority")>
                        {options}
                    </SelectField>
                </div>
                <TextField
                    state
                    field="tags"
                    label="Tags"
                    hint="Separated by commas; at most 20 tags of 50 characters. Job search finds them."
                    value=form.tags
                    is_required=false
                />
                <TextareaField
                    id="f-description"
                    name="form[description]"
                    label="Description"
                    hint="At most 2,000 characters."
                    optional=true
                    text=form.description
                    error=state.error("description")
                    rows="3"
                    class=""
                    is_prose=true
                />
            </CollapsibleSection>
        </fieldset>
    }
}
