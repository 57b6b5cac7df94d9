//! From the typed text to the input.
//!
//! All errors of one form are collected: a part with an error is left out and the rest is still built, so that the
//! server can validate it against the schema in the same check. For that the result has the path of each value.

use std::collections::BTreeMap;

use milvaion_protocol::exact_json::{check_number, parse_exact};
use serde_json::{Map, Value};

use super::{InputField, InputKind, InputObject, InputRows, form_object, path};
use crate::requests::FieldError;

/// The result of building an input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuiltInput {
    /// The input without its invalid parts.
    pub data: Value,
    /// The invalid fields, named `input.PATH`.
    pub errors: Vec<FieldError>,
    /// The JSON pointer of each value and the path of its field.
    controls: Vec<(String, String)>,
    /// The JSON pointer of each union and the index of its chosen option in the schema.
    variants: Vec<(String, usize)>,
}

impl BuiltInput {
    /// Builds the result for an input without fields.
    #[must_use]
    pub fn without_fields(data: Value, errors: Vec<FieldError>) -> Self {
        Self { data, errors, ..Self::default() }
    }

    /// Returns the field of the value at a JSON pointer, or of the nearest value around it: `input.PATH`, or `input` for
    /// the whole input.
    #[must_use]
    pub fn field_at(&self, pointer: &str) -> String {
        let mut at = pointer;
        loop {
            if let Some((_, path)) = self.controls.iter().rev().find(|(known, _)| known == at) {
                return format!("input.{path}");
            }
            match at.rfind('/') {
                Some(end) => at = &at[..end],
                None => return "input".into(),
            }
        }
    }

    /// Returns the index of the option that is chosen in the union at a JSON pointer.
    #[must_use]
    pub fn variant_at(&self, pointer: &str) -> Option<usize> {
        self.variants.iter().find(|(known, _)| known == pointer).map(|(_, index)| *index)
    }
}

/// Builds the input from the entered text. An empty optional field is left out, so that the worker's default applies.
///
/// # Errors
///
/// Returns the invalid fields, named `input.PATH`.
pub fn build_input(schema: &Value, typed: &BTreeMap<String, String>) -> Result<Value, Vec<FieldError>> {
    let built = build_partial(schema, typed);
    if built.errors.is_empty() { Ok(built.data) } else { Err(built.errors) }
}

/// Builds the valid parts of the input, and collects the errors of the others.
#[must_use]
pub fn build_partial(schema: &Value, typed: &BTreeMap<String, String>) -> BuiltInput {
    let mut builder = InputBuilder { typed, is_lenient: false, built: BuiltInput::default() };
    let data = builder.object(&form_object(schema), "", "");
    BuiltInput { data, ..builder.built }
}

/// Builds the input for the JSON editor: text that is invalid for its field becomes a JSON string instead of being
/// lost, and missing fields are left out.
///
/// # Errors
///
/// Returns the fields that have no place in the JSON, named `input.PATH`.
pub fn build_lenient(schema: &Value, typed: &BTreeMap<String, String>) -> Result<Value, Vec<FieldError>> {
    let mut builder = InputBuilder::lenient(typed);
    let data = builder.object(&form_object(schema), "", "");
    if builder.built.errors.is_empty() { Ok(data) } else { Err(builder.built.errors) }
}

/// A reported error: the field has no value.
pub(super) struct InvalidField;

/// The conversion of one form.
pub(super) struct InputBuilder<'a> {
    typed: &'a BTreeMap<String, String>,
    is_lenient: bool,
    built: BuiltInput,
}

impl<'a> InputBuilder<'a> {
    /// Creates a builder that keeps invalid text as JSON strings.
    pub(super) fn lenient(typed: &'a BTreeMap<String, String>) -> Self {
        Self { typed, is_lenient: true, built: BuiltInput::default() }
    }

    /// Returns true if an error was reported.
    pub(super) fn has_errors(&self) -> bool {
        !self.built.errors.is_empty()
    }

    fn text(&self, key: &str) -> &'a str {
        self.typed.get(key).map_or("", String::as_str)
    }

    fn report(&mut self, path: &str, message: impl Into<String>) -> InvalidField {
        self.built.errors.push(FieldError::new(format!("input.{path}"), message));
        InvalidField
    }

    /// Builds an object. Its fields win over the same properties in the JSON of the others.
    fn object(&mut self, object: &InputObject, path: &str, pointer: &str) -> Value {
        let others = self.others(path);
        let mut data = Map::new();
        for field in &object.fields {
            let at = path::child(path, &field.name);
            match self.value(field, &at, &child_pointer(pointer, &field.name)) {
                Ok(Some(value)) => {
                    data.insert(field.name.clone(), value);
                }
                Ok(None) => {
                    let value = match others.get(&field.name) {
                        None if field.required && !self.is_lenient => self.missing(field, &at, pointer),
                        other => other.cloned(),
                    };
                    data.extend(value.map(|value| (field.name.clone(), value)));
                }
                Err(InvalidField) => {}
            }
        }
        for (name, value) in others {
            data.entry(name).or_insert(value);
        }
        Value::Object(data)
    }

    /// Returns the value of a required field without a text: an empty group, if it may be empty. Otherwise reports it.
    fn missing(&mut self, field: &InputField, path: &str, parent: &str) -> Option<Value> {
        match &field.kind {
            InputKind::Object(object) => Some(self.object(object, path, &child_pointer(parent, &field.name))),
            InputKind::List(rows) if rows.min == 0 => Some(Value::Array(Vec::new())),
            InputKind::Map(rows) if rows.min == 0 => Some(Value::Object(Map::new())),
            _ => {
                self.report(path, format!("{} is required", field.label));
                None
            }
        }
    }

    /// Parses the properties that no field shows.
    fn others(&mut self, path: &str) -> Map<String, Value> {
        let key = path::others(path);
        let text = self.text(&key);
        if text.trim().is_empty() {
            return Map::new();
        }
        match parse_exact("the value", text) {
            Ok(Value::Object(map)) => map,
            Ok(_) => {
                self.report(&key, "other properties must be a JSON object, for example {\"key\": \"value\"}");
                Map::new()
            }
            Err(message) => {
                self.report(&key, message);
                Map::new()
            }
        }
    }

    /// Builds the value of a field; none if it is left empty.
    pub(super) fn value(
        &mut self,
        field: &InputField,
        path: &str,
        pointer: &str,
    ) -> Result<Option<Value>, InvalidField> {
        self.built.controls.push((pointer.to_owned(), path.to_owned()));
        match &field.kind {
            InputKind::Const(value) => Ok(field.required.then(|| value.clone())),
            InputKind::Object(object) if path::has_text(self.typed, path) => {
                Ok(Some(self.object(object, path, pointer)))
            }
            InputKind::Object(_) => Ok(None),
            InputKind::Union(variants) => self.union(variants, path, pointer),
            InputKind::List(rows) => {
                let items = self.list(rows, path, pointer);
                Ok((!items.is_empty() || self.is_chosen(path)).then_some(Value::Array(items)))
            }
            InputKind::Map(rows) => {
                let map = self.map(rows, path, pointer);
                Ok((!map.is_empty() || self.is_chosen(path)).then_some(Value::Object(map)))
            }
            _ => {
                let raw = self.text(path);
                match scalar(field, raw) {
                    Err(_) if self.is_lenient => Ok(Some(raw.into())),
                    Err(message) => Err(self.report(path, message)),
                    Ok(value) => Ok(value),
                }
            }
        }
    }

    fn union(&mut self, variants: &[InputField], path: &str, pointer: &str) -> Result<Option<Value>, InvalidField> {
        let name = self.text(&path::variant(path));
        if name.is_empty() {
            return Ok(None);
        }
        let Some(variant) = variants.iter().find(|variant| variant.name == name) else {
            return Err(self.report(path, "choose one of the listed variants"));
        };
        if let Ok(index) = variant.name.parse() {
            self.built.variants.push((pointer.to_owned(), index));
        }
        if let InputKind::Object(object) = &variant.kind {
            return Ok(Some(self.object(object, path, pointer)));
        }
        let at = path::scalar(path);
        match self.value(variant, &at, pointer)? {
            None if !self.is_lenient => Err(self.report(&at, format!("{} is required", variant.label))),
            value => Ok(value),
        }
    }

    /// Returns true if the value at `path` exists although it may be empty: an existing row, or the chosen variant of a
    /// union.
    fn is_chosen(&self, path: &str) -> bool {
        path.ends_with(&path::scalar(""))
            || [path::mark(path), path::key(path)].iter().any(|key| !self.text(key).trim().is_empty())
    }

    fn list(&mut self, rows: &InputRows, path: &str, pointer: &str) -> Vec<Value> {
        let mut items = Vec::new();
        for index in path::rows(self.typed, path) {
            // An invalid row has no value, so the number of values before an item is its index in the input.
            let value = self.value(&rows.item, &path::row(path, index), &format!("{pointer}/{}", items.len()));
            items.extend(value.unwrap_or_default());
        }
        items
    }

    fn map(&mut self, rows: &InputRows, path: &str, pointer: &str) -> Map<String, Value> {
        let mut map = Map::new();
        for index in path::rows(self.typed, path) {
            let row = path::row(path, index);
            let name = self.text(&path::key(&row)).trim();
            if name.is_empty() {
                if self.has_row_text(&row) {
                    self.report(&path::key(&row), "enter a name, or remove this row");
                }
                continue;
            }
            if map.contains_key(name) {
                self.report(&path::key(&row), format!("another row already has the name {}", clip(name)));
                continue;
            }
            match self.value(&rows.item, &row, &child_pointer(pointer, name)) {
                Ok(Some(value)) => {
                    map.insert(name.to_owned(), value);
                }
                // A named row with an empty text is a value, such as an empty header.
                Ok(None) if matches!(rows.item.kind, InputKind::Text | InputKind::Multiline) => {
                    map.insert(name.to_owned(), "".into());
                }
                Ok(None) => {
                    self.report(&row, format!("enter a value for {}", clip(name)));
                }
                Err(InvalidField) => {}
            }
        }
        map
    }

    /// Returns true if a row has a text besides its mark.
    fn has_row_text(&self, row: &str) -> bool {
        let mut texts = self.typed.clone();
        texts.remove(&path::mark(row));
        path::has_text(&texts, row)
    }
}

/// Returns the JSON pointer of a property.
pub(super) fn child_pointer(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn scalar(field: &InputField, raw: &str) -> Result<Option<Value>, String> {
    let trimmed = raw.trim();
    match &field.kind {
        InputKind::Boolean | InputKind::OptionalBoolean => Ok(match trimmed {
            "" if field.kind == InputKind::OptionalBoolean => None,
            "" => Some(false.into()),
            "on" | "true" => Some(true.into()),
            "false" => Some(false.into()),
            _ => return Err("choose yes or no".into()),
        }),
        _ if trimmed.is_empty() => Ok(None),
        InputKind::Text if !raw.contains('\n') => Ok(Some(trimmed.into())),
        // A plain form post sends each line break as two characters.
        InputKind::Text | InputKind::Multiline => Ok(Some(raw.replace("\r\n", "\n").into())),
        InputKind::Integer => match whole(trimmed) {
            Some(n) => Ok(Some(n)),
            None => {
                let digits = trimmed.trim_start_matches(['-', '+']);
                let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                Err(if is_whole {
                    format!("{} is too large: use fewer digits, or write it as text", clip(trimmed))
                } else {
                    format!("enter a whole number: got {}", clip(trimmed))
                })
            }
        },
        InputKind::Number => match (whole(trimmed), trimmed.parse::<f64>()) {
            (Some(n), _) => Ok(Some(n)),
            (None, Ok(n)) if n.is_finite() => {
                let n = Value::from(n);
                check_number(trimmed, &n)?;
                Ok(Some(n))
            }
            _ => Err(format!("enter a number: got {}", clip(trimmed))),
        },
        InputKind::Choice(choices) => {
            if choices.iter().any(|choice| choice == trimmed) {
                Ok(Some(trimmed.into()))
            } else {
                Err(format!("choose one of {}", choices.join(", ")))
            }
        }
        _ => parse_exact("the value", trimmed).map(Some),
    }
}

fn whole(text: &str) -> Option<Value> {
    text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from)).ok()
}

fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}
