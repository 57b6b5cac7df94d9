//! The JSON of events and of definitions kept in PostgreSQL, pinned.

mod events;

use std::fmt::Debug;

use chrono::{DateTime, Utc};
use milvaion_api::{permissions::Role, views::TriggerSource};
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Said by every assertion here.
const RULE: &str = "a changed golden is a changed contract: a field may be added with a default, none may be renamed, \
                    removed or given another meaning, and a number keeps what it stands for";

const OCCURRENCE_ID: &str = "019a9b3f-7c00-7abc-8def-0123456789ab";
const JOB_ID: &str = "019a9b3f-0000-7abc-8def-0123456789ab";
const DUE_TIME: &str = "2026-11-21T09:00:00Z";
const LATER_TIME: &str = "2026-11-21T09:00:00.123456Z";

/// Members whose contents are somebody else's: everything in them is kept, so nothing in them is unknown.
const FREE: [&str; 3] = ["jobData", "data", "schema"];

fn occurrence() -> OccurrenceId {
    OCCURRENCE_ID.parse().expect("an id")
}

fn job() -> JobId {
    JOB_ID.parse().expect("an id")
}

fn at(text: &str) -> DateTime<Utc> {
    text.parse().expect("an instant")
}

/// Strews an unknown field into every object, except into those whose contents are free.
fn of_tomorrow(json: &Value) -> Value {
    match json {
        Value::Object(fields) => {
            let mut wider: serde_json::Map<String, Value> = fields
                .iter()
                .map(|(name, value)| {
                    let value = if FREE.contains(&name.as_str()) { value.clone() } else { of_tomorrow(value) };
                    (name.clone(), value)
                })
                .collect();
            wider.insert("aFieldOfTomorrow".into(), json!({ "nested": [1, null, "two"] }));
            Value::Object(wider)
        }
        Value::Array(items) => Value::Array(items.iter().map(of_tomorrow).collect()),
        other => other.clone(),
    }
}

/// Checks one value against its golden, both ways, and that readers ignore what they do not know.
#[track_caller]
fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, json: Value) {
    assert_eq!(serde_json::to_value(value).expect("it can be written"), json, "{RULE}");
    assert_eq!(&read::<T>(of_tomorrow(&json)), value, "an unknown field is ignored; {RULE}");
    assert_eq!(&read::<T>(json), value, "{RULE}");
}

/// Checks that the least a writer may send is read with these defaults.
#[track_caller]
fn least<T: DeserializeOwned + PartialEq + Debug>(json: Value, value: &T) {
    assert_eq!(&read::<T>(json), value, "a missing field takes its default; {RULE}");
}

#[track_caller]
fn read<T: DeserializeOwned>(json: Value) -> T {
    // Through text, as it comes from a broker: borrowed and owned readers may differ.
    serde_json::from_str(&json.to_string()).unwrap_or_else(|error| panic!("{error}; {RULE}\n{json:#}"))
}

#[test]
fn words_for_triggers_and_roles() {
    for (trigger, word) in [
        (TriggerSource::Schedule, "schedule"),
        (TriggerSource::Manual, "manual"),
        (TriggerSource::Api, "api"),
        (TriggerSource::Retry, "retry"),
    ] {
        golden(&trigger, json!(word));
        assert_eq!(trigger.as_str(), word, "the database holds the same word; {RULE}");
    }
    for (role, word) in [(Role::Viewer, "viewer"), (Role::Operator, "operator"), (Role::Admin, "admin")] {
        golden(&role, json!(word));
        assert_eq!(role.slug(), word, "the database holds the same word; {RULE}");
    }
}
