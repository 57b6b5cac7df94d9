//! Tests of the two descriptions of an input: the form drawn from its schema, and its section in the documentation.

use milvaion_api::schema_form::{self, InputKind};
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::*;
use crate::context::BuiltinJob;

const JOBS_PAGE: &str = include_str!("../../../docs/BUILT_IN_JOBS.md");

/// Returns the schema that the worker registers.
fn schema<B: BuiltinJob>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<B::Input>().to_value()
}

fn check<B: BuiltinJob>(kinds: &[(&str, InputKind)]) {
    let (name, schema) = (B::TYPE, schema::<B>());
    let section = JOBS_PAGE.split("\n## ").find(|section| section.starts_with(name)).expect("a section");
    let fields = schema_form::form_fields(&schema);
    assert_eq!(fields.len(), schema["properties"].as_object().map_or(0, |map| map.len()), "{name}");
    for field in &fields {
        assert!(!field.description.is_empty(), "{name}: {} has no description", field.name);
        assert!(section.contains(&format!("`{}`", field.name)), "{name}: the page does not mention {}", field.name);
    }
    for (field, kind) in kinds {
        let found = fields.iter().find(|other| other.name == *field).expect(field);
        assert_eq!(found.kind, *kind, "{name}: {field}");
    }
    // The form fills empty fields with the schema's defaults, which must be valid input too.
    let example = section.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let mut data: Value = serde_json::from_str(example).expect("JSON");
    serde_json::from_value::<B::Input>(data.clone())
        .unwrap_or_else(|error| panic!("{name}: the page's example: {error}"));
    for (field, property) in schema["properties"].as_object().expect("properties") {
        if let Some(default) = property.get("default").filter(|_| data.get(field).is_none()) {
            data[field] = default.clone();
        }
    }
    serde_json::from_value::<B::Input>(data).unwrap_or_else(|error| panic!("{name}: its defaults: {error}"));
}

#[test]
fn every_input_has_a_form_and_documentation() {
    let verbs = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"].map(str::to_owned).to_vec();
    check::<Demo>(&[
        ("steps", InputKind::Integer),
        ("durationSeconds", InputKind::Integer),
        ("failureRate", InputKind::Number),
        ("message", InputKind::Text),
    ]);
    check::<HttpRequest>(&[
        ("url", InputKind::Text),
        ("method", InputKind::Choice(verbs)),
        ("body", InputKind::Multiline),
        ("followRedirects", InputKind::OptionalBoolean),
        ("timeoutSeconds", InputKind::Integer),
    ]);
    check::<SqlQuery>(&[
        ("query", InputKind::Multiline),
        ("readOnly", InputKind::OptionalBoolean),
        ("maxRows", InputKind::Integer),
        ("parameters", InputKind::Json),
    ]);
    check::<SendEmail>(&[("text", InputKind::Multiline)]);
    check::<ShellCommand>(&[("script", InputKind::Multiline)]);
}

#[test]
fn nested_input_has_nested_fields() {
    let kind = |schema: Value, name: &str| {
        schema_form::form_fields(&schema).into_iter().find(|field| field.name == name).expect("a field").kind
    };
    let InputKind::Union(variants) = kind(schema::<HttpRequest>(), "auth") else { panic!("auth is no union") };
    assert_eq!(variants.len(), 4);
    assert!(variants.iter().all(|variant| matches!(variant.kind, InputKind::Object(_))), "{variants:?}");
    for name in ["headers", "query"] {
        assert!(matches!(kind(schema::<HttpRequest>(), name), InputKind::Map(_)), "{name}");
    }
    for name in ["expectedStatus", "expectBody"] {
        assert!(matches!(kind(schema::<HttpRequest>(), name), InputKind::List(_)), "{name}");
    }
    for name in ["to", "attachments"] {
        assert!(matches!(kind(schema::<SendEmail>(), name), InputKind::List(_)), "{name}");
    }
    for name in ["argv", "successCodes"] {
        assert!(matches!(kind(schema::<ShellCommand>(), name), InputKind::List(_)), "{name}");
    }
}

#[test]
fn fields_stand_in_the_order_of_the_input_type() {
    let names: Vec<String> =
        schema_form::form_fields(&schema::<HttpRequest>()).into_iter().map(|field| field.name).collect();
    let expected = [
        "url",
        "method",
        "query",
        "headers",
        "body",
        "auth",
        "expectedStatus",
        "retryStatus",
        "expectBody",
        "followRedirects",
        "timeoutSeconds",
    ];
    assert_eq!(names, expected);
}
