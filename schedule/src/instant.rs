//! The instants of definitions: their precision and their range.
//!
//! PostgreSQL stores microseconds. An instant with more digits is later than its stored copy, so a job that is due at it
//! would be due again after each run. RFC 3339 has years of four digits, so what lies outside of them could be stored and
//! not be sent back. Instants are therefore cut when they are read from JSON, whether from a request, from a file, from a
//! message or from a row, and out of range they are refused.

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Deserializer};

/// Returns an instant as PostgreSQL stores it: cut to microseconds. A leap second is the second that follows it.
#[must_use]
pub fn stored(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(at.timestamp_micros()).unwrap_or(at)
}

/// Returns true if an instant can be sent back in the form in which it came: in UTC it lies in the years 1 to 9999.
pub(crate) fn is_in_range(at: DateTime<Utc>) -> bool {
    (1..=9999).contains(&at.year())
}

/// The error of an instant that is out of range.
pub(crate) const OUT_OF_RANGE: &str = "must be in the years 1 to 9999 in UTC: enter another time";

/// Reads an instant as it is [`stored`].
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DateTime<Utc>, D::Error> {
    DateTime::deserialize(deserializer).map(stored)
}

/// Reads an instant that may be absent as it is [`stored`].
pub(crate) fn read_optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map(stored))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instant_is_cut_to_what_postgresql_stores() {
        let cut = |text: &str| stored(text.parse().expect("a valid instant")).to_rfc3339();
        assert_eq!(cut("2026-11-27T15:45:56.1234567Z"), "2026-11-27T15:45:56.123456+00:00");
        assert_eq!(cut("2016-12-31T23:59:60.5Z"), "2017-01-01T00:00:00.500+00:00");
        assert_eq!(cut("1969-12-31T23:59:59.9999999Z"), "1969-12-31T23:59:59.999999+00:00");
    }
}
