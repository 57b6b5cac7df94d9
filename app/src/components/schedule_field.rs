//! When a job runs: the choice, its fields, and what it comes to.
//!
//! All four ways are in the form; the radio button `form[kind]` says which one counts. The words and dates beside it come
//! from the server, which asks the same code the dispatcher asks: the browser has no second opinion about time zones.

use leptos::prelude::*;
use milvaion_api::{requests::JobForm, views::SchedulePreview};
use milvaion_schedule::schedule::IntervalAnchor;

use crate::components::{
    form::{FieldErrorText, FormField, described_by},
    icon::Icon,
    input_form::{FormState, control_id, control_name},
    radio_field::RadioField,
    schedule_bounds::{SCHEDULE_BOUND_FIELDS, ScheduleBounds},
    zone_field::ZoneField,
};

/// The ways, in the order of the form: the value, the name, and what it is for.
const SCHEDULE_KINDS: [(&str, &str, &str); 4] = [
    ("cron", "Cron expression", "At local times: every weekday at nine, on the first of the month."),
    ("every", "Every so often", "In a fixed rhythm, or with a pause after each run."),
    ("once", "Once", "At one date and time."),
    ("manual", "Only by hand", "When somebody runs it."),
];

/// Those that make a job due by themselves, and so need a clock.
const KINDS_WITH_ZONE: [&str; 3] = ["cron", "every", "once"];

/// The section of a job form that says when.
#[component]
pub fn ScheduleField(
    /// The form it is in.
    state: FormState,
    /// What stands in its fields at first.
    form: JobForm,
    /// Every zone name.
    zones: Vec<String>,
) -> impl IntoView {
    let chosen = RwSignal::new(form.kind.clone());
    // Nothing is hidden before there is a script that can show it again.
    let has_script = RwSignal::new(false);
    Effect::new(move |_| has_script.set(true));
    let is_off = move |kinds: &'static [&'static str]| {
        has_script.get() && !chosen.with(|chosen| kinds.contains(&chosen.as_str()))
    };
    let kind_error = state.error("kind");
    let unit_error = state.error("every_unit");

    let cards: Vec<_> = SCHEDULE_KINDS
        .into_iter()
        .map(|(value, name, what)| {
            view! {
                <label class="radio-card">
                    <input
                        type="radio"
                        name="form[kind]"
                        value=value
                        checked=form.kind == value
                        on:change=move |_| chosen.set(value.into())
                    />
                    <span>
                        <strong>{name}</strong>
                        <span class="muted">{what}</span>
                    </span>
                </label>
            }
        })
        .collect();
    let units: Vec<_> = ["seconds", "minutes", "hours", "days"]
        .into_iter()
        .map(|unit| view! { <option value=unit selected=form.every_unit == unit>{unit}</option> })
        .collect();
    let zone = form.zone.clone();

    view! {
        <fieldset class="form-section">
            <legend>"When"</legend>
            <fieldset class="radio-cards" id="f-kind" tabindex="-1" aria-describedby="f-kind-error">
                <legend class="sr-only">"How it is scheduled"</legend>
                {cards}
            </fieldset>
            <FieldErrorText id="f-kind-error" error=kind_error/>
            <div hidden=move || is_off(&["cron"])>
                <TextField
                    state
                    field="cron"
                    label="Cron expression"
                    hint="Minute, hour, day of month, month, day of week: 0 9 * * 1-5 is weekdays at 9:00, */15 * * * * every quarter \
                          of an hour. Six fields begin with the second: */10 * * * * * is every ten seconds."
                    value=form.cron.clone()
                    placeholder="0 9 * * 1-5"
                />
            </div>
            <div class="stack" hidden=move || is_off(&["every"])>
                <div class="field-row">
                <TextField state field="every" label="Every" hint="A whole number." value=form.every.clone() inputmode="numeric"/>
                <FormField id=control_id("every_unit") label="Unit" error=unit_error>
                    <select
                        id=control_id("every_unit")
                        name=control_name("every_unit")
                        aria-describedby=described_by("f-every_unit")
                        aria-invalid=move || unit_error.get().is_some().then_some("true")
                    >
                        {units}
                    </select>
                </FormField>
                </div>
                <RadioField
                    state
                    field="every_from"
                    label="Counted from"
                    options=vec![
                        (IntervalAnchor::Fire.as_str(), "The last fire, however long a run takes"),
                        (IntervalAnchor::End.as_str(), "The end of the last run, so that two never overlap"),
                    ]
                    chosen=RwSignal::new(form.every_from.clone())
                />
            </div>
            <div hidden=move || is_off(&["once"])>
                <TextField state field="once" label="Date and time" hint="On the clock of the zone below." value=form.once.clone() kind="datetime-local"/>
            </div>
            <div hidden=move || is_off(&KINDS_WITH_ZONE) && !state.is_wrong(&["zone"])>
                <ZoneField
                    state
                    hint="An IANA name such as Europe/Warsaw; the schedule follows its clock changes, and start and \
                          end are on its clock."
                    value=zone
                    zones
                />
            </div>
            <div hidden=move || is_off(&KINDS_WITH_ZONE) && !state.is_wrong(&SCHEDULE_BOUND_FIELDS)>
                <ScheduleBounds state form/>
            </div>
        </fieldset>
    }
}

/// One line of text in a job form, with its label, its hint and what is wrong with it.
#[component]
pub fn TextField(
    /// The form it is in.
    state: FormState,
    /// Its field in [`JobForm`].
    field: &'static str,
    /// What people read.
    label: &'static str,
    /// What helps to fill it in.
    #[prop(optional)]
    hint: &'static str,
    /// What stands in it at first.
    value: String,
    /// The type of the control.
    #[prop(default = "text")]
    kind: &'static str,
    /// Which keyboard a phone shows.
    #[prop(default = "text")]
    inputmode: &'static str,
    /// An example.
    #[prop(optional)]
    placeholder: &'static str,
    /// Whether it must be given; what need not is said so beside the label.
    #[prop(default = true)]
    is_required: bool,
) -> impl IntoView {
    let error = state.error(field);
    let id = control_id(field);
    let class = if field == "cron" { "input-mono" } else { "" };
    // With seconds, so that a moment set to the second is not refused by the browser.
    let step = (kind == "datetime-local").then_some("1");
    view! {
        <FormField id=id.clone() label hint optional=!is_required error>
            <input
                type=kind
                id=id.clone()
                name=control_name(field)
                class=class
                value=value
                step=step
                inputmode=(inputmode != "text").then_some(inputmode)
                placeholder=(!placeholder.is_empty()).then_some(placeholder)
                autocomplete="off"
                spellcheck=if field == "cron" { Some("false") } else { None }
                aria-required=is_required.then_some("true")
                aria-describedby=described_by(&id)
                aria-invalid=move || error.get().is_some().then_some("true")
            />
        </FormField>
    }
}

/// A schedule in words, and its next runs in its own zone and in the reader's.
#[component]
pub fn NextRunsPreview(
    /// What there is to show; none while the schedule is not right.
    #[prop(into)]
    preview: Signal<Option<SchedulePreview>>,
    /// What to say when there is nothing to show.
    #[prop(default = "As soon as the schedule is complete, its next runs stand here.")]
    otherwise: &'static str,
) -> impl IntoView {
    view! {
        <div class="preview">
            <p class="preview-words" role="status">
                {move || preview.with(|preview| preview.as_ref().map(|preview| preview.words.clone()))}
            </p>
            {move || match preview.get() {
                None => view! { <p class="hint">{otherwise}</p> }.into_any(),
                Some(preview) => details(preview),
            }}
        </div>
    }
}

fn details(preview: SchedulePreview) -> AnyView {
    let SchedulePreview { zone, viewer_zone, runs, warnings, .. } = preview;
    let warnings = (!warnings.is_empty()).then(|| {
        let items: Vec<_> = warnings
            .into_iter()
            .map(|warning| {
                view! {
                    <p class="notice" data-kind="warn">
                        <Icon name="triangle-alert"/>
                        <span>{warning}</span>
                    </p>
                }
            })
            .collect();
        view! { <div class="stack">{items}</div> }
    });
    let table = (!runs.is_empty()).then(|| {
        let has_viewer = viewer_zone.is_some();
        let rows: Vec<_> = runs
            .into_iter()
            .map(|run| {
                if let Some(says) = run.blackout {
                    // Nothing runs then, so one clock is enough, and what becomes of it has the whole row.
                    return view! {
                        <tr data-blackout="true">
                            <td colspan=if has_viewer { "2" } else { "1" }>
                                <time datetime=crate::format::iso(run.at)>{run.in_zone}</time>
                                <span class="preview-note">
                                    <Icon name="calendar-off"/>
                                    <span>{says}</span>
                                </span>
                            </td>
                        </tr>
                    }
                    .into_any();
                }
                let own = has_viewer.then(|| view! { <td>{run.in_viewer_zone.unwrap_or_default()}</td> });
                view! {
                    <tr>
                        <td>
                            <time datetime=crate::format::iso(run.at)>{run.in_zone}</time>
                        </td>
                        {own}
                    </tr>
                }
                .into_any()
            })
            .collect();
        view! {
            <div class="table-wrap">
                <table class="table">
                    <caption class="sr-only">"Next runs"</caption>
                    <thead>
                        <tr>
                            <th scope="col">{format!("Next, {zone}")}</th>
                            {viewer_zone.map(|zone| view! { <th scope="col">{format!("Yours, {zone}")}</th> })}
                        </tr>
                    </thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
        }
    });
    view! {
        {warnings}
        {table}
    }
    .into_any()
}
