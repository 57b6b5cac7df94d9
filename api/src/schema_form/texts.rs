//! From an input to the text of its fields, without loss.
//!
//! Each written value is built again. If the result differs, because a field cannot show the value (a null, a text where
//! a list is expected, a property that the schema does not have), the value becomes part of the object's other
//! properties, a JSON field beside the rest. So every input that is an object can be shown as fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{InputField, InputKind, InputObject, MAX_FORM_ROWS, build::InputBuilder, form_object, path};

/// Returns the text of each field for an existing input. A required box that is checked by default is checked if the input
/// does not mention it.
#[must_use]
pub fn to_field_texts(schema: &Value, data: &Value) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    if let Some(data) = data.as_object() {
        let object = form_object(schema);
        write_object(&object, data, "", &mut texts);
        for field in object.fields {
            if field.kind == InputKind::Boolean && field.default == "true" && !data.contains_key(&field.name) {
                texts.insert(path::child("", &field.name), "true".into());
            }
        }
    }
    texts
}

fn write_object(object: &InputObject, data: &Map<String, Value>, path: &str, texts: &mut BTreeMap<String, String>) {
    let mut others = Map::new();
    for (name, value) in data {
        let field = object.fields.iter().find(|field| field.name == *name);
        match field.and_then(|field| written(field, value, &path::child(path, name), BTreeMap::new())) {
            Some(part) => texts.extend(part),
            None => {
                others.insert(name.clone(), value.clone());
            }
        }
    }
    if !others.is_empty() {
        texts.insert(path::others(path), serde_json::to_string_pretty(&Value::Object(others)).unwrap_or_default());
    }
}

/// Returns the texts of a value with the `texts` of its row or union, or `None` if they would be read as another value.
fn written(
    field: &InputField,
    value: &Value,
    path: &str,
    mut texts: BTreeMap<String, String>,
) -> Option<BTreeMap<String, String>> {
    match (&field.kind, value) {
        (InputKind::Object(object), Value::Object(data)) => write_object(object, data, path, &mut texts),
        (InputKind::Union(variants), value) => return closest_variant(variants, value, path, &texts),
        (InputKind::List(rows), Value::Array(items)) if items.len() <= MAX_FORM_ROWS => {
            for (index, item) in items.iter().enumerate() {
                let row = path::row(path, index);
                let mark = BTreeMap::from([(path::mark(&row), "1".to_owned())]);
                texts.extend(written(&rows.item, item, &row, mark)?);
            }
        }
        (InputKind::Map(rows), Value::Object(data)) if data.len() <= MAX_FORM_ROWS => {
            for (index, (name, item)) in data.iter().enumerate() {
                let row = path::row(path, index);
                // A control with one line drops line breaks.
                if name.contains(['\r', '\n']) {
                    return None;
                }
                let marks = BTreeMap::from([(path::key(&row), name.clone()), (path::mark(&row), "1".to_owned())]);
                texts.extend(match item.as_str() {
                    Some("") => marks,
                    _ => written(&rows.item, item, &row, marks)?,
                });
            }
        }
        (InputKind::Const(_), _) => {}
        (InputKind::Json, value) => {
            texts.insert(path.to_owned(), serde_json::to_string_pretty(value).unwrap_or_default());
        }
        (kind, Value::String(text)) => {
            if !keeps_text(kind, text) {
                return None;
            }
            texts.insert(path.to_owned(), text.clone());
        }
        (_, Value::Bool(_) | Value::Number(_)) => {
            texts.insert(path.to_owned(), value.to_string());
        }
        _ => return None,
    }
    let mut builder = InputBuilder::lenient(&texts);
    let again = builder.value(field, path, "").ok().flatten();
    (again.as_ref() == Some(value) && !builder.has_errors()).then_some(texts)
}

/// Returns true if the control of a kind posts a text unchanged. HTML has no lone carriage return, a page drops the
/// first line break of an area, and a control with one line drops them all.
fn keeps_text(kind: &InputKind, text: &str) -> bool {
    let is_kept = match kind {
        InputKind::Text | InputKind::Multiline => !text.starts_with('\n'),
        InputKind::Choice(words) => words.iter().any(|word| word == text),
        InputKind::Boolean | InputKind::OptionalBoolean => false,
        _ => !text.contains('\n'),
    };
    is_kept && !text.contains('\r')
}

/// Returns the texts for the variant that shows most of the value in fields.
fn closest_variant(
    variants: &[InputField],
    value: &Value,
    path: &str,
    texts: &BTreeMap<String, String>,
) -> Option<BTreeMap<String, String>> {
    let all = variants.iter().filter_map(|variant| {
        let at = match variant.kind {
            InputKind::Object(_) => path.to_owned(),
            _ => path::scalar(path),
        };
        let mut chosen = texts.clone();
        chosen.insert(path::variant(path), variant.name.clone());
        let texts = written(variant, value, &at, chosen)?;
        let hidden: usize = texts.iter().filter(|(key, _)| key.ends_with("~x")).map(|(_, text)| text.len()).sum();
        Some((hidden, texts))
    });
    all.min_by_key(|(hidden, _)| *hidden).map(|(_, texts)| texts)
}
