//! The schedule builder: daily, weekly or monthly at a time, as another view of the cron expression.
//!
//! Only the expression is part of the form, so a page without scripts, which cannot keep both in step, shows the
//! expression alone. A change in the builder writes the expression into its field like typed text, which also checks the
//! form. Typed text that has the form of the builder is shown in it. Any other expression is *Custom*, and the builder
//! leaves it unchanged.

use leptos::{ev, prelude::*};
use milvaion_schedule::builder::{CronPattern, PatternDays};

use crate::{browser, components::input_form::control_id};

/// The days of the week from Monday: the bit in [`PatternDays::Weekly`] and the name.
const WEEKDAYS: [(u8, &str); 7] =
    [(1, "Monday"), (2, "Tuesday"), (3, "Wednesday"), (4, "Thursday"), (5, "Friday"), (6, "Saturday"), (0, "Sunday")];

/// The kinds in the order of the select: value and label.
const PATTERN_KINDS: [(&str, &str); 4] =
    [("daily", "Daily"), ("weekly", "Weekly"), ("monthly", "Monthly"), ("custom", "Custom expression")];

/// The builder above the cron expression's field, which is its child.
#[component]
pub fn CronBuilder(
    /// The initial expression.
    expression: String,
    /// The field of the expression.
    children: Children,
) -> impl IntoView {
    let pattern = RwSignal::new(CronPattern::parse(&expression));
    let on_text = move |event: ev::Event| {
        let text = event_target_value(&event);
        let parsed = CronPattern::parse(&text);
        if pattern.get_untracked() != parsed {
            pattern.set(parsed);
        }
    };
    let write = Callback::new(move |changed: CronPattern| {
        browser::type_value(&control_id("cron"), &changed.to_cron());
    });
    let kind = move || kind_of(pattern.get());
    let options: Vec<_> = PATTERN_KINDS
        .into_iter()
        .map(|(value, label)| {
            view! { <option value=value selected=move || kind() == value>{label}</option> }
        })
        .collect();
    let choose = move |event: ev::Event| {
        let before = pattern.get_untracked().unwrap_or(CronPattern { days: PatternDays::Daily, hour: 9, minute: 0 });
        let days = match event_target_value(&event).as_str() {
            "daily" => PatternDays::Daily,
            "weekly" => PatternDays::Weekly(0b011_1110),
            "monthly" => PatternDays::Monthly(1),
            // The expression stays as it is and is edited as text.
            _ => {
                pattern.set(None);
                browser::focus(&control_id("cron"));
                return;
            }
        };
        write.run(CronPattern { days, ..before });
    };
    let parts = Memo::new(move |_| kind());
    view! {
        <div class="field-row needs-js">
            <div class="field">
                <label for="f-repeats">"Repeats"</label>
                <select id="f-repeats" prop:value=kind on:change=choose>
                    {options}
                </select>
            </div>
            {move || match parts.get() {
                "custom" => ().into_any(),
                kind => pattern_fields(kind, pattern, write),
            }}
        </div>
        <div on:input=on_text>{children()}</div>
    }
}

/// Returns the value of a pattern's kind in the select.
fn kind_of(pattern: Option<CronPattern>) -> &'static str {
    match pattern.map(|pattern| pattern.days) {
        None => "custom",
        Some(PatternDays::Daily) => "daily",
        Some(PatternDays::Weekly(_)) => "weekly",
        Some(PatternDays::Monthly(_) | PatternDays::LastOfMonth) => "monthly",
    }
}

/// Renders the fields of one kind of pattern.
fn pattern_fields(kind: &'static str, pattern: RwSignal<Option<CronPattern>>, write: Callback<CronPattern>) -> AnyView {
    let change = move |edit: &dyn Fn(&mut CronPattern)| {
        if let Some(mut changed) = pattern.get_untracked() {
            edit(&mut changed);
            write.run(changed);
        }
    };
    let time = move || pattern.get().map(|now| format!("{:02}:{:02}", now.hour, now.minute)).unwrap_or_default();
    let set_time = move |event: ev::Event| {
        let text = event_target_value(&event);
        let mut parts = text.split(':').map(str::parse::<u8>);
        // An incomplete time is empty and changes nothing.
        if let (Some(Ok(hour)), Some(Ok(minute))) = (parts.next(), parts.next()) {
            change(&|pattern| (pattern.hour, pattern.minute) = (hour, minute));
        }
    };
    let days = match kind {
        "weekly" => weekday_boxes(pattern, write),
        "monthly" => month_day_select(pattern, write),
        _ => ().into_any(),
    };
    view! {
        <div class="field">
            <label for="f-repeats-time">"Time"</label>
            <input type="time" id="f-repeats-time" required prop:value=time value=time on:change=set_time/>
        </div>
        {days}
    }
    .into_any()
}

fn weekday_boxes(pattern: RwSignal<Option<CronPattern>>, write: Callback<CronPattern>) -> AnyView {
    let bits = move || match pattern.get().map(|pattern| pattern.days) {
        Some(PatternDays::Weekly(bits)) => bits,
        _ => 0,
    };
    let boxes: Vec<_> = WEEKDAYS
        .into_iter()
        .map(|(day, name)| {
            let is_on = move || bits() & (1 << day) != 0;
            let toggle = move |_| {
                let Some(before) = pattern.get_untracked() else { return };
                let PatternDays::Weekly(bits) = before.days else { return };
                // At least one day stays selected, because a schedule without days is none.
                let days = match bits ^ (1 << day) {
                    0 => bits,
                    changed => changed,
                };
                write.run(CronPattern { days: PatternDays::Weekly(days), ..before });
                // A refused change must also show.
                pattern.notify();
            };
            view! {
                <label class="check">
                    <input type="checkbox" prop:checked=is_on checked=is_on on:change=toggle/>
                    <span>{name}</span>
                </label>
            }
        })
        .collect();
    view! {
        <fieldset class="cluster">
            <legend>"Weekdays"</legend>
            {boxes}
        </fieldset>
    }
    .into_any()
}

fn month_day_select(pattern: RwSignal<Option<CronPattern>>, write: Callback<CronPattern>) -> AnyView {
    let chosen = move || match pattern.get().map(|pattern| pattern.days) {
        Some(PatternDays::Monthly(day)) => day,
        _ => 0,
    };
    let options: Vec<_> = (1..=31)
        .map(|day| {
            let is_chosen = move || chosen() == day;
            view! { <option value=day.to_string() selected=is_chosen>{day.to_string()}</option> }
        })
        .collect();
    let choose = move |event: ev::Event| {
        let Some(before) = pattern.get_untracked() else { return };
        let days = match event_target_value(&event).parse() {
            Ok(day @ 1..=31) => PatternDays::Monthly(day),
            _ => PatternDays::LastOfMonth,
        };
        write.run(CronPattern { days, ..before });
    };
    view! {
        <div class="field">
            <label for="f-repeats-day">"Day of month"</label>
            <select id="f-repeats-day" prop:value=move || chosen().to_string() on:change=choose>
                {options}
                <option value="0" selected=move || chosen() == 0>"Last day"</option>
            </select>
            <p class="hint">"A month without this day has no run."</p>
        </div>
    }
    .into_any()
}
