//! Times and lengths of time, read and written.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};

/// Formats a time as local time, with its distance from now.
pub(super) fn moment(at: DateTime<Utc>, now: DateTime<Utc>, to_local: fn(DateTime<Utc>) -> NaiveDateTime) -> String {
    let local = to_local(at).format("%Y-%m-%d %H:%M:%S");
    let distance = now.signed_duration_since(at);
    if distance.abs() < TimeDelta::seconds(1) {
        format!("{local} (now)")
    } else if distance < TimeDelta::zero() {
        format!("{local} (in {})", span(-distance))
    } else {
        format!("{local} ({} ago)", span(distance))
    }
}

/// Formats a length of time by its largest unit.
fn span(length: TimeDelta) -> String {
    let (days, hours, minutes) = (length.num_days(), length.num_hours(), length.num_minutes());
    match () {
        () if days >= 2 => format!("{days} d"),
        () if hours >= 2 => format!("{hours} h"),
        () if minutes >= 2 => format!("{minutes} min"),
        () => format!("{} s", length.num_seconds()),
    }
}

/// Formats a duration in milliseconds.
pub(super) fn duration(milliseconds: i64) -> String {
    let seconds = milliseconds / 1_000;
    match seconds {
        0 => format!("{milliseconds} ms"),
        1..60 => format!("{seconds}.{} s", milliseconds % 1_000 / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Parses a length of time such as `90s`, `15m` or `2h`; a number without a unit is in seconds.
///
/// # Errors
///
/// Returns a message for a text that is none.
pub(super) fn parse_length(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => Some(1),
        "m" | "min" => Some(60),
        "h" => Some(3_600),
        "d" => Some(86_400),
        _ => None,
    };
    let seconds = factor.zip(number.parse::<u64>().ok()).and_then(|(factor, number)| number.checked_mul(factor));
    seconds
        .filter(|seconds| *seconds <= 365 * 86_400)
        .map(Duration::from_secs)
        .ok_or_else(|| "give a length of time such as 90s, 15m or 2h, at most 365d".into())
}

/// Parses a time: RFC 3339, with its offset from UTC.
///
/// # Errors
///
/// Returns a message for a text that is none.
pub(super) fn parse_time(text: &str) -> Result<DateTime<Utc>, String> {
    let time = DateTime::parse_from_rfc3339(text.trim()).map(|at| at.to_utc());
    time.map_err(|_| {
        "give a time with its offset from UTC, such as 2026-12-24T08:00:00Z or 2026-12-24T09:00:00+01:00".into()
    })
}

/// Parses a time: RFC 3339, or a length of time before now.
///
/// # Errors
///
/// Returns a message for a text that is neither.
pub(super) fn parse_since(text: &str) -> Result<Since, String> {
    if let Ok(at) = DateTime::parse_from_rfc3339(text) {
        return Ok(Since::At(at.to_utc()));
    }
    parse_length(text)
        .map(Since::Before)
        .map_err(|_| "give a time such as 2026-10-25T00:00:00Z, or a length of time before now such as 2h".into())
}

/// The start of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// A time.
    At(DateTime<Utc>),
    /// A length of time before now.
    Before(Duration),
}

impl Since {
    /// Returns the time.
    pub(super) fn resolve(self, now: DateTime<Utc>) -> DateTime<Utc> {
        match self {
            Self::At(at) => at,
            Self::Before(length) => now - length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_local_and_relative() {
        let now: DateTime<Utc> = "2026-11-25T12:00:00Z".parse().expect("a time");
        let text = |seconds| moment(now - TimeDelta::seconds(seconds), now, |at| at.naive_utc() + TimeDelta::hours(1));
        assert_eq!(text(0), "2026-11-25 13:00:00 (now)");
        assert_eq!(text(90), "2026-11-25 12:58:30 (90 s ago)");
        assert_eq!(text(-3 * 3_600), "2026-11-25 16:00:00 (in 3 h)");
        assert!(text(5 * 86_400).ends_with("(5 d ago)"));
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let texts = [7, 1_250, 61_000, 7_260_000].map(duration);
        assert_eq!(texts, ["7 ms", "1.2 s", "1 min 1 s", "2 h 1 min"]);
    }

    #[test]
    fn lengths_of_time_are_parsed() {
        assert_eq!(parse_length("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_length("2h"), Ok(Duration::from_secs(7_200)));
        for text in ["", "h", "-1s", "1w", "1.5h", "99999999999999999999s", "366d"] {
            assert!(parse_length(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_time("2026-11-25T12:00:00+01:00").map(|at| at.to_rfc3339()),
            Ok("2026-11-25T11:00:00+00:00".into())
        );
        assert!(parse_time("2026-11-25 12:00").is_err());
        assert_eq!(parse_since("15m"), Ok(Since::Before(Duration::from_secs(900))));
        assert!(matches!(parse_since("2026-11-25T12:00:00+01:00"), Ok(Since::At(_))));
    }
}
