//! The weekly windows of a calendar: rows of seven checkboxes and two times.
//!
//! A browser without scripts gets a few spare rows, and empty rows are ignored when the form is read. A script adds and
//! removes rows on request.

use leptos::prelude::*;
use milvaion_api::calendar_form::{CalendarForm, weekday_field};
use milvaion_schedule::calendar::describe::WEEKDAYS;

use crate::components::{
    form::{FieldErrorText, described_by},
    icon::Icon,
    input_form::{FormState, control_id},
};

/// The number of spare rows for a browser without scripts.
const SPARE_WINDOW_ROWS: usize = 3;

/// The section of a calendar form with the weekly windows.
#[component]
pub fn WindowsSection(
    /// The state of the form.
    state: FormState,
    /// The initial values of the fields.
    form: CalendarForm,
    /// Called after a row was added or removed.
    on_change: Callback<()>,
) -> impl IntoView {
    let rows = form.rows();
    let unused = rows.last().map_or(0, |last| last + 1);
    let next = StoredValue::new(unused + SPARE_WINDOW_ROWS);
    let rows = RwSignal::new(rows);
    let form = StoredValue::new(form);
    let error = state.error("windows");
    let add = move |_| {
        let row = next.get_value();
        next.set_value(row + 1);
        rows.update(|rows| rows.push(row));
        on_change.run(());
    };
    let remove = Callback::new(move |row: usize| {
        rows.update(|rows| rows.retain(|known| *known != row));
        on_change.run(());
    });
    let number =
        move |row: usize| rows.with(|rows| rows.iter().position(|known| *known == row).unwrap_or_default() + 1);
    let spare: Vec<_> = (unused..unused + SPARE_WINDOW_ROWS)
        .enumerate()
        .map(|(n, row)| {
            let name = Signal::derive(move || format!("Window {}", rows.with(Vec::len) + n + 1));
            view! { <div class="hide-js"><WindowRow state form row name/></div> }
        })
        .collect();
    view! {
        <fieldset class="form-section" id=control_id("windows") tabindex="-1">
            <legend>"Weekly windows"</legend>
            <p class="hint">
                "Hours that repeat every week. An end that is not after its start is on the next day; "
                "00:00 to 00:00 is the whole day."
            </p>
            <FieldErrorText id="f-windows-error" error/>
            <For each=move || rows.get() key=|row| *row let:row>
                <WindowRow state form row name=Signal::derive(move || format!("Window {}", number(row))) remove/>
            </For>
            {spare}
            <div class="needs-js">
                <button type="button" class="btn" on:click=add>
                    <Icon name="plus"/>
                    "Add a window"
                </button>
            </div>
        </fieldset>
    }
}

/// One row: a blackout on each selected weekday, from one time to the other.
#[component]
fn WindowRow(
    state: FormState,
    form: StoredValue<CalendarForm>,
    row: usize,
    name: Signal<String>,
    #[prop(optional)] remove: Option<Callback<usize>>,
) -> impl IntoView {
    let field = format!("windows.{row}");
    let id = control_id(&field);
    let error = state.error(field);
    let typed = move |field: &str| form.with_value(|form| form.window(row, field));
    let input_name = move |field: &str| format!("form[windows][{row}][{field}]");
    let boxes: Vec<_> = WEEKDAYS
        .into_iter()
        .map(|(_, word)| {
            let field = weekday_field(word);
            view! {
                <label class="day">
                    <input type="checkbox" name=input_name(&field) value="on" checked=!typed(&field).is_empty()/>
                    <span>{word}</span>
                </label>
            }
        })
        .collect();
    let time = |field: &'static str, label: &'static str| {
        let value = typed(field);
        // A value with seconds needs a step of one second, or the browser refuses it.
        let step = (value.len() == 8).then_some("1");
        let (id, described_by) = (format!("{id}-{field}"), described_by(&id));
        view! {
            <div class="field">
                <label for=id.clone()>{label}</label>
                <input type="time" id=id name=input_name(field) value=value step=step aria-describedby=described_by/>
            </div>
        }
    };
    let (from, to) = (time("from", "From"), time("to", "To"));
    view! {
        <fieldset class="window" class:has-error=move || error.with(Option::is_some) id=id.clone() tabindex="-1">
            <legend>{move || name.get()}</legend>
            <div class="window-row">
                <div class="days" role="group" aria-label="Days">{boxes}</div>
                {from}
                {to}
                {remove
                    .map(|remove| {
                        view! {
                            <button
                                type="button"
                                class="icon-btn needs-js"
                                aria-label=move || format!("Remove {}", name.get().to_lowercase())
                                title="Remove"
                                on:click=move |_| remove.run(row)
                            >
                                <Icon name="trash-2"/>
                            </button>
                        }
                    })}
            </div>
            <FieldErrorText id=format!("{id}-error") error/>
        </fieldset>
    }
}
