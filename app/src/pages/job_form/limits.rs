//! What bounds and describes a job: all of it has a default that does.

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

/// The fields of this section, by their names in the form.
const LIMIT_FIELDS: [&str; 4] = ["timeout_seconds", "priority", "tags", "description"];

/// The last section of the form. It is folded away unless something in it is wrong.
#[component]
pub fn LimitsSection(
    /// The form it is in.
    state: FormState,
    /// What stands in the fields at first.
    form: JobForm,
) -> impl IntoView {
    let priority_error = state.error("priority");
    let description_error = state.error("description");
    let options: Vec<_> = PRIORITY_LABELS
        .into_iter()
        .zip(1..)
        .map(|(words, n): (&str, u8)| {
            let value = n.to_string();
            // An empty field means the middle.
            let selected = form.priority == value || (form.priority.is_empty() && n == 3);
            view! { <option value=value selected=selected>{words}</option> }
        })
        .collect();
    view! {
        <fieldset class="form-section">
            <legend>"Limits and notes"</legend>
            <label class="check">
                <input type="checkbox" id="f-is_active" name="form[is_active]" value="on" checked=!form.is_active.is_empty()/>
                <span>"Active: its schedule fires"</span>
            </label>
            <CollapsibleSection state fields=&LIMIT_FIELDS summary="Timeout, priority, tags, description">
                <div class="field-row">
                    <TextField
                        state
                        field="timeout_seconds"
                        label="Timeout in seconds"
                        hint="1 to 86,400. Left empty, the worker's default holds."
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
                    hint="For finding it, separated by commas. At most 20."
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
