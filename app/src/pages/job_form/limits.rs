//! The activation, timeout, priority, tags and description of a job. Each has a usable default.

use leptos::prelude::*;
use milvaion_api::requests::JobForm;

use crate::{
    components::{
        collapsible_section::CollapsibleSection,
        form::{FormField, described_by},
        input_form::{FormState, textarea_html},
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
    let priority_error = state.error("priority");
    let description_error = state.error("description");
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
                    <FormField id="f-priority" label="Priority" error=priority_error>
                        <select
                            id="f-priority"
                            name="form[priority]"
                            aria-describedby=described_by("f-priority")
                            aria-invalid=move || priority_error.get().is_some().then_some("true")
                        >
                            {options}
                        </select>
                    </FormField>
                </div>
                <TextField
                    state
                    field="tags"
                    label="Tags"
                    hint="Separated by commas; at most 20 tags of 50 characters. Job search finds them."
                    value=form.tags
                    is_required=false
                />
                <FormField id="f-description" label="Description" hint="At most 2,000 characters." optional=true error=description_error>
                    <textarea
                        id="f-description"
                        name="form[description]"
                        rows="3"
                        aria-describedby=described_by("f-description")
                        aria-invalid=move || description_error.get().is_some().then_some("true")
                        inner_html=textarea_html(&form.description)
                    ></textarea>
                </FormField>
            </CollapsibleSection>
        </fieldset>
    }
}
