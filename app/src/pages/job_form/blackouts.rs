//! Which calendars a job keeps to, and what becomes of a fire that falls into a blackout of theirs.

use leptos::{ev, prelude::*, task::spawn_local};
use milvaion_api::{requests::JobForm, rules_form::calendar_field, views::CalendarRow};
use milvaion_schedule::rules::BlackoutPolicy;

use crate::{
    api::calendars::calendars as list_calendars,
    components::{
        collapsible_section::CollapsibleSection,
        form::{FieldErrorText, described_by},
        input_form::{FormState, control_id, control_name},
        radio_field::RadioField,
    },
};

/// The fields of this section, by their names in the form; of the calendars, the name under which they are judged.
const BLACKOUT_FIELDS: [&str; 2] = ["rules.calendars", "rules.blackout"];

/// The section of a job form that says when not to run.
#[component]
pub fn BlackoutSection(
    /// The form it is in.
    state: FormState,
    /// What stands in the fields at first.
    form: JobForm,
    /// Every calendar there is.
    calendars: Vec<CalendarRow>,
) -> impl IntoView {
    let is_open =
        form.has_non_default(&["rules.blackout"]) || calendars.iter().any(|calendar| form.has_calendar(calendar.id));
    let blackout = RwSignal::new(form.rule("blackout"));
    let known = RwSignal::new(calendars);
    keep_current(known);
    let error = state.error("rules.calendars");
    let id = control_id("rules.calendars");
    let form = StoredValue::new(form);
    let boxes = move || {
        let is_none = known.with(Vec::is_empty);
        is_none.then(|| view! { <p class="muted">"There is no calendar yet."</p> })
    };
    view! {
        <fieldset class="form-section">
            <legend>"When not"</legend>
            <CollapsibleSection state fields=&BLACKOUT_FIELDS is_open summary="Calendars, and what becomes of fires in a blackout">
                <div class="field" class:has-error=move || error.with(Option::is_some)>
                    <fieldset class="check-list" id=id.clone() tabindex="-1" aria-describedby=described_by(&id)>
                        <legend>"Keeps to these calendars"</legend>
                        {boxes}
                        <For each=move || known.get() key=|calendar| calendar.id let:calendar>
                            <CalendarBox form calendar/>
                        </For>
                    </fieldset>
                    <p class="hint" id=format!("{id}-hint")>
                        "It does not run in the blackouts of any of them, 10 at most. "
                        <a href="/calendars/new" target="_blank" rel="external">"Make a calendar"</a>
                        " (in a new tab)."
                    </p>
                    <FieldErrorText id=format!("{id}-error") error/>
                </div>
                <RadioField
                    state
                    field="rules.blackout"
                    label="When it is due in a blackout"
                    hint="Several fires that wait for the end of one blackout become one run."
                    options=BlackoutPolicy::ALL.iter().map(|blackout| (blackout.as_str(), blackout.label())).collect()
                    chosen=blackout
                />
            </CollapsibleSection>
        </fieldset>
    }
}

#[component]
fn CalendarBox(form: StoredValue<JobForm>, calendar: CalendarRow) -> impl IntoView {
    let field = format!("rules.{}", calendar_field(calendar.id));
    view! {
        <label class="check">
            <input
                type="checkbox"
                id=control_id(&field)
                name=control_name(&field)
                value="on"
                checked=form.with_value(|form| form.has_calendar(calendar.id))
            />
            <span>
                <strong>{calendar.name}</strong>
                <span class="muted">{format!(" {} ({})", calendar.words, calendar.zone)}</span>
            </span>
        </label>
    }
}

/// Reads the calendars again when the reader comes back from another tab, where one may have been made. Boxes of those
/// that were there already keep their ticks.
fn keep_current(known: RwSignal<Vec<CalendarRow>>) {
    Effect::new(move |_| {
        let back = window_event_listener(ev::focus, move |_| {
            spawn_local(async move {
                if let Ok(read) = list_calendars().await
                    && known.try_with_untracked(|known| *known != read) == Some(true)
                {
                    known.set(read);
                }
            });
        });
        on_cleanup(move || back.remove());
    });
}
