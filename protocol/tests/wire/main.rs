//! The JSON of everything that crosses a boundary, pinned.
//!
//! Each golden is checked both ways: what we write is the golden, and the golden is read as what we wrote. It is then
//! read again with fields of tomorrow strewn into every object, and once more with nothing but what has no default. A
//! worker in another language, an old server beside a new one and a browser tab from yesterday all rest on these pages,
//! so a test that fails here is not mended by editing the golden: see [`CONTRACT_RULE`]. The same goldens are held against the
//! schemas in `docs/protocol`.

mod messages;
mod names;
mod schemas;

use std::{fmt::Debug, fs};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Said by every assertion here.
const CONTRACT_RULE: &str = "a changed golden is a changed contract: a field may be added with a default, none may be renamed, \
                    removed or given another meaning, and a number keeps what it stands for";

const OCCURRENCE_ID: &str = "019a9b3f-7c00-7abc-8def-0123456789ab";
const JOB_ID: &str = "019a9b3f-0000-7abc-8def-0123456789ab";
const DUE_TIME: &str = "2026-11-21T09:00:00Z";
const LATER_TIME: &str = "2026-11-21T09:00:00.123456Z";

/// Members whose contents are somebody else's: everything in them is kept, so nothing in them is unknown.
const FREE_FORM_FIELDS: [&str; 3] = ["jobData", "data", "schema"];

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
                    let value =
                        if FREE_FORM_FIELDS.contains(&name.as_str()) { value.clone() } else { of_tomorrow(value) };
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
    assert_eq!(serde_json::to_value(value).expect("it can be written"), json, "{CONTRACT_RULE}");
    schemas::take::<T>(&json);
    schemas::take::<T>(&of_tomorrow(&json));
    assert_eq!(&read::<T>(of_tomorrow(&json)), value, "an unknown field is ignored; {CONTRACT_RULE}");
    assert_eq!(&read::<T>(json), value, "{CONTRACT_RULE}");
}

/// Checks that the least a writer may send is read with these defaults.
#[track_caller]
fn least<T: DeserializeOwned + PartialEq + Debug>(json: Value, value: &T) {
    schemas::take::<T>(&json);
    assert_eq!(&read::<T>(json), value, "a missing field takes its default; {CONTRACT_RULE}");
}

#[track_caller]
fn read<T: DeserializeOwned>(json: Value) -> T {
    // Through text, as it comes from a broker: borrowed and owned readers may differ.
    serde_json::from_str(&json.to_string()).unwrap_or_else(|error| panic!("{error}; {CONTRACT_RULE}\n{json:#}"))
}

#[test]
fn a_changed_golden_is_a_changed_contract() {
    let (essay, here) =
        (include_str!("../../src/lib.rs"), [include_str!("messages.rs"), include_str!("names.rs")].concat());
    assert!(essay.contains("tests/wire"), "the essay of this crate leads its reader here");
    // Whatever is added to the messages and events must get a golden, or somebody changes it unawares.
    let mut sources = vec![include_str!("../../src/message.rs").to_owned()];
    let room = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/message")).expect("the messages have a folder");
    sources.extend(room.map(|file| fs::read_to_string(file.expect("a file of ours").path()).expect("it can be read")));
    for source in sources {
        for line in source.lines() {
            let Some(rest) = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum ")) else {
                continue;
            };
            let name: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
            let made_here = [format!("{name} {{"), format!("{name}::"), format!("{name}(")];
            assert!(
                made_here.iter().any(|made| here.contains(made)),
                "{name} crosses a boundary and has no golden here"
            );
        }
    }
}
