//! Values that a newer server may have written in a way that this version cannot read.
//!
//! During a rolling upgrade, an old server reads the rows of a newer one. A part that keeps a job from running must not
//! become its default then: a calendar that cannot be read would black out nothing. A value with an unknown field counts
//! as unreadable too, because the field may be a restriction, and so does a calendar in an unknown time zone.

use milvaion_schedule::{
    calendar::Calendar,
    schedule::{Schedule, parse_zone},
};
use serde_json::Value;

/// The fields of all kinds of schedules.
const SCHEDULE_FIELDS: &[&str] = &["kind", "expression", "zone", "seconds", "from", "at"];
/// The fields of a calendar.
const CALENDAR_FIELDS: &[&str] = &["name", "zone", "dates", "windows"];
/// The fields of a weekly window of a calendar.
const WINDOW_FIELDS: &[&str] = &["weekday", "from", "to"];

/// Returns a stored schedule, or `None` if this version cannot read it.
pub(super) fn schedule(stored: Value) -> Option<Schedule> {
    if !has_only(&stored, SCHEDULE_FIELDS) {
        return None;
    }
    serde_json::from_value(stored).ok()
}

/// Returns a stored calendar, or `None` if this version cannot read it.
pub(super) fn calendar(stored: Value) -> Option<Calendar> {
    let mut windows = stored.get("windows").and_then(Value::as_array).into_iter().flatten();
    if !has_only(&stored, CALENDAR_FIELDS) || !windows.all(|window| has_only(window, WINDOW_FIELDS)) {
        return None;
    }
    let calendar: Calendar = serde_json::from_value(stored).ok()?;
    parse_zone(&calendar.zone).is_ok().then_some(calendar)
}

fn has_only(value: &Value, fields: &[&str]) -> bool {
    value.as_object().is_none_or(|object| object.keys().all(|key| fields.contains(&key.as_str())))
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::{calendar::WeeklyWindow, schedule::IntervalAnchor};
    use serde_json::json;

    use super::*;

    #[test]
    fn own_values_are_readable() {
        let at = "2030-01-01T00:00:00Z".parse().expect("an instant");
        for own in [
            Schedule::Cron { expression: "0 0 * * *".into(), zone: "UTC".into() },
            Schedule::Every { seconds: 5, from: IntervalAnchor::End },
            Schedule::Once { at, zone: "Europe/Warsaw".into() },
            Schedule::Manual,
        ] {
            assert_eq!(schedule(json!(own)), Some(own));
        }
        let time = "08:00:00".parse().expect("a time");
        let own = Calendar {
            name: "Holidays".into(),
            zone: "UTC".into(),
            dates: vec!["2030-01-01".parse().expect("a date")],
            windows: vec![WeeklyWindow { weekday: 1, from: time, to: time }],
        };
        assert_eq!(calendar(json!(own)), Some(own));
    }

    #[test]
    fn value_with_an_unknown_word_or_field_is_unreadable() {
        for newer in [
            json!({ "kind": "lunar" }),
            json!({ "kind": "every", "seconds": 5, "from": "start" }),
            json!({ "kind": "every", "seconds": 5, "onlyIf": "idle" }),
        ] {
            assert_eq!(schedule(newer), None);
        }
        for newer in [
            json!({ "name": "x", "zone": "UTC", "dates": "all" }),
            json!({ "name": "x", "zone": "Luna/Tycho", "dates": [] }),
            json!({ "name": "x", "zone": "UTC", "dates": [], "years": [2030] }),
            json!({ "name": "x", "zone": "UTC", "windows": [{ "weekday": 1, "from": "08:00:00", "to": "09:00:00", "every": 2 }] }),
        ] {
            assert_eq!(calendar(newer), None);
        }
    }
}
