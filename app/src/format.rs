//! Numbers, times and messages as text.
//!
//! All functions are pure and return the same text on the server and in the browser, because a page must read the same
//! before and after hydration. Only [`browser`](crate::browser) converts to the user's own zone.

use chrono::{DateTime, Datelike, SecondsFormat, Timelike, Utc};

/// The notation of the time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockStyle {
    /// `14:02:05`.
    #[default]
    Hours24,
    /// `02:02:05 PM`.
    Hours12,
}

/// Formats an instant as ISO 8601 with milliseconds.
#[must_use]
pub fn iso(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Formats an instant in UTC with its zone: `2026-11-21 14:02:05 UTC`.
#[must_use]
pub fn utc(at: DateTime<Utc>) -> String {
    format!("{} {} UTC", date(at), clock(at, ClockStyle::Hours24))
}

/// Formats a date: `2026-11-21`.
#[must_use]
pub fn date(at: impl Datelike) -> String {
    format!("{:04}-{:02}-{:02}", at.year(), at.month(), at.day())
}

/// Formats a time of day to the second: `14:02:05` or `02:02:05 PM`.
#[must_use]
pub fn clock(at: impl Timelike, style: ClockStyle) -> String {
    clock_with(&at, style, "")
}

/// Formats a time of day to the millisecond. Used for log lines.
#[must_use]
pub fn clock_millis(at: impl Timelike, style: ClockStyle) -> String {
    // A leap second has up to 1,999 milliseconds.
    clock_with(&at, style, &format!(".{:03}", at.nanosecond() / 1_000_000 % 1_000))
}

/// Formats a time of day, with `fraction` after the seconds.
fn clock_with(at: &impl Timelike, style: ClockStyle, fraction: &str) -> String {
    let (hour, suffix) = match (style, at.hour12()) {
        (ClockStyle::Hours24, _) => (at.hour(), ""),
        (ClockStyle::Hours12, (false, hour)) => (hour, " AM"),
        (ClockStyle::Hours12, (true, hour)) => (hour, " PM"),
    };
    format!("{hour:02}:{:02}:{:02}{fraction}{suffix}", at.minute(), at.second())
}

/// Formats the time of day in UTC, to the minute: `14:02`.
#[must_use]
pub fn minute(at: DateTime<Utc>) -> String {
    format!("{:02}:{:02}", at.hour(), at.minute())
}

/// Formats a duration in at most two units: `412 ms`, `4.2 s`, `1 min 04 s`, `2 h 05 min`, `3 d 04 h`. A negative
/// duration, which only clock skew can produce, counts as zero.
#[must_use]
pub fn duration(millis: i64) -> String {
    let millis = millis.max(0);
    let seconds = millis / 1_000;
    match seconds {
        0 => format!("{millis} ms"),
        1..=9 => format!("{}.{} s", seconds, millis % 1_000 / 100),
        10..=59 => format!("{seconds} s"),
        60..=3_599 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3_600..=86_399 => format!("{} h {:02} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Formats a duration in whole seconds. Used for ticking texts, so that their digits do not flicker.
#[must_use]
pub fn duration_whole(millis: i64) -> String {
    let seconds = millis.max(0) / 1_000;
    if seconds < 10 { format!("{seconds} s") } else { duration(seconds * 1_000) }
}

/// Formats the distance from `now` to `at`: `in 4 s`, `2 min ago`, `in 1 d 23 h`, `now`. From an hour up it has two
/// units, because an hour or a day alone hides up to half of the distance. The last unit is rounded down, in the past
/// and in the future, and a second unit of zero is omitted.
#[must_use]
pub fn relative(now: DateTime<Utc>, at: DateTime<Utc>) -> String {
    // Towards zero.
    let seconds = (at - now).num_seconds();
    let length = match seconds.unsigned_abs() {
        0 => return "now".into(),
        n @ 1..=59 => format!("{n} s"),
        n @ 60..=3_599 => format!("{} min", n / 60),
        n @ 3_600..=86_399 => two_units(n / 3_600, "h", n % 3_600 / 60, "min"),
        n => two_units(n / 86_400, "d", n % 86_400 / 3_600, "h"),
    };
    if seconds > 0 { format!("in {length}") } else { format!("{length} ago") }
}

fn two_units(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    }
}

/// Formats the distance of a zone from UTC: `UTC+1`, `UTC−3:30`, `UTC`.
#[must_use]
pub fn offset(minutes: i32) -> String {
    let sign = if minutes < 0 { '−' } else { '+' };
    match (minutes.abs() / 60, minutes.abs() % 60) {
        (0, 0) => "UTC".to_owned(),
        (hours, 0) => format!("UTC{sign}{hours}"),
        (hours, rest) => format!("UTC{sign}{hours}:{rest:02}"),
    }
}

/// Formats a number with thousands separators: `12,345`.
#[must_use]
pub fn count(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if n < 0 {
        text.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun: `1 job`, `2 jobs`.
#[must_use]
pub fn plural(n: i64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Formats a number of seconds in the largest unit that divides it: `90 seconds`, `1 hour`.
#[must_use]
pub fn span(seconds: u32) -> String {
    match seconds {
        0 => plural(0, "second"),
        s if s % 86_400 == 0 => plural((s / 86_400).into(), "day"),
        s if s % 3_600 == 0 => plural((s / 3_600).into(), "hour"),
        s if s % 60 == 0 => plural((s / 60).into(), "minute"),
        s => plural(s.into(), "second"),
    }
}

/// Truncates `text` to `most` characters and marks the cut with `…`.
#[must_use]
pub fn clip(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text.to_owned(),
    }
}

/// Returns the last eight characters of an id. Ids created at the same moment begin alike, so the end distinguishes the
/// rows of a list.
#[must_use]
pub fn short_id(id: &str) -> &str {
    id.get(id.len().saturating_sub(8)..).unwrap_or(id)
}

/// Returns a message with its first letter capitalized.
#[must_use]
pub fn capitalized(message: &str) -> String {
    let mut letters = message.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Pretty-prints `text` if it is a JSON object or array.
#[must_use]
pub fn pretty_json(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    if value.is_object() || value.is_array() { serde_json::to_string_pretty(&value).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a valid instant")
    }

    #[test]
    fn span_uses_the_largest_exact_unit() {
        for (seconds, text) in
            [(0, "0 seconds"), (1, "1 second"), (90, "90 seconds"), (3_600, "1 hour"), (86_400, "1 day")]
        {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn duration_has_at_most_two_units() {
        let table = [
            (-5, "0 ms"),
            (0, "0 ms"),
            (412, "412 ms"),
            (4_260, "4.2 s"),
            (59_999, "59 s"),
            (64_000, "1 min 04 s"),
            (7_500_000, "2 h 05 min"),
            (273_600_000, "3 d 04 h"),
        ];
        for (millis, text) in table {
            assert_eq!(duration(millis), text);
        }
        assert_eq!(duration_whole(4_900), "4 s");
        assert_eq!(duration_whole(64_900), "1 min 04 s");
    }

    #[test]
    fn relative_time_has_two_units_from_an_hour_up() {
        let now = at("2026-11-21T14:00:00Z");
        let table = [
            ("2026-11-21T14:00:00.999Z", "now"),
            ("2026-11-21T13:59:59.001Z", "now"),
            ("2026-11-21T14:00:04.900Z", "in 4 s"),
            ("2026-11-21T13:59:55.100Z", "4 s ago"),
            ("2026-11-21T14:00:59.999Z", "in 59 s"),
            ("2026-11-21T14:01:00Z", "in 1 min"),
            ("2026-11-21T13:58:01Z", "1 min ago"),
            ("2026-11-21T14:59:59Z", "in 59 min"),
            ("2026-11-21T13:00:01Z", "59 min ago"),
            ("2026-11-21T15:00:00Z", "in 1 h"),
            ("2026-11-21T11:54:59Z", "2 h 5 min ago"),
            ("2026-11-22T13:59:59Z", "in 23 h 59 min"),
            ("2026-11-22T14:00:00Z", "in 1 d"),
            ("2026-11-22T14:59:59Z", "in 1 d"),
            ("2026-11-23T13:00:00Z", "in 1 d 23 h"),
            ("2026-11-19T14:00:01Z", "1 d 23 h ago"),
            ("2026-11-18T14:00:00Z", "3 d ago"),
        ];
        for (then, text) in table {
            assert_eq!(relative(now, at(then)), text, "{then}");
        }
    }

    #[test]
    fn offset_names_its_minutes_only_if_there_are_some() {
        for (minutes, text) in [(0, "UTC"), (60, "UTC+1"), (-300, "UTC−5"), (345, "UTC+5:45"), (-210, "UTC−3:30")] {
            assert_eq!(offset(minutes), text);
        }
    }

    #[test]
    fn formatted_times_state_utc() {
        let instant = at("2026-11-21T14:02:05.007Z");
        assert_eq!(utc(instant), "2026-11-21 14:02:05 UTC");
        assert_eq!(iso(instant), "2026-11-21T14:02:05.007Z");
        assert_eq!(clock_millis(instant, ClockStyle::Hours24), "14:02:05.007");
    }

    #[test]
    fn clock_of_12_hours_names_its_half() {
        let table = [
            ("2026-11-21T00:00:00Z", "12:00:00 AM"),
            ("2026-11-21T11:59:59Z", "11:59:59 AM"),
            ("2026-11-21T12:00:00Z", "12:00:00 PM"),
            ("2026-11-21T14:02:05Z", "02:02:05 PM"),
        ];
        for (instant, text) in table {
            assert_eq!(clock(at(instant), ClockStyle::Hours12), text);
        }
        assert_eq!(clock_millis(at("2026-11-21T14:02:05.007Z"), ClockStyle::Hours12), "02:02:05.007 PM");
    }

    #[test]
    fn numbers_have_thousands_separators() {
        let table = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567"), (-12_345, "-12,345")];
        for (n, text) in table {
            assert_eq!(count(n), text);
        }
        assert_eq!(plural(1, "job"), "1 job");
        assert_eq!(plural(2, "job"), "2 jobs");
    }

    #[test]
    fn clip_marks_the_cut_and_keeps_short_text() {
        assert_eq!(clip("größer als erlaubt", 6), "größer…");
        assert_eq!(clip("kurz", 6), "kurz");
    }

    #[test]
    fn pretty_json_formats_only_objects_and_arrays() {
        assert_eq!(pretty_json("{\"a\":1}").as_deref(), Some("{\n  \"a\": 1\n}"));
        assert_eq!(pretty_json("7"), None);
        assert_eq!(pretty_json("done"), None);
    }
}
