//! The schedule section of the job form: the schedule type, its fields and a preview.
//!
//! All four types are in the form; the radio button `form[kind]` selects the one that counts. The preview's words and
//! dates come from the server, which computes them with the dispatcher's code, so the browser has no second
//! implementation of time zones.

pub mod cron_builder;

use leptos::prelude::*;
use milvaion_api::{requests::JobForm, views::SchedulePreview};
use milvaion_schedule::schedule::IntervalAnchor;

use self::cron_builder::CronBuilder;
use crate::components::{
    collapsible_section::CollapsibleSection,
    fields::{InputField, SelectField, use_script},
    form::{FieldErrorText, adopt_early_choice},
    icon::Icon,
    input_form::{FormState, control_id, control_name},
    radio_field::RadioField,
    table::{Named, Table},
    zone_field::ZoneField,
};

/// The schedule types in the order of the form: value, label and description.
const SCHEDULE_KINDS: [(&str, &str, &str); 4] = [
    ("cron", "Cron expression", "At local times, such as weekdays at 09:00 or the first of each month."),
    ("every", "Interval", "At a fixed interval, or with a pause after each run."),
    ("once", "Once", "At one date and time."),
    ("manual", "Manual only", "Only when a user or the API runs the job."),
];

/// The types with due times of their own, which need a time zone.
const KINDS_WITH_ZONE: [&str; 3] = ["cron", "every", "once"];

/// The form fields of a schedule's start, end and jitter.
const SCHEDULE_BOUND_FIELDS: [&str; 3] = ["rules.start_at", "rules.end_at", "rules.jitter_seconds"];

/// The schedule section of a job form.
#[component]
pub fn ScheduleField(
    /// The state of the enclosing form.
    state: FormState,
    /// The initial values.
    form: JobForm,
    /// Every zone name.
    zones: Vec<String>,
) -> impl IntoView {
    let chosen = RwSignal::new(form.kind.clone());
    adopt_early_choice("form[kind]", move |kind| chosen.set(kind));
    let has_script = use_script();
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
    let cron = form.cron.clone();

    view! {
        <fieldset class="form-section">
            <legend>"Schedule"</legend>
            <fieldset class="radio-cards" id="f-kind" tabindex="-1" aria-describedby="f-kind-error">
                <legend class="sr-only">"Schedule type"</legend>
                {cards}
            </fieldset>
            <FieldErrorText id="f-kind-error" error=kind_error/>
            <div class="stack" hidden=move || is_off(&["cron"])>
                <CronBuilder expression=cron.clone()>
                <TextField
                    state
                    field="cron"
                    label="Cron expression"
                    hint="Five fields: minute, hour, day of month, month, day of week. 0 9 * * 1-5 is weekdays at 09:00, \
                          */15 * * * * every 15 minutes. With six fields the first is the second: */10 * * * * * is every \
                          10 seconds."
                    value=cron
                    placeholder="0 9 * * 1-5"
                />
                </CronBuilder>
            </div>
            <div class="stack" hidden=move || is_off(&["every"])>
                <div class="field-row">
                <TextField state field="every" label="Interval" hint="A whole number of the unit beside it." value=form.every.clone() inputmode="numeric"/>
                <SelectField id=control_id("every_unit") name=control_name("every_unit") label="Unit" error=unit_error>
                    {units}
                </SelectField>
                </div>
                <RadioField
                    state
                    field="every_from"
                    label="Interval counted from"
                    options=vec![
                        (IntervalAnchor::Fire.as_str(), "The previous due time, regardless of how long a run takes"),
                        (IntervalAnchor::End.as_str(), "The end of the previous run, so that scheduled runs never overlap"),
                    ]
                    chosen=RwSignal::new(form.every_from.clone())
                />
            </div>
            <div hidden=move || is_off(&["once"])>
                <TextField state field="once" label="Date and time" hint="Local time in the time zone below." value=form.once.clone() kind="datetime-local"/>
            </div>
            <div hidden=move || is_off(&KINDS_WITH_ZONE) && !state.is_wrong(&["zone"])>
                <ZoneField
                    state
                    hint="IANA name, such as Europe/Warsaw. The schedule follows this zone's clock changes; start and end are \
                          local times in it."
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

/// The collapsible section with a schedule's start, end and jitter.
#[component]
fn ScheduleBounds(
    /// The state of the enclosing form.
    state: FormState,
    /// The initial values.
    form: JobForm,
) -> impl IntoView {
    let is_open = form.has_non_default(&SCHEDULE_BOUND_FIELDS);
    let start = form.rule("start_at");
    let end = form.rule("end_at");
    view! {
        <CollapsibleSection state fields=&SCHEDULE_BOUND_FIELDS is_open summary="Start, end, jitter">
            <div class="field-row">
                <TextField
                    state
                    field="rules.start_at"
                    label="Start"
                    hint="No run is due before this local time in the time zone above. Intervals are counted from it."
                    kind=kind_for(&start)
                    value=start
                    is_required=false
                />
                <TextField
                    state
                    field="rules.end_at"
                    label="End"
                    hint="No run is due at or after this local time in the time zone above."
                    kind=kind_for(&end)
                    value=end
                    is_required=false
                />
            </div>
            <TextField
                state
                field="rules.jitter_seconds"
                label="Jitter (seconds)"
                hint="Delays every run of this job by the same amount, at most this many seconds, so that jobs with the same \
                      due time do not start together. 0 to 86,400; default 0."
                value=form.rule("jitter_seconds")
                inputmode="numeric"
                is_required=false
            />
        </CollapsibleSection>
    }
}

/// Returns the input type for a time. A `datetime-local` control discards a value that is not a local time, so such a
/// value gets a text control.
fn kind_for(text: &str) -> &'static str {
    let fits = |(index, byte): (usize, u8)| match index {
        4 | 7 => byte == b'-',
        10 => byte == b'T',
        13 | 16 => byte == b':',
        _ => byte.is_ascii_digit(),
    };
    let is_local = matches!(text.len(), 0 | 16 | 19) && text.bytes().enumerate().all(fits);
    if is_local { "datetime-local" } else { "text" }
}

/// A single-line text field of a job form, with its label, hint and error.
#[component]
pub fn TextField(
    /// The state of the enclosing form.
    state: FormState,
    /// The name of the field in [`JobForm`].
    field: &'static str,
    /// The visible label.
    label: &'static str,
    /// Help text below the label.
    #[prop(optional)]
    hint: &'static str,
    /// The initial value.
    value: String,
    /// The `type` attribute of the control.
    #[prop(default = "text")]
    kind: &'static str,
    /// The `inputmode` attribute, which selects a phone's keyboard.
    #[prop(default = "text")]
    inputmode: &'static str,
    /// An example value.
    #[prop(optional)]
    placeholder: &'static str,
    /// True if a value is required. An optional field is marked beside its label.
    #[prop(default = true)]
    is_required: bool,
) -> impl IntoView {
    view! {
        <InputField
            id=control_id(field)
            name=control_name(field)
            label
            hint
            optional=!is_required
            value
            error=state.error(field)
            kind
            inputmode
            placeholder
            is_code=field == "cron"
            aria_required=is_required
        />
    }
}

/// A schedule in words, with its next runs in its own zone and in the user's zone.
#[component]
pub fn NextRunsPreview(
    /// The preview; `None` while the schedule is invalid.
    #[prop(into)]
    preview: Signal<Option<SchedulePreview>>,
    /// The text shown without a preview.
    #[prop(default = "The next runs appear here when the schedule is complete.")]
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
                if let Some(reason) = run.blackout {
                    // Nothing runs at that time, so one zone is sufficient and the reason uses the whole row.
                    return view! {
                        <tr data-blackout="true">
                            <td colspan=if has_viewer { "2" } else { "1" }>
                                <time datetime=crate::format::iso(run.at)>{run.in_zone}</time>
                                <span class="preview-note">
                                    <Icon name="calendar-off"/>
                                    <span>{reason}</span>
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
        let mut columns = vec![Named(format!("Next runs ({zone})"))];
        columns.extend(viewer_zone.map(|zone| Named(format!("Your time ({zone})"))));
        view! {
            <Table caption="Next runs" columns class="table">{rows}</Table>
        }
    });
    view! {
        {warnings}
        {table}
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_times_get_a_time_control() {
        for text in ["", "2026-11-21T09:00", "2026-11-21T09:00:30"] {
            assert_eq!(kind_for(text), "datetime-local", "{text}");
        }
        for text in ["tomorrow", "2026-11-21T09:00:30Z", "2026-11-21 09:00", "2026-10-25T02:30:00+01:00"] {
            assert_eq!(kind_for(text), "text", "{text}");
        }
    }
}
