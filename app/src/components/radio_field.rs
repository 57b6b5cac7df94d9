//! One of a few: radio buttons that say in words what each of them means.

use leptos::prelude::*;

use super::{
    form::{FieldErrorText, described_by},
    input_form::{FormState, control_id, control_name},
};

/// A choice in a job form.
#[component]
pub fn RadioField(
    /// The form it is in.
    state: FormState,
    /// Its field in [`JobForm`](milvaion_api::requests::JobForm).
    field: &'static str,
    /// What is chosen.
    label: &'static str,
    /// What helps to choose.
    #[prop(optional)]
    hint: &'static str,
    /// What there is to choose from: the value, and what it means. An empty field means the first.
    options: Vec<(&'static str, &'static str)>,
    /// What is chosen; it follows the buttons.
    #[prop(into)]
    chosen: RwSignal<String>,
) -> impl IntoView {
    let error = state.error(field);
    let id = control_id(field);
    let value = chosen.get_untracked();
    let cards: Vec<_> = options
        .into_iter()
        .enumerate()
        .map(|(n, (word, says))| {
            let checked = value == word || (value.is_empty() && n == 0);
            view! {
                <label class="radio-card">
                    <input
                        type="radio"
                        name=control_name(field)
                        value=word
                        checked=checked
                        on:change=move |_| chosen.set(word.into())
                    />
                    <span>{says}</span>
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
