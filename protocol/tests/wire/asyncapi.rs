//! The AsyncAPI document beside the schemas: it equals the generated one, it is valid, and its references lead somewhere.

use std::fs;

use milvaion_protocol::{asyncapi, schema};
use serde_json::Value;

use crate::schemas::path;

/// The JSON Schema of AsyncAPI 3.0.0, from the npm package `@asyncapi/specs` (Apache-2.0), where it is named
/// `3.0.0-without-$id.json`.
const ASYNCAPI_SCHEMA: &str = include_str!("asyncapi-3.0.0.schema.json");

#[test]
fn checked_in_document_matches_the_topology() {
    let file = path("x").with_file_name("asyncapi.json");
    let generated = asyncapi::document();
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        fs::write(&file, format!("{generated:#}\n")).expect("docs/protocol is writable");
    }
    let text = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        serde_json::from_str::<Value>(&text).is_ok_and(|document| document == generated),
        "docs/protocol/asyncapi.json differs from the topology: run UPDATE_SCHEMAS=1 cargo test -p milvaion-protocol \
         --test wire and review the difference"
    );
}

#[test]
fn document_is_valid() {
    let schema = serde_json::from_str(ASYNCAPI_SCHEMA).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let document = asyncapi::document();
    let errors: Vec<String> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    let mut broken = document;
    broken["operations"]["receiveJob"]["action"] = "fetch".into();
    assert!(!validator.is_valid(&broken), "the schema refuses an unknown action");
}

#[test]
fn references_of_the_document_lead_somewhere() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = asyncapi::document();
    let mut found = Vec::new();
    references(&document, &mut found);
    for reference in &found {
        let exists = match reference.strip_prefix('#') {
            Some(pointer) => document.pointer(pointer).is_some(),
            None => path("x").with_file_name(reference.trim_start_matches("./")).exists(),
        };
        assert!(exists, "{reference}");
    }
    for (name, _) in schema::all() {
        // A report stands in a status message.
        let file = format!("./{name}.schema.json");
        assert!(name == "status-report" || found.contains(&file.as_str()), "no message has the schema {name}");
    }
}
