//! Goldens: the pinned JSON of events and of the definitions that PostgreSQL stores.

mod events;
mod singletons;

use std::fmt::Debug;

use chrono::{DateTime, Utc};
use milvaion_api::{permissions::Role, views::TriggerSource};
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The rule that every failed assertion prints.
const CONTRACT_RULE: &str = "a changed golden is a changed contract: a field may be added with a default, none may be \
                             renamed, removed or given another meaning, and a number keeps its meaning";

const OCCURRENCE_ID: &str = "019a9b3f-7c00-7abc-8def-0123456789ab";
const JOB_ID: &str = "019a9b3f-0000-7abc-8def-0123456789ab";
const DUE_TIME: &str = "2026-11-21T09:00:00Z";
const LATER_TIME: &str = "2026-11-21T09:00:00.123456Z";

/// Fields with free-form contents, which readers keep as they are. No field in them is unknown.
const FREE_FORM_FIELDS: [&str; 3] = ["jobData", "data", "schema"];

fn occurrence() -> OccurrenceId {
    OCCURRENCE_ID.parse().expect("a valid id")
}

fn job() -> JobId {
    JOB_ID.parse().expect("a valid id")
}

fn at(text: &str) -> DateTime<Utc> {
    text.parse().expect("a valid instant")
}

/// The field with an externally tagged value: an object whose one field names the variant, and which takes no other.
const TAGGED_FIELD: &str = "event";

/// Adds an unknown field to every object, except in free-form fields.
fn with_unknown_fields(json: &Value) -> Value {
    match json {
        Value::Object(fields) => {
            let mut wider: serde_json::Map<String, Value> = fields
                .iter()
                .map(|(name, value)| {
                    let is_free_form = FREE_FORM_FIELDS.contains(&name.as_str());
                    let value = match value {
                        _ if is_free_form => value.clone(),
                        Value::Object(variant) if name == TAGGED_FIELD => {
                            variant.iter().map(|(name, value)| (name.clone(), with_unknown_fields(value))).collect()
                        }
                        _ => with_unknown_fields(value),
                    };
                    (name.clone(), value)
                })
                .collect();
            wider.insert("anUnknownField".into(), json!({ "nested": [1, null, "two"] }));
            Value::Object(wider)
        }
        Value::Array(items) => Value::Array(items.iter().map(with_unknown_fields).collect()),
        other => other.clone(),
    }
}

/// Checks a value against its golden in both directions, and that readers ignore unknown fields.
#[track_caller]
fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, json: Value) {
    assert_eq!(serde_json::to_value(value).expect("the value serializes"), json, "{CONTRACT_RULE}");
    assert_eq!(&read::<T>(with_unknown_fields(&json)), value, "an unknown field is ignored; {CONTRACT_RULE}");
    assert_eq!(&read::<T>(json), value, "{CONTRACT_RULE}");
}

/// Checks that JSON without optional fields is read with these defaults.
#[track_caller]
fn minimal<T: DeserializeOwned + PartialEq + Debug>(json: Value, value: &T) {
    assert_eq!(&read::<T>(json), value, "a missing field takes its default; {CONTRACT_RULE}");
}

#[track_caller]
fn read<T: DeserializeOwned>(json: Value) -> T {
    // Parsed from text, as it arrives from Redis or PostgreSQL: deserializing from a `Value` may give another result.
    serde_json::from_str(&json.to_string()).unwrap_or_else(|error| panic!("{error}; {CONTRACT_RULE}\n{json:#}"))
}

#[test]
fn triggers_and_roles_keep_their_words() {
    for (trigger, word) in [
        (TriggerSource::Schedule, "schedule"),
        (TriggerSource::Manual, "manual"),
        (TriggerSource::Api, "api"),
        (TriggerSource::Retry, "retry"),
        (TriggerSource::Enqueue, "enqueue"),
    ] {
        golden(&trigger, json!(word));
        assert_eq!(trigger.as_str(), word, "the database stores the same word; {CONTRACT_RULE}");
    }
    for (role, word) in [(Role::Viewer, "viewer"), (Role::Operator, "operator"), (Role::Admin, "admin")] {
        golden(&role, json!(word));
        assert_eq!(role.slug(), word, "the database stores the same word; {CONTRACT_RULE}");
    }
}
