//! An expression as an English sentence, derived from its bits.
//!
//! `croner` words the time of day. It receives lists, and a step only if the step divides the field evenly, because
//! `*/7` minutes is not "every 7 minutes". This module words the days and months.

use croner::parser::{CronParser, Seconds};

use super::matcher::{ANY_MONTHDAY, ANY_WEEKDAY, CronMatcher, MonthDays, WeekDays};

const MONTH_NAMES: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAY_NAMES: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Returns the sentence, with its full stop.
pub(super) fn sentence(matcher: &CronMatcher) -> String {
    let mut sentence = time(matcher);
    match (month_days(matcher.month_days), week_days(matcher.week_days)) {
        (None, None) => {}
        (Some(days), None) | (None, Some(days)) => sentence += &format!(", on {days}"),
        (Some(days), Some(week)) => sentence += &format!(", on {days} if it is also {week}"),
    }
    let months: Vec<&str> = values(matcher.months, 1, 12).map(|month| MONTH_NAMES[month as usize - 1]).collect();
    if months.len() < 12 {
        sentence += &format!(", in {}", joined(&months, "and"));
    }
    sentence + "."
}

fn time(matcher: &CronMatcher) -> String {
    let fields =
        [(matcher.seconds, 60), (matcher.minutes, 60), (matcher.hours, 24)].map(|(bits, size)| part(bits, size));
    let words = CronParser::builder()
        .seconds(Seconds::Required)
        .build()
        .parse(&format!("{} {} {} * * *", fields[0], fields[1], fields[2]))
        .map(|cron| cron.describe())
        .unwrap_or_default();
    let words = words.trim_end_matches('.');
    match words.strip_prefix("At every ") {
        Some(rest) => format!("Every {rest}"),
        None => words.to_owned(),
    }
}

/// Returns the text of a time field: `*`, an even step, or its values.
fn part(bits: u64, size: u32) -> String {
    let even = |step: &u32| {
        size.is_multiple_of(*step) && (0..size).step_by(*step as usize).fold(0, |all, n| all | 1 << n) == bits
    };
    match (1..=size / 2).find(even) {
        Some(1) => "*".into(),
        Some(step) => format!("*/{step}"),
        None => values(bits, 0, size - 1).map(|n| n.to_string()).collect::<Vec<_>>().join(","),
    }
}

fn month_days(days: MonthDays) -> Option<String> {
    Some(match days {
        any if any == ANY_MONTHDAY => return None,
        MonthDays::Listed(bits) => format!("day {}", joined(&runs(u64::from(bits)), "and")),
        MonthDays::Last(0) => "the last day of the month".into(),
        MonthDays::Last(1) => "the day before the last day of the month".into(),
        MonthDays::Last(before) => format!("the day {before} days before the last day of the month"),
        MonthDays::WeekdayNear(day) => format!("the weekday nearest day {day}"),
        MonthDays::WeekdayNearLast(0) => "the last weekday of the month".into(),
        MonthDays::WeekdayNearLast(1) => "the weekday nearest the day before the last day of the month".into(),
        MonthDays::WeekdayNearLast(before) => {
            format!("the weekday nearest the day {before} days before the last day of the month")
        }
    })
}

fn week_days(days: WeekDays) -> Option<String> {
    let name = |day: u32| DAY_NAMES[day as usize % 7];
    Some(match days {
        any if any == ANY_WEEKDAY => return None,
        WeekDays::Listed(bits) => match bits {
            0b011_1110 => "Monday to Friday".into(),
            _ => joined(&values(u64::from(bits), 0, 6).map(name).collect::<Vec<_>>(), "or"),
        },
        WeekDays::Last(day) => format!("the last {} of the month", name(day)),
        WeekDays::Nth(day, nth) => {
            let nth = ["first", "second", "third", "fourth", "fifth"][(nth as usize).clamp(1, 5) - 1];
            format!("the {nth} {} of the month", name(day))
        }
    })
}

/// Returns the set bits from `low` to `high`.
fn values(bits: u64, low: u32, high: u32) -> impl Iterator<Item = u32> {
    (low..=high).filter(move |n| bits & (1 << n) != 0)
}

/// Returns the set bits as text. Three or more consecutive bits become a range.
fn runs(bits: u64) -> Vec<String> {
    let mut texts = Vec::new();
    let mut n = 0;
    while n < 64 {
        let length = (bits >> n).trailing_ones();
        match length {
            0 => n += 1,
            1 | 2 => {
                texts.extend((n..n + length).map(|n| n.to_string()));
                n += length;
            }
            _ => {
                texts.push(format!("{n}–{}", n + length - 1));
                n += length;
            }
        }
    }
    texts
}

fn joined<T: AsRef<str>>(items: &[T], conjunction: &str) -> String {
    match items {
        [] => String::new(),
        [one] => one.as_ref().to_owned(),
        [front @ .., last] => {
            let front: Vec<&str> = front.iter().map(AsRef::as_ref).collect();
            format!("{} {conjunction} {}", front.join(", "), last.as_ref())
        }
    }
}
