//! JSON Schemas of what travels over the broker, made from the types that are sent and read.
//!
//! They exist for `docs/protocol`, from which workers in other languages are written, and for the test that keeps those
//! files true. So they describe what a *reader* takes: what has a default may be missing, and fields that nobody knows
//! are allowed everywhere. The bounds a type cannot tell are told here, in [`SCHEMA_BOUNDS`], by the name of the field: a name
//! means the same in every message.

use std::borrow::Cow;

use schemars::{
    JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema, transform::transform_subschemas,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    id::{JobId, OccurrenceId},
    message::{
        CancelMessage, ClaimReply, ClaimRequest, JobMessage, LogMessage, RegistrationMessage, StatusMessage,
        StatusReport,
    },
    status::{self, OccurrenceStatus},
};

/// What worker ids and job types are made of.
const NAME_PATTERN: &str = "^[A-Za-z0-9._-]{1,100}$";

/// What a type cannot tell, by the name of the field.
const SCHEMA_BOUNDS: [(&str, &str, SchemaBound); 12] = [
    ("attempt", "minimum", SchemaBound::Number(1)),
    ("priority", "minimum", SchemaBound::Number(1)),
    ("priority", "maximum", SchemaBound::Number(5)),
    ("percent", "maximum", SchemaBound::Number(100)),
    ("workerId", "pattern", SchemaBound::Text(NAME_PATTERN)),
    ("jobType", "pattern", SchemaBound::Text(NAME_PATTERN)),
    ("jobTypes", "maxItems", SchemaBound::Number(500)),
    ("instanceId", "minLength", SchemaBound::Number(1)),
    ("instanceId", "maxLength", SchemaBound::Number(200)),
    ("seq", "minimum", SchemaBound::Number(1_000_000)),
    ("x-republish", "minimum", SchemaBound::Number(1)),
    ("x-republish", "maximum", SchemaBound::Number(1)),
];

#[derive(Clone, Copy)]
enum SchemaBound {
    Number(u64),
    Text(&'static str),
}

/// The headers of a job message. What they say stands in the body too; they are for those who look at a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobHeaders {
    /// How many attempts have failed before this one.
    #[serde(rename = "x-retry-count")]
    pub retry_count: u32,
    /// How many retries there may be.
    #[serde(rename = "x-max-retries")]
    pub max_retries: u32,
    /// The occurrence, also when the message was copied or dead-lettered.
    #[serde(rename = "x-original-correlation-id")]
    pub correlation_id: OccurrenceId,
    /// 1 when the server cannot know whether an earlier copy arrived; missing otherwise.
    #[serde(rename = "x-republish", default, skip_serializing_if = "Option::is_none")]
    pub republish: Option<u32>,
}

/// The headers of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetterHeaders {
    /// Why the worker gave the occurrence up. Missing when it rejected a message that it could make nothing of.
    #[serde(rename = "x-milvaion-cause", default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<DeadLetterCause>,
    /// Why and from where the broker moved the message, newest first. Written by the broker.
    #[serde(rename = "x-death", default, skip_serializing_if = "Vec::is_empty")]
    pub deaths: Vec<DeathRecord>,
}

/// Why a worker gives an occurrence up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterCause {
    /// Trying again is of no use.
    Permanent,
    /// Every attempt failed.
    Exhausted,
    /// Its runs ended the worker's process again and again.
    Poison,
}

/// One note of the broker's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeathRecord {
    /// Why, such as `rejected` or `expired`.
    pub reason: String,
    /// From which queue.
    pub queue: String,
}

/// Every schema, by the name of its file in `docs/protocol` without `.schema.json`.
#[must_use]
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("job-message", of::<JobMessage>()),
        ("job-headers", of::<JobHeaders>()),
        ("status-report", of::<StatusReport>()),
        ("status-message", of::<StatusMessage>()),
        ("log-message", of::<LogMessage>()),
        ("registration-message", of::<RegistrationMessage>()),
        ("cancel-message", of::<CancelMessage>()),
        ("claim-request", of::<ClaimRequest>()),
        ("claim-reply", of::<ClaimReply>()),
        ("dead-letter-headers", of::<DeadLetterHeaders>()),
    ]
}

fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(finish);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Adds the bounds, and takes out what only Rust understands: the marks in sentences, and the names of its numbers.
fn finish(schema: &mut Schema) {
    transform_subschemas(&mut finish, schema);
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

/// An id in a schema.
fn uuid(what: &str) -> Schema {
    json_schema!({
        "type": "string",
        "format": "uuid",
        "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        "description": format!("Names {what}: a UUID, version 7."),
    })
}

macro_rules! uuid_schema {
    ($name:ident, $what:literal) => {
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                uuid($what)
            }
        }
    };
}

uuid_schema!(JobId, "a job");
uuid_schema!(OccurrenceId, "an occurrence");

impl JsonSchema for OccurrenceStatus {
    fn schema_name() -> Cow<'static, str> {
        "OccurrenceStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let numbers: Vec<Value> = status::ALL_STATUSES
            .iter()
            .map(|status| json!({ "const": status.code(), "title": status.label() }))
            .collect();
        json_schema!({ "description": "The state of an occurrence.", "type": "integer", "oneOf": numbers })
    }
}
