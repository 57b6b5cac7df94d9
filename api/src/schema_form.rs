//! The input form: from a JSON Schema to form fields, and from their text to the input.
//!
//! Only properties that a form shows well become fields: strings, numbers, booleans, choices, and lists of strings (one
//! per line). Deeper values become a JSON field. The server validates the input against the schema; this module only
//! converts text to the types that the schema requires.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::requests::FieldError;

/// The maximum number of fields in a generated form. A larger schema is edited as JSON.
pub const MAX_FORM_FIELDS: usize = 100;

/// The kind of control that edits a property.
#[derive(Clone, Debug, PartialEq)]
pub enum InputKind {
    /// One line of text.
    Text,
    /// Several lines of text.
    Multiline,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// A checkbox.
    Boolean,
    /// One of these words.
    Choice(Vec<String>),
    /// A list of strings, one per line.
    Lines,
    /// JSON.
    Json,
}

/// A field of a generated form.
#[derive(Clone, Debug, PartialEq)]
pub struct InputField {
    /// The name of the property.
    pub name: String,
    /// The label: the title of the property, or its name in words.
    pub label: String,
    /// The description of the property.
    pub description: String,
    /// The kind of control.
    pub kind: InputKind,
    /// True if the input must have the property.
    pub required: bool,
    /// The default, as text.
    pub default: String,
    /// An example, as text.
    pub example: String,
}

/// Returns the fields of a schema, required ones first; empty if the schema does not describe an object.
#[must_use]
pub fn form_fields(schema: &Value) -> Vec<InputField> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Vec::new() };
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut fields: Vec<InputField> = properties
        .iter()
        .take(MAX_FORM_FIELDS)
        .map(|(name, property)| {
            let property = resolve(schema, property);
            InputField {
                name: name.clone(),
                label: text(property, "title").unwrap_or_else(|| label(name)),
                description: text(property, "description").unwrap_or_default(),
                kind: kind(property),
                required: required.contains(&name.as_str()),
                default: property.get("default").map(as_text).unwrap_or_default(),
                example: property.get("examples").and_then(|all| all.get(0)).map(as_text).unwrap_or_default(),
            }
        })
        .collect();
    // Required fields come first. The sort is stable, so each group keeps the schema's order.
    fields.sort_by_key(|field| !field.required);
    fields
}

fn text(property: &Value, key: &str) -> Option<String> {
    property.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// Follows local `$ref`s, and replaces "this or null" by "this".
fn resolve<'a>(schema: &'a Value, property: &'a Value) -> &'a Value {
    let mut at = property;
    for _ in 0..4 {
        if let Some(pointer) = at.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#')) {
            match schema.pointer(pointer) {
                Some(target) => at = target,
                None => return at,
            }
        } else if let Some(options) = at.get("anyOf").or_else(|| at.get("oneOf")).and_then(Value::as_array) {
            let mut real = options.iter().filter(|option| option.get("type") != Some(&Value::from("null")));
            match (real.next(), real.next()) {
                (Some(only), None) => at = only,
                _ => return at,
            }
        } else {
            return at;
        }
    }
    at
}

fn kind(property: &Value) -> InputKind {
    if let Some(choices) = property.get("enum").and_then(Value::as_array) {
        let words: Vec<String> = choices.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        if !words.is_empty() && words.len() + choices.iter().filter(|c| c.is_null()).count() == choices.len() {
            return InputKind::Choice(words);
        }
        return InputKind::Json;
    }
    if let Some(options) = property.get("oneOf").and_then(Value::as_array) {
        let words: Vec<String> =
            options.iter().filter_map(|option| option.get("const")?.as_str()).map(str::to_owned).collect();
        if !words.is_empty() && words.len() == options.len() {
            return InputKind::Choice(words);
        }
        return InputKind::Json;
    }
    match type_of(property) {
        Some("string") => match property.get("format").and_then(Value::as_str) {
            Some("multiline" | "textarea") => InputKind::Multiline,
            _ => InputKind::Text,
        },
        Some("integer") => InputKind::Integer,
        Some("number") => InputKind::Number,
        Some("boolean") => InputKind::Boolean,
        Some("array") if property.get("items").and_then(|items| type_of(items)) == Some("string") => InputKind::Lines,
        _ => InputKind::Json,
    }
}

/// Returns the only type of a property other than null.
fn type_of(property: &Value) -> Option<&str> {
    match property.get("type")? {
        Value::String(one) => Some(one),
        Value::Array(several) => {
            let mut real = several.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            match (real.next(), real.next()) {
                (Some(only), None) => Some(only),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Derives a label from a name: `expectedStatus` → `Expected status`.
fn label(name: &str) -> String {
    let mut words = String::with_capacity(name.len() + 4);
    for (at, c) in name.chars().enumerate() {
        match c {
            '_' | '-' => words.push(' '),
            c if at == 0 => words.extend(c.to_uppercase()),
            c if c.is_uppercase() => {
                words.push(' ');
                words.extend(c.to_lowercase());
            }
            c => words.push(c),
        }
    }
    words
}

fn as_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

/// Returns the text of each field for an existing input.
#[must_use]
pub fn to_field_texts(data: &Value) -> BTreeMap<String, String> {
    let Some(map) = data.as_object() else { return BTreeMap::new() };
    map.iter().map(|(name, value)| (name.clone(), as_text(value))).collect()
}

/// Builds the input from the entered text. An empty optional field is left out, so that the worker's default applies.
///
/// # Errors
///
/// Returns the invalid fields, named `input.NAME`.
pub fn build_input(schema: &Value, typed: &BTreeMap<String, String>) -> Result<Value, Vec<FieldError>> {
    let mut data = Map::new();
    let mut errors = Vec::new();
    for field in form_fields(schema) {
        let raw = typed.get(&field.name).map_or("", String::as_str);
        match value(&field, raw) {
            Ok(Some(value)) => {
                data.insert(field.name, value);
            }
            Ok(None) if field.required => {
                errors.push(FieldError::new(format!("input.{}", field.name), format!("{} is required", field.label)));
            }
            Ok(None) => {}
            Err(message) => errors.push(FieldError::new(format!("input.{}", field.name), message)),
        }
    }
    if errors.is_empty() { Ok(Value::Object(data)) } else { Err(errors) }
}

fn value(field: &InputField, raw: &str) -> Result<Option<Value>, String> {
    let trimmed = raw.trim();
    match &field.kind {
        InputKind::Boolean => Ok(match trimmed {
            "" if field.required => Some(false.into()),
            "" if field.default == "true" => Some(false.into()),
            "" => None,
            "on" | "true" => Some(true.into()),
            "false" => Some(false.into()),
            _ => return Err("choose yes or no".into()),
        }),
        _ if trimmed.is_empty() => Ok(None),
        InputKind::Text => Ok(Some(trimmed.into())),
        InputKind::Multiline => Ok(Some(raw.into())),
        InputKind::Integer => match trimmed.parse::<i64>() {
            Ok(n) => Ok(Some(n.into())),
            Err(_) => Err(format!("enter a whole number: got {}", clip(trimmed))),
        },
        InputKind::Number => match trimmed.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(Some(n.into())),
            _ => Err(format!("enter a number: got {}", clip(trimmed))),
        },
        InputKind::Choice(choices) => {
            if choices.iter().any(|choice| choice == trimmed) {
                Ok(Some(trimmed.into()))
            } else {
                Err(format!("choose one of {}", choices.join(", ")))
            }
        }
        InputKind::Lines => {
            let lines: Vec<Value> = raw
                .lines()
                .map(|line| line.trim_end_matches('\r'))
                .filter(|line| !line.is_empty())
                .map(Value::from)
                .collect();
            Ok(Some(lines.into()))
        }
        InputKind::Json => {
            serde_json::from_str(trimmed).map(Some).map_err(|error| format!("the value is not JSON: {error}"))
        }
    }
}

fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "$defs": {"Method": {"enum": ["GET", "POST"]}},
            "properties": {
                "timeoutSeconds": {"type": ["integer", "null"], "description": "Seconds."},
                "url": {"type": "string", "examples": ["http://localhost"]},
                "method": {"$ref": "#/$defs/Method", "default": "GET"},
                "headers": {"type": "object"},
                "argv": {"type": "array", "items": {"type": "string"}},
                "verify": {"type": "boolean", "default": true}
            },
            "required": ["url"]
        })
    }

    fn typed(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn required_fields_come_first_and_null_is_ignored() {
        let fields = form_fields(&schema());
        assert_eq!(fields[0].name, "url");
        let kind = |name: &str| fields.iter().find(|f| f.name == name).expect("a field").kind.clone();
        assert_eq!(kind("timeoutSeconds"), InputKind::Integer);
        assert_eq!(kind("headers"), InputKind::Json);
        assert_eq!(kind("argv"), InputKind::Lines);
        assert_eq!(fields.iter().find(|f| f.name == "timeoutSeconds").expect("a field").label, "Timeout seconds");
    }

    #[test]
    fn text_is_converted_to_the_schemas_types() {
        let data = build_input(
            &schema(),
            &typed(&[
                ("url", " http://x "),
                ("timeoutSeconds", "5"),
                ("headers", "{\"a\":\"b\"}"),
                ("argv", "ls\n-l\n"),
                ("verify", "on"),
            ]),
        );
        assert_eq!(
            data,
            Ok(
                json!({"url": "http://x", "timeoutSeconds": 5, "headers": {"a": "b"}, "argv": ["ls", "-l"], "verify": true})
            )
        );
    }

    #[test]
    fn invalid_text_is_reported_per_field() {
        let errors =
            build_input(&schema(), &typed(&[("timeoutSeconds", "soon"), ("headers", "{")])).expect_err("invalid");
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["input.url", "input.headers", "input.timeoutSeconds"]);
    }
}
