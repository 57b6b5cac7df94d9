//! Values that a newer server may have written in a way that this version cannot read.
//!
//! During a rolling upgrade, an old server reads the rows of a newer one. A part that keeps a job from running must not
//! become its default then: a calendar that cannot be read would black out nothing. A value with an unknown field counts
//! as unreadable too, because the field may be a restriction, and so does a calendar in an unknown time zone.

use milvaion_schedule::{
    calendar::Calendar,
    rules::Rules,
    schedule::{Schedule, parse_zone},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The fields of all kinds of schedules.
const SCHEDULE_FIELDS: &[&str] = &["kind", "expression", "zone", "seconds", "from", "at"];
/// The fields of a calendar.
const CALENDAR_FIELDS: &[&str] = &["name", "zone", "dates", "windows"];
/// The fields of a weekly window of a calendar.
const WINDOW_FIELDS: &[&str] = &["weekday", "from", "to"];
/// The fields of the rules that are objects.
const NESTED_RULES: [(&str, &[&str]); 2] =
    [("keyLimit", &["key", "limit"]), ("autoDisable", &["threshold", "windowSeconds", "coolDownSeconds"])];
/// The rules that are words, with their names.
const POLICIES: [(&str, &str); 4] = [
    ("blackout", "blackout policy"),
    ("misfire", "misfire policy"),
    ("overlap", "overlap policy"),
    ("onLost", "policy for lost runs"),
];

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

/// Returns the stored rules of a job, and the first part that this version cannot read, in words. Each such part has its
/// default: a caller that starts runs must not use the rules then.
pub(super) fn rules(stored: &Value) -> (Rules, Option<String>) {
    if let Some(rules) = known_rules(stored) {
        return (rules, None);
    }
    let fields = stored.as_object().cloned().unwrap_or_default();
    let (known, unknown): (Map<_, _>, Map<_, _>) =
        fields.into_iter().partition(|(field, value)| known_rules(&json!({ field: value })).is_some());
    let part = unknown.iter().next().map_or_else(|| "the rules".into(), |(field, value)| describe_rule(field, value));
    (known_rules(&Value::Object(known)).unwrap_or_default(), Some(part))
}

/// Returns stored rules, or `None` if this version cannot read each of them or permits no such value.
fn known_rules(stored: &Value) -> Option<Rules> {
    #[derive(Deserialize)]
    struct StoredRules {
        #[serde(flatten)]
        rules: Rules,
        #[serde(flatten)]
        unknown: Map<String, Value>,
    }
    let StoredRules { rules, unknown } = StoredRules::deserialize(stored).ok()?;
    let is_known = unknown.is_empty() && NESTED_RULES.iter().all(|(rule, fields)| has_only(&stored[*rule], fields));
    (is_known && rules.check().is_ok()).then_some(rules)
}

/// Describes a rule that this version cannot read.
fn describe_rule(field: &str, value: &Value) -> String {
    match (POLICIES.iter().find(|(policy, _)| *policy == field), value.as_str()) {
        (Some((_, name)), Some(word)) => format!("the {name} “{word}”"),
        _ => format!("the rule “{field}”"),
    }
}

fn has_only(value: &Value, fields: &[&str]) -> bool {
    value.as_object().is_none_or(|object| object.keys().all(|key| fields.contains(&key.as_str())))
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::CalendarId;
    use milvaion_schedule::{
        calendar::WeeklyWindow,
        rules::{AutoDisable, ConcurrencyKeyLimit, OverlapPolicy},
        schedule::IntervalAnchor,
    };

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
        let own = Rules {
            start_at: Some(at),
            jitter_seconds: 9,
            calendars: vec![CalendarId::default()],
            overlap: OverlapPolicy::Queue,
            key_limit: Some(ConcurrencyKeyLimit { key: "db".into(), limit: 3 }),
            auto_disable: Some(AutoDisable { threshold: 3, window_seconds: 60, cool_down_seconds: Some(9) }),
            ..Rules::default()
        };
        assert_eq!(rules(&json!(own)), (own, None));
        assert_eq!(rules(&json!({})), (Rules::default(), None));
    }

    #[test]
    fn rule_of_a_newer_server_is_named_and_the_others_are_kept() {
        for (mut stored, part) in [
            (json!({ "misfire": "later" }), "the misfire policy “later”"),
            (json!({ "blackout": "ask" }), "the blackout policy “ask”"),
            (json!({ "onLost": "ask" }), "the policy for lost runs “ask”"),
            (json!({ "overlap": "sometimes" }), "the overlap policy “sometimes”"),
            (json!({ "overlap": { "atMost": 2 } }), "the rule “overlap”"),
            (json!({ "onlyIf": "idle" }), "the rule “onlyIf”"),
            (json!({ "catchUpLimit": 10_001 }), "the rule “catchUpLimit”"),
            (json!({ "keyLimit": { "key": "db", "limit": 3, "of": "tenant" } }), "the rule “keyLimit”"),
            (json!({ "autoDisable": { "threshold": 3, "windowSeconds": 9, "unless": 0 } }), "the rule “autoDisable”"),
        ] {
            stored["jitterSeconds"] = 4.into();
            assert_eq!(rules(&stored), (Rules { jitter_seconds: 4, ..Rules::default() }, Some(part.to_owned())));
        }
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
