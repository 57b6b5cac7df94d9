//! An expression as an English sentence, derived from its bits.
//!
//! A step is worded as one only if it divides the field evenly, because `*/7` minutes is not "every 7 minutes". The values
//! of any other field are listed.

use super::matcher::{ANY_MONTHDAY, ANY_WEEKDAY, CronMatcher, MonthDays, WeekDays};

/// Every second or every minute.
const ANY_OF_60: u64 = (1 << 60) - 1;
/// Every hour.
const ANY_HOUR: u64 = (1 << 24) - 1;

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

/// Returns the time of day: a time on the clock, or the matching seconds, minutes and hours.
fn time(matcher: &CronMatcher) -> String {
    let CronMatcher { seconds, minutes, hours, .. } = *matcher;
    let [second, minute, hour] = [("second", seconds, 60), ("minute", minutes, 60), ("hour", hours, 24)]
        .map(|(unit, bits, size)| part(unit, bits, size));
    if minutes.is_power_of_two() && hours.is_power_of_two() && seconds != ANY_OF_60 {
        let clock = format!("At {:02}:{:02}", hours.trailing_zeros(), minutes.trailing_zeros());
        return match seconds {
            1 => clock,
            one if one.is_power_of_two() => format!("{clock}:{:02}", one.trailing_zeros()),
            _ if second.starts_with("every") => format!("{clock}, {second}"),
            _ => format!("{clock}, at {second}"),
        };
    }
    let has_listed_minutes = minute.starts_with("minute");
    let mut words = match (seconds, minutes) {
        (1, _) => minute,
        (_, ANY_OF_60) => second,
        _ => format!("{second}, {minute}"),
    };
    // Listed minutes are past each hour, and a whole hour is past the listed ones. Everything else is "of" its hours.
    let is_past = match words.as_str() {
        _ if hours == ANY_HOUR => has_listed_minutes,
        "every second" | "every minute" => hour.starts_with("hour"),
        _ => false,
    };
    if is_past {
        words += &format!(" past {hour}");
    } else if hours != ANY_HOUR {
        words += &format!(", of {hour}");
    }
    match words.strip_prefix("every ") {
        Some(rest) => format!("Every {rest}"),
        None => format!("At {words}"),
    }
}

/// Returns the text of a time field: every value, an even step, or its values.
fn part(unit: &str, bits: u64, size: u32) -> String {
    let even = |step: &u32| {
        size.is_multiple_of(*step) && (0..size).step_by(*step as usize).fold(0, |all, n| all | 1 << n) == bits
    };
    match (1..=size / 2).find(even) {
        Some(1) => format!("every {unit}"),
        Some(step) => format!("every {step} {unit}s"),
        None => match runs(bits, '-').as_slice() {
            [front @ .., last] if front.len() > 1 => format!("{unit} {}, and {last}", front.join(", ")),
            few => format!("{unit} {}", joined(few, "and")),
        },
    }
}

fn month_days(days: MonthDays) -> Option<String> {
    Some(match days {
        any if any == ANY_MONTHDAY => return None,
        MonthDays::Listed(bits) => format!("day {}", joined(&runs(u64::from(bits), '–'), "and")),
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

/// Returns the set bits as text. Three or more consecutive bits become a range with this dash.
fn runs(bits: u64, dash: char) -> Vec<String> {
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
                texts.push(format!("{n}{dash}{}", n + length - 1));
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
