//! Random expressions together with the values that they stand for, enumerated independently of the parser.

use std::collections::BTreeSet;

use chrono::{Datelike, Duration, NaiveDate};
use proptest::prelude::*;

/// The text of a field and the values that it stands for.
#[derive(Clone, Debug)]
pub(crate) struct FieldValues {
    pub(crate) text: String,
    pub(crate) set: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
pub(crate) enum DayField {
    Of(FieldValues),
    LastOfMonth(u32),
    WeekdayNear(u32),
    WeekdayNearLast(u32),
    LastInMonth(u32),
    Nth(u32, u32),
}

#[derive(Clone, Debug)]
pub(crate) struct CronPattern {
    pub(crate) text: String,
    /// The text of the last three fields.
    pub(crate) days: String,
    pub(crate) seconds: BTreeSet<u32>,
    pub(crate) minutes: BTreeSet<u32>,
    pub(crate) hours: BTreeSet<u32>,
    pub(crate) month_day: DayField,
    pub(crate) months: BTreeSet<u32>,
    pub(crate) week_day: DayField,
    pub(crate) interval: bool,
}

/// Enumerates each `step`-th value from `from` to `to`, wrapping around the end of the field.
fn enumerate(low: u32, high: u32, from: u32, to: u32, step: u32) -> BTreeSet<u32> {
    let (mut value, mut n, mut set) = (from, 0, BTreeSet::new());
    loop {
        if n % step == 0 {
            set.insert(value);
        }
        if value == to {
            return set;
        }
        value = if value == high { low } else { value + 1 };
        n += 1;
    }
}

/// Generates a field. `top` is the maximum step and the end of `a/b`; `high` is the value after which a range wraps.
/// The two differ for weekdays.
fn values(low: u32, high: u32, top: u32) -> impl Strategy<Value = FieldValues> {
    let one = low..=high;
    let item = prop_oneof![
        4 => one.clone().prop_map(|n| (n.to_string(), BTreeSet::from([n]))),
        2 => (one.clone(), one.clone()).prop_map(move |(a, b)| (format!("{a}-{b}"), enumerate(low, high, a, b, 1))),
        1 => (one.clone(), one.clone(), 1..=top)
            .prop_map(move |(a, b, c)| (format!("{a}-{b}/{c}"), enumerate(low, high, a, b, c))),
        1 => (one, 1..=top).prop_map(move |(a, c)| (format!("{a}/{c}"), enumerate(low, top, a, top, c))),
    ];
    prop_oneof![
        4 => Just(("*".to_owned(), enumerate(low, high, low, high, 1))),
        2 => (1..=top).prop_map(move |c| (format!("*/{c}"), enumerate(low, top, low, top, c))),
        6 => prop::collection::vec(item, 1..4).prop_map(|items| {
            let text: Vec<String> = items.iter().map(|(text, _)| text.clone()).collect();
            (text.join(","), items.into_iter().flat_map(|(_, set)| set).collect())
        }),
    ]
    .prop_map(|(text, set)| FieldValues { text, set })
}

fn fixed(low: u32, high: u32) -> impl Strategy<Value = FieldValues> {
    prop::collection::btree_set(low..=high, 1..4).prop_map(|set| {
        let text: Vec<String> = set.iter().map(ToString::to_string).collect();
        FieldValues { text: text.join(","), set }
    })
}

fn month_day() -> impl Strategy<Value = (String, DayField)> {
    let any = || Just(("*".to_owned(), DayField::Of(FieldValues { text: "*".into(), set: (1..=31).collect() })));
    prop_oneof![
        8 => any(),
        1 => Just(("?".to_owned(), DayField::Of(FieldValues { text: "?".into(), set: (1..=31).collect() }))),
        4 => values(1, 31, 31).prop_map(|v| (v.text.clone(), DayField::Of(v))),
        1 => Just(("L".to_owned(), DayField::LastOfMonth(0))),
        1 => (0..=30_u32).prop_map(|n| (format!("L-{n}"), DayField::LastOfMonth(n))),
        1 => Just(("LW".to_owned(), DayField::WeekdayNearLast(0))),
        1 => (0..=30_u32).prop_map(|n| (format!("L-{n}W"), DayField::WeekdayNearLast(n))),
        1 => (1..=31_u32).prop_map(|n| (format!("{n}W"), DayField::WeekdayNear(n))),
    ]
}

fn week_day() -> impl Strategy<Value = (String, DayField)> {
    let names = ["SUN", "mon", "Tue", "WED", "THU", "FRI", "sat"];
    prop_oneof![
        8 => Just(("*".to_owned(), DayField::Of(FieldValues { text: "*".into(), set: (0..=6).collect() }))),
        3 => values(0, 6, 7).prop_map(|v| {
            let set = v.set.iter().map(|n| n % 7).collect();
            (v.text.clone(), DayField::Of(FieldValues { set, ..v }))
        }),
        2 => (0..7_usize, 0..7_usize).prop_map(move |(a, b)| {
            let set = enumerate(0, 6, a as u32, b as u32, 1);
            (format!("{}-{}", names[a], names[b]), DayField::Of(FieldValues { text: String::new(), set }))
        }),
        1 => (0..=7_u32).prop_map(|n| (format!("{n}L"), DayField::LastInMonth(n % 7))),
        1 => (0..=7_u32, 1..=5_u32).prop_map(|(n, k)| (format!("{n}#{k}"), DayField::Nth(n % 7, k))),
    ]
}

/// Generates any pattern: half of them fixed, half of them with seconds.
pub(crate) fn pattern() -> impl Strategy<Value = CronPattern> {
    let month = prop_oneof![3 => Just(None), 1 => values(1, 12, 12).prop_map(Some)];
    let time = |interval: bool| {
        if interval {
            (values(0, 59, 59).boxed(), values(0, 59, 59).boxed(), values(0, 23, 23).boxed())
        } else {
            (fixed(0, 59).boxed(), fixed(0, 59).boxed(), fixed(0, 23).boxed())
        }
    };
    (any::<bool>().prop_flat_map(time), any::<bool>(), month_day(), month, week_day()).prop_map(
        |((second, minute, hour), six, (day_text, month_day), month, (week_text, week_day))| {
            let zero = FieldValues { text: "0".into(), set: BTreeSet::from([0]) };
            let second = if six { second } else { zero };
            let month = month.unwrap_or_else(|| FieldValues { text: "*".into(), set: (1..=12).collect() });
            let lead = if six { format!("{} ", second.text) } else { String::new() };
            let days = format!("{day_text} {} {week_text}", month.text);
            CronPattern {
                text: format!("{lead}{} {} {days}", minute.text, hour.text),
                days,
                interval: [&second, &minute, &hour].iter().any(|field| field.text.contains(['*', '-', '/'])),
                seconds: second.set,
                minutes: minute.set,
                hours: hour.set,
                month_day,
                months: month.set,
                week_day,
            }
        },
    )
}

fn length(date: NaiveDate) -> u32 {
    (28..=31).rev().find(|day| date.with_day(*day).is_some()).expect("a month has at least 28 days")
}

fn nearest_weekday(date: NaiveDate, target: u32) -> Option<u32> {
    let target = date.with_day(target)?;
    // The nearest Monday to Friday of the same month. There are never two equally near ones.
    [0, -1, 1, -2, 2]
        .iter()
        .map(|days| target + Duration::days(*days))
        .find(|day| day.month() == target.month() && day.weekday().num_days_from_monday() < 5)
        .map(|day| day.day())
}

pub(crate) fn day_matches(day: &DayField, date: NaiveDate) -> bool {
    let (number, weekday, last) = (date.day(), date.weekday().num_days_from_sunday(), length(date));
    match day {
        DayField::Of(values) => values.set.contains(&number),
        DayField::LastOfMonth(n) => number + n == last,
        DayField::WeekdayNear(n) => nearest_weekday(date, *n) == Some(number),
        DayField::WeekdayNearLast(n) => *n < last && nearest_weekday(date, last - n) == Some(number),
        DayField::LastInMonth(day) => weekday == *day && number + 7 > last,
        DayField::Nth(day, k) => weekday == *day && number.div_ceil(7) == *k,
    }
}

impl CronPattern {
    pub(crate) fn date_matches(&self, date: NaiveDate) -> bool {
        let week = match &self.week_day {
            DayField::Of(values) => values.set.contains(&date.weekday().num_days_from_sunday()),
            other => day_matches(other, date),
        };
        self.months.contains(&date.month()) && week && day_matches(&self.month_day, date)
    }
}
