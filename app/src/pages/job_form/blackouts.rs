//! The calendars of a job, and its policy for a due time that falls in a blackout.

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

/// The names of this section's fields. Errors of the single calendar boxes are reported under `rules.calendars`.
const BLACKOUT_FIELDS: [&str; 2] = ["rules.calendars", "rules.blackout"];

/// The section of a job form for blackouts.
#[component]
pub fn BlackoutSection(
    /// The state of the form.
    state: FormState,
    /// The initial values of the fields.
    form: JobForm,
    /// All calendars.
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
    let none_yet = move || {
        let is_none = known.with(Vec::is_empty);
        is_none.then(|| view! { <p class="muted">"No calendars yet."</p> })
    };
    view! {
        <fieldset class="form-section">
            <legend>"Blackouts"</legend>
            <CollapsibleSection state fields=&BLACKOUT_FIELDS is_open summary="Blackout calendars and blackout policy">
                <div class="field" class:has-error=move || error.with(Option::is_some)>
                    <fieldset class="check-list" id=id.clone() tabindex="-1" aria-describedby=described_by(&id)>
                        <legend>"Blackout calendars"</legend>
                        {none_yet}
                        <For each=move || known.get() key=|calendar| calendar.id let:calendar>
                            <CalendarBox form calendar/>
                        </For>
                    </fieldset>
                    <p class="hint" id=format!("{id}-hint")>
                        "The job does not start in a blackout of any selected calendar. Select up to 10. "
                        <a href="/calendars/new" target="_blank" rel="external">"Create a calendar"</a>
                        " (opens in a new tab)."
                    </p>
                    <FieldErrorText id=format!("{id}-error") error/>
                </div>
                <RadioField
                    state
                    field="rules.blackout"
                    label="Blackout policy"
                    hint="Applies to a due time in a blackout. All due times postponed to the end of one blackout become one run."
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

/// Reads the calendars again when the window regains focus, because the user may have created one in another tab. The
/// boxes of known calendars keep their state.
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
