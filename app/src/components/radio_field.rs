//! A choice between a few options as radio buttons, each with a description.

use leptos::prelude::*;

use super::{
    form::{FieldErrorText, adopt_early_choice, described_by},
    input_form::{FormState, control_id, control_name},
};

/// A radio group in a job form.
#[component]
pub fn RadioField(
    /// The state of the enclosing form.
    state: FormState,
    /// The name of the field in [`JobForm`](milvaion_api::requests::JobForm).
    field: &'static str,
    /// The visible label of the group.
    label: &'static str,
    /// Help text below the options.
    #[prop(optional)]
    hint: &'static str,
    /// The options as value and description. An empty field selects the first.
    options: Vec<(&'static str, &'static str)>,
    /// The selected value, updated by the buttons.
    #[prop(into)]
    chosen: RwSignal<String>,
) -> impl IntoView {
    let error = state.error(field);
    let id = control_id(field);
    let value = chosen.get_untracked();
    adopt_early_choice(control_name(field), move |value| {
        if chosen.try_with_untracked(|chosen| *chosen != value) == Some(true) {
            chosen.set(value);
        }
    });
    let cards: Vec<_> = options
        .into_iter()
        .enumerate()
        .map(|(n, (option, description))| {
            let checked = value == option || (value.is_empty() && n == 0);
            view! {
                <label class="radio-card">
                    <input
                        type="radio"
                        name=control_name(field)
                        value=option
                        checked=checked
                        on:change=move |_| chosen.set(option.into())
                    />
                    <span>{description}</span>
                </label>
            }
        })
        .collect();
    view! {
        <div class="field" class:has-error=move || error.with(Option::is_some)>
            <fieldset class="radio-cards" id=id.clone() tabindex="-1" aria-describedby=described_by(&id)>
                <legend>{label}</legend>
                {cards}
            </fieldset>
            <p class="hint" id=format!("{id}-hint") hidden=hint.is_empty()>{hint}</p>
            <FieldErrorText id=format!("{id}-error") error/>
        </div>
    }
}
