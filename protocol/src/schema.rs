//! JSON Schemas of the messages on the broker, generated from the types that are sent and read.
//!
//! They exist for `docs/protocol`, which authors of workers in other languages read, and for the test that keeps those
//! files up to date. Therefore they describe the input that a *reader* accepts: a field with a default may be missing,
//! and unknown fields are allowed everywhere. The bounds that a type cannot express are listed in `SCHEMA_BOUNDS` by
//! field name; a name means the same in every message.

use std::borrow::Cow;

use schemars::{
    JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema, transform::transform_subschemas,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    id::{
        AlertChannelId, AlertId, AlertRuleId, CalendarId, DeadLetterId, JobId, OccurrenceId, SessionId, TokenId, UserId,
    },
    message::{
        CancelMessage, ClaimReply, ClaimRequest, HelloReply, IngestMessage, IngestReply, JobBundle, JobMessage,
        LogMessage, RegistrationMessage, StatusMessage, StatusReport,
    },
    status::{self, OccurrenceStatus},
};

/// The pattern of worker ids and job types.
const NAME_PATTERN: &str = "^[A-Za-z0-9._-]{1,100}$";

/// The bounds that a type cannot express, by field name.
const SCHEMA_BOUNDS: [(&str, &str, SchemaBound); 17] = [
    ("attempt", "minimum", SchemaBound::Number(1)),
    ("priority", "minimum", SchemaBound::Number(1)),
    ("priority", "maximum", SchemaBound::Number(5)),
    ("workerId", "pattern", SchemaBound::Text(NAME_PATTERN)),
    ("jobType", "pattern", SchemaBound::Text(NAME_PATTERN)),
    ("jobTypes", "maxItems", SchemaBound::Number(500)),
    ("instanceId", "minLength", SchemaBound::Number(1)),
    ("instanceId", "maxLength", SchemaBound::Number(200)),
    ("occurrences", "maxItems", SchemaBound::Number(500)),
    ("schedules", "maxItems", SchemaBound::Number(100)),
    ("problems", "maxItems", SchemaBound::Number(100)),
    ("tags", "maxItems", SchemaBound::Number(20)),
    ("maxConcurrent", "minimum", SchemaBound::Number(1)),
    ("uniquenessKey", "maxLength", SchemaBound::Number(200)),
    ("uniqueForSeconds", "maximum", SchemaBound::Number(30 * 86_400)),
    ("x-republish", "minimum", SchemaBound::Number(1)),
    ("x-republish", "maximum", SchemaBound::Number(1)),
];

/// The fields whose reader rounds a fraction.
const ROUNDED_FIELDS: [&str; 3] = ["durationMs", "retryAfterMs", "percent"];

/// The fields of a log line of which a reader takes any value, or none.
const ANY_VALUE_FIELDS: [&str; 3] = ["at", "level", "message"];

#[derive(Clone, Copy)]
enum SchemaBound {
    Number(u64),
    Text(&'static str),
}

/// The headers of a job message. They repeat values of the body for users who inspect a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobHeaders {
    /// The number of attempts that failed before this one.
    #[serde(rename = "x-retry-count")]
    pub retry_count: u32,
    /// The maximum number of retries.
    #[serde(rename = "x-max-retries")]
    pub max_retries: u32,
    /// The occurrence, kept when the message is republished or dead-lettered.
    #[serde(rename = "x-original-correlation-id")]
    pub correlation_id: OccurrenceId,
    /// 1 if the server cannot tell whether an earlier copy was delivered; absent otherwise.
    #[serde(rename = "x-republish", default, skip_serializing_if = "Option::is_none")]
    pub republish: Option<u32>,
}

/// The headers of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetterHeaders {
    /// The reason why the worker gave the occurrence up. Absent if it rejected a message that it could not read.
    #[serde(rename = "x-milvaion-cause", default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<DeadLetterCause>,
    /// The reasons for which the broker moved the message and the queues it left, newest first. The broker writes them.
    #[serde(rename = "x-death", default, skip_serializing_if = "Vec::is_empty")]
    pub deaths: Vec<DeathRecord>,
}

/// The reason why a worker gives an occurrence up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterCause {
    /// A retry is useless.
    Permanent,
    /// All attempts failed.
    Exhausted,
    /// A poison run: its attempts crashed the worker's process repeatedly.
    Poison,
    /// Any other word, which counts as a message that was rejected.
    #[serde(other)]
    Other,
}

/// One entry of the broker's `x-death` header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeathRecord {
    /// The reason, such as `rejected` or `expired`.
    pub reason: String,
    /// The queue that the message left.
    pub queue: String,
}

/// Returns every schema with the name of its file in `docs/protocol`, without `.schema.json`.
#[must_use]
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("job-message", schema_of::<JobMessage>()),
        ("job-bundle", schema_of::<JobBundle>()),
        ("job-headers", schema_of::<JobHeaders>()),
        ("status-report", schema_of::<StatusReport>()),
        ("status-message", schema_of::<StatusMessage>()),
        ("log-message", schema_of::<LogMessage>()),
        ("registration-message", schema_of::<RegistrationMessage>()),
        ("cancel-message", schema_of::<CancelMessage>()),
        ("claim-request", schema_of::<ClaimRequest>()),
        ("claim-reply", schema_of::<ClaimReply>()),
        ("hello-reply", schema_of::<HelloReply>()),
        ("ingest-message", schema_of::<IngestMessage>()),
        ("ingest-reply", schema_of::<IngestReply>()),
        ("dead-letter-headers", schema_of::<DeadLetterHeaders>()),
    ]
}

fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(adapt_schema);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Adds the bounds and removes what is specific to Rust: doc link brackets, line breaks inside a paragraph, and the
/// names of the integer types.
fn adapt_schema(schema: &mut Schema) {
    transform_subschemas(&mut adapt_schema, schema);
    let Some(object) = schema.as_object_mut() else { return };
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = text
            .replace("[`", "`")
            .replace("`]", "`")
            .replace("\n\n", "\u{b6}")
            .replace('\n', " ")
            .replace('\u{b6}', "\n\n");
    }
    let format = object.get("format").and_then(Value::as_str).unwrap_or_default();
    if format.starts_with("uint") || format.starts_with("int") {
        if format == "uint32" {
            object.insert("maximum".into(), u32::MAX.into());
        }
        object.remove("format");
    }
    open_enum(object);
    relax_fields(object);
    let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
    for (name, keyword, bound) in SCHEMA_BOUNDS {
        if let Some(Value::Object(field)) = properties.get_mut(name) {
            let bound = match bound {
                SchemaBound::Number(number) => number.into(),
                SchemaBound::Text(text) => text.into(),
            };
            field.insert(keyword.into(), bound);
        }
    }
}

/// Adds that any other word is accepted to an enum with a variant for unknown words.
fn open_enum(object: &mut Map<String, Value>) {
    let is_other = |variant: &Value| variant["const"] == "other";
    let Some(Value::Array(variants)) = object.get_mut("oneOf") else { return };
    let Some(other) = variants.iter_mut().find(|variant| is_other(variant)) else { return };
    *other = json!({ "type": "string", "description": other["description"] });
    let variants = std::mem::take(variants);
    object.remove("oneOf");
    object.insert("anyOf".into(), Value::Array(variants));
}

/// Describes the tolerance of the readers: a field that may be missing may be null, and measured values may have a
/// fraction.
fn relax_fields(object: &mut Map<String, Value>) {
    let required = object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_log_line = object
        .get("properties")
        .is_some_and(|properties| properties.get("seq").is_some() && properties.get("level").is_some());
    if is_log_line && let Some(Value::Array(required)) = object.get_mut("required") {
        required.retain(|name| !name.as_str().is_some_and(|name| ANY_VALUE_FIELDS.contains(&name)));
    }
    let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
    for (name, field) in properties {
        let Value::Object(field) = field else { continue };
        if is_log_line && ANY_VALUE_FIELDS.contains(&name.as_str()) {
            field.retain(|keyword, _| keyword == "description" || keyword == "default");
            continue;
        }
        if ROUNDED_FIELDS.contains(&name.as_str()) {
            replace_type(field, "integer", "number");
            field.retain(|keyword, _| name != "percent" || !matches!(keyword.as_str(), "minimum" | "maximum"));
        }
        if !required.contains(&json!(name)) {
            allow_null(field);
        }
    }
}

fn replace_type(field: &mut Map<String, Value>, from: &str, to: &str) {
    match field.get_mut("type") {
        Some(Value::String(name)) if name == from => *name = to.to_owned(),
        Some(Value::Array(names)) => names.iter_mut().filter(|name| *name == from).for_each(|name| *name = json!(to)),
        _ => {}
    }
}

fn allow_null(field: &mut Map<String, Value>) {
    if let Some(Value::String(name)) = field.get("type") {
        let types = json!([name, "null"]);
        field.insert("type".into(), types);
    } else if let Some(reference) = field.remove("$ref") {
        field.insert("anyOf".into(), json!([{ "$ref": reference }, { "type": "null" }]));
    }
}

/// Builds the schema of an id.
fn uuid(subject: &str) -> Schema {
    json_schema!({
        "type": "string",
        "format": "uuid",
        "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        "description": format!("The id of {subject}: a UUID, version 7."),
    })
}

macro_rules! uuid_schema {
    ($name:ident, $subject:literal) => {
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                uuid($subject)
            }
        }
    };
}

uuid_schema!(JobId, "a job");
uuid_schema!(OccurrenceId, "an occurrence");
uuid_schema!(CalendarId, "a calendar");
uuid_schema!(DeadLetterId, "a dead letter");
uuid_schema!(UserId, "a user");
uuid_schema!(SessionId, "a session");
uuid_schema!(TokenId, "an API token");
uuid_schema!(AlertId, "an alert");
uuid_schema!(AlertRuleId, "an alert rule");
uuid_schema!(AlertChannelId, "an alert channel");

impl JsonSchema for OccurrenceStatus {
    fn schema_name() -> Cow<'static, str> {
        "OccurrenceStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let numbers: Vec<Value> = status::ALL_STATUSES
            .iter()
            .map(|status| json!({ "const": status.code(), "title": status.label() }))
            .collect();
        json_schema!({ "description": "The status of an occurrence.", "type": "integer", "oneOf": numbers })
    }
}
