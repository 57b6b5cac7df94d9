//! The OpenAPI 3.1 document, made from the table of operations.
//!
//! The document is built on first use, from the same schemas that check the requests. `docs/api/openapi.json` is a copy
//! that a test compares, so that a change of the API shows in a review.

use std::collections::BTreeMap;

use milvaion_api::rest::Problem;
use schemars::{Schema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    endpoint::Endpoint,
    input::{InputSchema, plain_text},
    operation::Operation,
    problem::{PROBLEM_JSON, PROBLEM_KINDS},
};

/// Builds the document of these operations.
#[must_use]
pub(super) fn document(endpoints: &[Endpoint]) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with_transform(plain_text);
    let settings = settings.with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let problem = generator.subschema_for::<Problem>();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for endpoint in endpoints {
        let answer = (endpoint.answer)(&mut generator);
        let method = endpoint.operation.method.to_ascii_lowercase();
        let described = operation(endpoint, answer.as_ref());
        paths.entry(format!("/api/v1{}", endpoint.operation.path)).or_default().insert(method, described);
    }
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Milvaion",
            "version": "v1",
            "description": "The API of the job scheduler Milvaion: everything that the dashboard can do. Requests are \
                            authorised by a token, or by the session of the dashboard.",
            "license": { "name": "Apache 2.0", "identifier": "Apache-2.0" }
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }, { "session": [] }],
        "tags": groups(endpoints),
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "A token of the page API tokens." },
                "session": {
                    "type": "apiKey", "in": "cookie", "name": "milvaion_session",
                    "description": "The session of the dashboard. Changes must come from its own pages."
                }
            },
            "responses": { "Problem": {
                "description": "The request was refused or failed.",
                "content": { PROBLEM_JSON: { "schema": problem } }
            } },
            "schemas": schemas
        }
    })
}

fn groups(endpoints: &[Endpoint]) -> Vec<Value> {
    let mut names: Vec<&str> = Vec::new();
    for endpoint in endpoints {
        if !names.contains(&endpoint.operation.group) {
            names.push(endpoint.operation.group);
        }
    }
    names.into_iter().map(|name| json!({ "name": name })).collect()
}

fn operation(endpoint: &Endpoint, answer: Option<&Schema>) -> Value {
    let Operation { id, group, summary, permission, method, success, .. } = endpoint.operation;
    let role = permission.required_role().label();
    let mut parameters = parameters("path", &endpoint.path);
    parameters.extend(self::parameters("query", &endpoint.query));
    if method == "POST" && permission.mutates() {
        parameters.push(header_parameter(
            "Idempotency-Key",
            "A text that identifies the request: a repetition gets the first answer, for a day.",
            json!({ "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]([ -~]*[!-~])?$" }),
        ));
    }
    if endpoint.operation.is_versioned {
        parameters.push(header_parameter(
            "If-Match",
            "The ETag of an earlier answer: the request is refused if the object has changed since.",
            json!({ "type": "string", "pattern": "^(W/)?\"[0-9]{1,9}\"$" }),
        ));
    }
    let mut responses = Map::new();
    responses.insert(success.to_string(), success_response(endpoint, answer));
    if endpoint.operation.id.starts_with("put") {
        responses.insert("201".into(), success_response(endpoint, answer));
    }
    for status in statuses(endpoint) {
        responses.insert(status.to_string(), json!({ "$ref": "#/components/responses/Problem" }));
    }
    let mut described = json!({
        "operationId": id,
        "tags": [group],
        "summary": summary,
        "description": format!("Needs the role {role}."),
        "x-required-role": permission.required_role().slug(),
        "responses": responses,
    });
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(body) = &endpoint.body {
        described["requestBody"] = json!({
            "required": !body.is_optional(),
            "content": { "application/json": { "schema": body.schema() } }
        });
    }
    described
}

/// Returns the statuses of errors that an operation can have.
fn statuses(endpoint: &Endpoint) -> impl Iterator<Item = u16> {
    let has_body = endpoint.body.is_some();
    let is_change = endpoint.operation.method != "GET";
    PROBLEM_KINDS.into_iter().map(|(_, status, _)| status.as_u16()).filter(move |status| match status {
        405 => false,
        412 => endpoint.operation.is_versioned,
        409 => is_change,
        413 | 415 => has_body,
        _ => true,
    })
}

fn success_response(endpoint: &Endpoint, answer: Option<&Schema>) -> Value {
    if endpoint.is_stream {
        return json!({ "description": "The stream.", "content": { "text/event-stream": { "schema": { "type": "string" } } } });
    }
    match answer {
        Some(schema) => json!({ "description": "Success.", "content": { "application/json": { "schema": schema } } }),
        None => json!({ "description": "Success, without a body." }),
    }
}

fn parameters(place: &str, schema: &InputSchema) -> Vec<Value> {
    let describe = |(name, property): (&String, &Value)| {
        let mut property = property.clone();
        let description = property.as_object_mut().and_then(|object| object.remove("description"));
        without_null(&mut property);
        let mut parameter = json!({
            "name": name, "in": place, "required": place == "path" || schema.is_required(name), "schema": property
        });
        if let Some(description) = description {
            parameter["description"] = description;
        }
        parameter
    };
    schema.properties().map(describe).collect()
}

/// Removes null from the types of a parameter, which is missing or has a value.
fn without_null(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    object.remove("default");
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
        choices.retain(|choice| choice.get("type").is_none_or(|kind| kind != "null"));
        if let [only] = choices.as_slice() {
            *schema = only.clone();
        }
    }
}

fn header_parameter(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "header", "required": false, "description": description, "schema": schema })
}
