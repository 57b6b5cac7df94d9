//! The input form: from a JSON Schema to form fields, and from their text to the input.
//!
//! A field of the form is a control, or a group of fields: an object, a union with one chosen variant, a list, or a map.
//! What a form cannot show (too deep, too large, or of an unusual kind) becomes a JSON field. The fields stand in the
//! order of the schema. The server validates the input against the schema; this module only converts text to the types
//! that the schema requires.
//!
//! The typed text is a flat map, because it is the body of a plain form post. Its keys are paths like JSON pointers
//! without the first slash (`headers/0`, `auth/token`), and a few marks that no property name can contain, because a
//! tilde in a name is escaped: see [`path`].

mod build;
pub mod path;
mod texts;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use build::{BuiltInput, build_input, build_lenient, build_partial};
pub use texts::to_field_texts;

/// The maximum number of fields in a generated form, without repeated rows. A larger schema is edited as JSON.
pub const MAX_FORM_FIELDS: usize = 200;
/// The maximum depth of fields; deeper values are JSON fields.
pub const MAX_FORM_DEPTH: usize = 4;
/// The maximum number of rows of a list or map in the form; longer ones are edited as JSON.
pub const MAX_FORM_ROWS: usize = 100;

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
    /// A checkbox, for a required value.
    Boolean,
    /// A choice of yes, no and the default, for a value that may be left out.
    OptionalBoolean,
    /// One of these words.
    Choice(Vec<String>),
    /// A fixed value, which needs no control.
    Const(Value),
    /// An object with fields of its own.
    Object(InputObject),
    /// One of several variants, each a field with the variant's name as its label.
    Union(Vec<InputField>),
    /// A list of equal items.
    List(InputRows),
    /// Named values.
    Map(InputRows),
    /// JSON.
    Json,
}

/// The fields of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputObject {
    /// The fields, in the order of the schema.
    pub fields: Vec<InputField>,
    /// True if the schema allows more than the fields, so that a JSON field for other properties is always shown.
    pub is_open: bool,
}

/// The rows of a list or map.
#[derive(Clone, Debug, PartialEq)]
pub struct InputRows {
    /// The field of each row.
    pub item: Box<InputField>,
    /// The minimum number of rows.
    pub min: usize,
    /// The maximum number of rows, at most [`MAX_FORM_ROWS`].
    pub max: usize,
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

/// Returns the fields of a schema in its order; empty if the schema describes no object with properties, or one with
/// more than [`MAX_FORM_FIELDS`].
#[must_use]
pub fn form_fields(schema: &Value) -> Vec<InputField> {
    form_object(schema).fields
}

/// Returns the fields of a schema, and whether it allows other properties.
#[must_use]
pub fn form_object(schema: &Value) -> InputObject {
    let mut reader = SchemaReader { root: schema, budget: MAX_FORM_FIELDS };
    reader.object(resolve(schema, schema), 0).unwrap_or_default()
}

/// The conversion of one schema.
struct SchemaReader<'a> {
    root: &'a Value,
    /// The number of fields that may still be added.
    budget: usize,
}

impl SchemaReader<'_> {
    /// Returns the fields of an object; `None` if it has none, or too many for the form.
    fn object(&mut self, schema: &Value, depth: usize) -> Option<InputObject> {
        let properties = schema.get("properties").and_then(Value::as_object).filter(|all| !all.is_empty())?;
        self.budget = self.budget.checked_sub(properties.len())?;
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let fields = properties
            .iter()
            .map(|(name, property)| self.field(name, property, required.contains(&name.as_str()), depth))
            .collect();
        let is_open =
            ["oneOf", "anyOf", "allOf", "if", "patternProperties"].iter().any(|key| schema.get(key).is_some())
                || schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false));
        Some(InputObject { fields, is_open })
    }

    fn field(&mut self, name: &str, outer: &Value, required: bool, depth: usize) -> InputField {
        let inner = resolve(self.root, outer);
        // The words beside a reference or an "or null" describe this property; those of its target describe the type.
        let words = |key: &str| outer.get(key).or_else(|| inner.get(key));
        let text = |key: &str| words(key).and_then(Value::as_str).map(str::to_owned);
        let default = words("default").map(as_text).unwrap_or_default();
        let kind = match self.kind(inner, depth) {
            // A browser posts nothing for an unchecked box, so a box cannot state both "no" and "left out".
            InputKind::Boolean if !required => InputKind::OptionalBoolean,
            kind => kind,
        };
        InputField {
            name: name.to_owned(),
            label: text("title").unwrap_or_else(|| label(name)),
            description: text("description").unwrap_or_default(),
            kind,
            required,
            default,
            example: words("examples").and_then(|all| all.get(0)).map(as_text).unwrap_or_default(),
        }
    }

    fn kind(&mut self, property: &Value, depth: usize) -> InputKind {
        if let Some(value) = property.get("const") {
            return InputKind::Const(value.clone());
        }
        if let Some(choices) = property.get("enum").and_then(Value::as_array) {
            let words: Vec<String> = choices.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            if !words.is_empty() && words.len() + choices.iter().filter(|c| c.is_null()).count() == choices.len() {
                return InputKind::Choice(words);
            }
            return InputKind::Json;
        }
        let has_properties = property.get("properties").is_some();
        if let Some(options) = options(property).filter(|_| !has_properties) {
            let words: Vec<String> =
                options.iter().filter_map(|option| option.get("const")?.as_str()).map(str::to_owned).collect();
            if !words.is_empty() && words.len() == options.len() {
                return InputKind::Choice(words);
            }
            return self.union(options, depth).unwrap_or(InputKind::Json);
        }
        match type_of(property) {
            Some("string") => match property.get("format").and_then(Value::as_str) {
                Some("multiline" | "textarea") => InputKind::Multiline,
                _ => InputKind::Text,
            },
            Some("integer") => InputKind::Integer,
            Some("number") => InputKind::Number,
            Some("boolean") => InputKind::Boolean,
            Some("array") if depth + 1 < MAX_FORM_DEPTH => self.list(property, depth).unwrap_or(InputKind::Json),
            Some("object") if depth + 1 < MAX_FORM_DEPTH => {
                if has_properties {
                    self.object(property, depth + 1).map_or(InputKind::Json, InputKind::Object)
                } else {
                    self.map(property, depth).unwrap_or(InputKind::Json)
                }
            }
            _ => InputKind::Json,
        }
    }

    fn union(&mut self, options: &[Value], depth: usize) -> Option<InputKind> {
        if depth + 1 >= MAX_FORM_DEPTH {
            return None;
        }
        self.budget = self.budget.checked_sub(options.len())?;
        let root = self.root;
        let variants = options
            .iter()
            .enumerate()
            .filter(|(_, option)| option.get("type") != Some(&Value::from("null")))
            .map(|(index, option)| {
                let mut field = self.field(&index.to_string(), option, true, depth + 1);
                if resolve(root, option).get("title").is_none() {
                    field.label = variant_label(&field, resolve(root, option), index);
                }
                field
            })
            .collect();
        Some(InputKind::Union(variants))
    }

    fn list(&mut self, property: &Value, depth: usize) -> Option<InputKind> {
        let items = property.get("items").filter(|items| items.is_object())?;
        let item = self.row(items, depth)?;
        Some(InputKind::List(rows(item, property, ["minItems", "maxItems"])))
    }

    fn map(&mut self, property: &Value, depth: usize) -> Option<InputKind> {
        let values = property.get("additionalProperties").filter(|values| values.is_object())?;
        let item = self.row(values, depth)?;
        Some(InputKind::Map(rows(item, property, ["minProperties", "maxProperties"])))
    }

    /// Returns the field of a row; `None` for items of any kind, because a list of JSON fields helps less than JSON.
    fn row(&mut self, items: &Value, depth: usize) -> Option<InputField> {
        self.budget = self.budget.checked_sub(1)?;
        let field = self.field("", items, true, depth + 1);
        (field.kind != InputKind::Json).then_some(field)
    }
}

fn rows(item: InputField, property: &Value, [least, most]: [&str; 2]) -> InputRows {
    let bound = |key: &str| property.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    InputRows {
        item: Box::new(item),
        min: bound(least).unwrap_or(0),
        max: bound(most).unwrap_or(MAX_FORM_ROWS).min(MAX_FORM_ROWS),
    }
}

/// Returns the options of a union.
fn options(property: &Value) -> Option<&Vec<Value>> {
    property.get("oneOf").or_else(|| property.get("anyOf")).and_then(Value::as_array)
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
        } else if let Some(options) = options(at).filter(|_| at.get("properties").is_none()) {
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

/// Returns the name of a variant without a title: its fixed words, its only property, or its type.
fn variant_label(field: &InputField, schema: &Value, index: usize) -> String {
    let word = |value: &Value| value.as_str().map(label);
    let derived = match &field.kind {
        InputKind::Const(value) => word(value),
        InputKind::Object(object) => {
            let tag = object.fields.iter().find_map(|field| match &field.kind {
                InputKind::Const(value) => word(value),
                _ => None,
            });
            tag.or_else(|| match object.fields.as_slice() {
                [only] => Some(only.label.clone()),
                _ => None,
            })
        }
        InputKind::Text | InputKind::Multiline => Some("Text".into()),
        InputKind::Integer => Some("Whole number".into()),
        InputKind::Number => Some("Number".into()),
        InputKind::Boolean | InputKind::OptionalBoolean => Some("Yes or no".into()),
        InputKind::Choice(words) => Some(words.join(", ")),
        InputKind::List(_) => Some("List".into()),
        InputKind::Map(_) => Some("Named values".into()),
        InputKind::Union(_) | InputKind::Json => None,
    };
    derived.unwrap_or_else(|| match type_of(schema) {
        Some(kind) => format!("{} {}", label(kind), index + 1),
        None => format!("Variant {}", index + 1),
    })
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

/// Returns a value as the text of a hint: strings without quotes, lists of strings with commas.
fn as_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }
        Value::Array(items) if items.is_empty() => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        other => other.to_string(),
    }
}
