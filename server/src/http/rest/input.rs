//! Reads the path, the query and the body of a request.
//!
//! Each is checked against the JSON Schema that the OpenAPI document publishes, before it becomes a Rust value. So the
//! document is exactly what the server accepts, and an unknown or misspelled field is an error with its name, not a
//! setting that silently has no effect.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use http::{HeaderMap, StatusCode, header};
use jsonschema::{ValidationError, Validator, error::ValidationErrorKind};
use milvaion_api::{requests::parse_exact_json, rest::ProblemField};
use milvaion_protocol::storable::nul_paths;
use schemars::{JsonSchema, Schema, generate::SchemaSettings, transform::transform_subschemas};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::problem::ApiError;

/// The largest body, in bytes. A job with an input of 64 KiB, the maximum, fits several times.
pub(super) const MAX_BODY_BYTES: usize = 512 * 1024;
/// The largest query, in bytes.
const MAX_QUERY_BYTES: usize = 8 * 1024;
/// The maximum number of errors in one answer.
const MAX_ERRORS: usize = 20;
/// The maximum length of a message, in characters. The message of a schema error repeats the value.
const MAX_MESSAGE_CHARS: usize = 300;
/// The name of the field in errors about the body as a whole.
const BODY_FIELD: &str = "body";

/// The schema of a part of a request. It is compiled on first use, because a server that starts would otherwise compile
/// some two hundred schemas.
///
/// An invalid schema panics on its first use. The OpenAPI document uses every schema, so the test that compares the
/// document with its copy finds an invalid one.
#[derive(Clone, Debug)]
pub struct InputSchema {
    make: fn() -> Value,
    compiled: Arc<OnceLock<CompiledSchema>>,
}

/// A schema that is ready for checks.
#[derive(Debug)]
struct CompiledSchema {
    schema: Value,
    validator: Validator,
}

impl CompiledSchema {
    fn new(schema: Value) -> Self {
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(&schema)
            .unwrap_or_else(|error| panic!("the schema of a request is invalid: {error}: {schema}"));
        Self { schema, validator }
    }
}

impl InputSchema {
    /// Builds a schema from a function. The objects of its schema accept no other properties than the named ones.
    #[must_use]
    pub fn new(make: fn() -> Value) -> Self {
        Self { make, compiled: Arc::default() }
    }

    fn compiled(&self) -> &CompiledSchema {
        self.compiled.get_or_init(|| CompiledSchema::new((self.make)()))
    }

    /// Returns the schema as it is published.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.compiled().schema
    }

    /// Returns the names of the properties, each with its schema.
    pub fn properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.schema().get("properties").and_then(Value::as_object).into_iter().flatten()
    }

    /// Returns true if a value may be missing.
    #[must_use]
    pub fn is_required(&self, name: &str) -> bool {
        let required = self.schema().get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|required| required == name))
    }

    /// Returns true if no property is required.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        self.schema().get("required").and_then(Value::as_array).is_none_or(Vec::is_empty)
    }

    fn check(&self, value: &Value) -> Result<(), ApiError> {
        let nul = nul_paths(value, MAX_ERRORS).into_iter();
        let mut errors: Vec<_> = nul.map(|path| field(&path, "must not contain the character U+0000")).collect();
        for error in self.compiled().validator.iter_errors(value) {
            collect(&error, &mut errors);
        }
        // One error for each field is enough: a wrong id breaks its pattern and its format.
        let mut seen = HashSet::new();
        errors.retain(|error| seen.insert(error.field.clone()));
        errors.truncate(MAX_ERRORS);
        if errors.is_empty() { Ok(()) } else { Err(ApiError::fields(errors)) }
    }

    /// Checks a value and converts it.
    fn convert<T: DeserializeOwned>(&self, value: Value) -> Result<T, ApiError> {
        self.check(&value)?;
        serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            let field = if path == "." { BODY_FIELD.to_owned() } else { path };
            ApiError::field(field, shorten(&error.inner().to_string()))
        })
    }

    /// Reads the parameters of a path or a query. A parameter has the type of its schema.
    ///
    /// # Errors
    ///
    /// Returns the invalid, unknown and repeated parameters.
    pub fn parameters<T: DeserializeOwned>(
        &self,
        pairs: impl IntoIterator<Item = (String, String)>,
    ) -> Result<T, ApiError> {
        let mut values = Map::new();
        let mut errors = Vec::new();
        for (name, text) in pairs {
            let Some((_, schema)) = self.properties().find(|(known, _)| **known == name) else {
                let known: Vec<_> = self.properties().map(|(name, _)| name.as_str()).collect();
                let message = if known.is_empty() {
                    "this operation has no parameters".to_owned()
                } else {
                    format!("is not a parameter of this operation, which has {}", known.join(", "))
                };
                errors.push(ProblemField { field: shorten(&name), message });
                continue;
            };
            let value = typed(schema, text);
            if values.insert(name.clone(), value).is_some() {
                errors.push(ProblemField { field: name, message: "is given twice: give it once".into() });
            }
        }
        errors.truncate(MAX_ERRORS);
        if !errors.is_empty() {
            return Err(ApiError::fields(errors));
        }
        self.convert(Value::Object(values))
    }

    /// Reads the query of an address.
    ///
    /// # Errors
    ///
    /// Returns the invalid, unknown and repeated parameters, and an error for a query that is too long.
    pub fn query<T: DeserializeOwned>(&self, query: Option<&str>) -> Result<T, ApiError> {
        let query = query.unwrap_or_default();
        if query.len() > MAX_QUERY_BYTES {
            return Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("The query has {} bytes, at most {MAX_QUERY_BYTES} are allowed.", query.len()),
            ));
        }
        self.parameters(url::form_urlencoded::parse(query.as_bytes()).into_owned())
    }

    /// Reads a body of JSON. An empty body is an empty object, if every property may be missing.
    ///
    /// # Errors
    ///
    /// Returns an error for a body that is not JSON or too large, and the invalid fields.
    pub fn body<T: DeserializeOwned>(&self, headers: &HeaderMap, body: &[u8]) -> Result<T, ApiError> {
        if body.is_empty() && self.is_optional() {
            return self.convert(Value::Object(Map::new()));
        }
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if media_type != "application/json" && !media_type.ends_with("+json") {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "The body must be JSON: send the header Content-Type: application/json.",
            ));
        }
        let unreadable = |reason: &str| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("The body is not valid JSON: {}.", shorten(reason)))
        };
        let text = std::str::from_utf8(body).map_err(|_| unreadable("it is not UTF-8"))?;
        if text.trim().is_empty() {
            return Err(unreadable("it is empty"));
        }
        let value = parse_exact_json("the body", text).map_err(|reason| unreadable(reason.trim_end_matches('.')))?;
        self.convert(value)
    }
}

/// Replaces what is specific to Rust in the descriptions, and the names of the integer types.
pub(super) fn plain_text(schema: &mut Schema) {
    transform_subschemas(&mut plain_text, schema);
    let Some(object) = schema.as_object_mut() else { return };
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`").replace("\n\n", "\u{b6}").replace('\n', " ");
        *text = text.replace('\u{b6}', "\n\n");
    }
    let bounds = match object.get("format").and_then(Value::as_str).unwrap_or_default() {
        "uint8" => Some((0, i64::from(u8::MAX))),
        "uint16" => Some((0, i64::from(u16::MAX))),
        "uint32" => Some((0, i64::from(u32::MAX))),
        "int32" => Some((i64::from(i32::MIN), i64::from(i32::MAX))),
        "uint64" | "uint" => Some((0, i64::MAX)),
        "int64" => Some((i64::MIN, i64::MAX)),
        _ => None,
    };
    if let Some((least, most)) = bounds {
        object.remove("format");
        object.entry("minimum").or_insert(least.into());
        object.entry("maximum").or_insert(most.into());
    }
}

/// Makes every object with named properties refuse others.
pub(super) fn refuse_unknown_fields(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(refuse_unknown_fields);
            let has_properties = object.get("properties").is_some_and(Value::is_object);
            let is_choice = object.contains_key("oneOf") || object.contains_key("anyOf");
            let is_object = object.get("type").is_some_and(|kind| kind == "object");
            if is_object && !is_choice && (has_properties || !object.contains_key("additionalProperties")) {
                object.insert("additionalProperties".into(), false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(refuse_unknown_fields),
        _ => {}
    }
}

/// Returns the schema of a part of requests, which is made from its type on first use.
pub(super) fn input_schema<T: JsonSchema>() -> InputSchema {
    InputSchema::new(strict_schema::<T>)
}

/// Makes the schema of a type: strict, and without references.
fn strict_schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize().with_transform(plain_text);
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    refuse_unknown_fields(&mut schema);
    schema
}

/// Converts the text of a parameter to the type of its schema. A text that does not fit stays text, and the check of the
/// schema then refuses it.
fn typed(schema: &Value, text: String) -> Value {
    let types: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if types.contains(&"integer")
        && let Ok(number) = text.parse::<i64>()
    {
        return number.into();
    }
    if types.contains(&"boolean")
        && let Ok(flag) = text.parse::<bool>()
    {
        return flag.into();
    }
    Value::String(text)
}

/// Adds the errors of one schema error. Of a choice between kinds, the errors of the named kind count.
fn collect(error: &ValidationError<'_>, errors: &mut Vec<ProblemField>) {
    let path = error.instance_path().to_string();
    match error.kind() {
        ValidationErrorKind::OneOfNotValid { context } | ValidationErrorKind::AnyOf { context } => {
            let is_other_kind = |error: &ValidationError<'_>| match error.kind() {
                // The word that names the kind is a field of the object itself.
                ValidationErrorKind::Constant { .. } => true,
                ValidationErrorKind::Type { .. } => error.instance_path().to_string() == path,
                _ => false,
            };
            match context.iter().find(|branch| !branch.is_empty() && !branch.iter().any(is_other_kind)) {
                Some(branch) => branch.iter().for_each(|error| collect(error, errors)),
                None => errors.push(unknown_kind(context).unwrap_or_else(|| field(&path, &error.to_string()))),
            }
        }
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            errors.push(field(&format!("{path}/{name}"), "is missing"));
        }
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            let unknown = unexpected.iter().take(MAX_ERRORS);
            errors.extend(unknown.map(|name| field(&format!("{path}/{name}"), "is not a field of this object")));
        }
        _ => errors.push(field(&path, &error.to_string())),
    }
}

/// Returns the error of a word that names none of the kinds of a choice.
fn unknown_kind(branches: &[Vec<ValidationError<'static>>]) -> Option<ProblemField> {
    let mut words = Vec::new();
    let mut place = None;
    for branch in branches {
        let constant = branch.iter().find_map(|error| match error.kind() {
            ValidationErrorKind::Constant { expected_value } => {
                Some((error.instance_path().to_string(), expected_value))
            }
            _ => None,
        });
        let (path, word) = constant?;
        words.push(word.as_str()?.to_owned());
        if place.get_or_insert_with(|| path.clone()) != &path {
            return None;
        }
    }
    place.map(|path| field(&path, &format!("must be one of {}", words.join(", "))))
}

fn field(path: &str, message: &str) -> ProblemField {
    ProblemField { field: name_of(path), message: shorten(message) }
}

/// Returns the name of a field from its JSON pointer.
fn name_of(pointer: &str) -> String {
    let name = pointer.trim_start_matches('/').replace('/', ".").replace("~1", "/").replace("~0", "~");
    if name.is_empty() { BODY_FIELD.to_owned() } else { shorten(&name) }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
