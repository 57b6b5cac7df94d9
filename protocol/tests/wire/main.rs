//! Goldens: the pinned JSON of every message on the broker.
//!
//! Each golden is checked in both directions: the value serializes to it, and it deserializes to the value. Then it is
//! read again with unknown fields added to every object, and once more with only the fields that have no default.
//! Workers in other languages, servers of different versions and browser tabs with an older page depend on this JSON.
//! Therefore a failing test must not be fixed by editing the golden; see [`CONTRACT_RULE`]. The same goldens are
//! validated against the schemas in `docs/protocol`.

mod asyncapi;
mod claims;
mod messages;
mod names;
mod schemas;
mod singleton;
mod vectors;

use std::{fmt::Debug, fs};

use chrono::{DateTime, Utc};
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
const FREE_FORM_FIELDS: [&str; 5] = ["jobData", "data", "schema", "checkpoint", "input"];

fn occurrence() -> OccurrenceId {
    OCCURRENCE_ID.parse().expect("a valid id")
}

fn job() -> JobId {
    JOB_ID.parse().expect("a valid id")
}

fn at(text: &str) -> DateTime<Utc> {
    text.parse().expect("a valid instant")
}

/// Adds an unknown field to every object, except in free-form fields.
fn with_unknown_fields(json: &Value) -> Value {
    match json {
        Value::Object(fields) => {
            let mut wider: serde_json::Map<String, Value> = fields
                .iter()
                .map(|(name, value)| {
                    let is_free_form = FREE_FORM_FIELDS.contains(&name.as_str());
                    let value = if is_free_form { value.clone() } else { with_unknown_fields(value) };
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
    schemas::assert_valid::<T>(&json);
    schemas::assert_valid::<T>(&with_unknown_fields(&json));
    assert_eq!(&read::<T>(with_unknown_fields(&json)), value, "an unknown field is ignored; {CONTRACT_RULE}");
    assert_eq!(&read::<T>(json), value, "{CONTRACT_RULE}");
}

/// Checks that a message without optional fields is read with these defaults.
#[track_caller]
fn minimal<T: DeserializeOwned + PartialEq + Debug>(json: Value, value: &T) {
    schemas::assert_valid::<T>(&json);
    assert_eq!(&read::<T>(json), value, "a missing field takes its default; {CONTRACT_RULE}");
}

#[track_caller]
fn read<T: DeserializeOwned>(json: Value) -> T {
    // Parsed from text, as it arrives from a broker: deserializing from a `Value` may give another result.
    serde_json::from_str(&json.to_string()).unwrap_or_else(|error| panic!("{error}; {CONTRACT_RULE}\n{json:#}"))
}

#[test]
fn every_message_type_has_a_golden() {
    let (essay, here) =
        (include_str!("../../src/lib.rs"), [include_str!("messages.rs"), include_str!("names.rs")].concat());
    assert!(essay.contains("tests/wire"), "the documentation of the crate refers to these tests");
    // A new message type needs a golden, or a later change to it would go unnoticed.
    let mut sources = vec![include_str!("../../src/message.rs").to_owned()];
    let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/message")).expect("src/message is readable");
    sources.extend(
        folder.map(|file| fs::read_to_string(file.expect("a directory entry").path()).expect("a readable text file")),
    );
    for source in sources {
        for line in source.lines() {
            let Some(rest) = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum ")) else {
                continue;
            };
            let name: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
            let uses = [format!("{name} {{"), format!("{name}::"), format!("{name}(")];
            assert!(uses.iter().any(|text| here.contains(text)), "message type {name} has no golden in tests/wire");
        }
    }
}
