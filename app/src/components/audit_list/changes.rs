//! The change of an audit row: the fields that differ between the state before and the state after.
//!
//! A state may be any JSON. Objects are compared field by field down to [`MAX_DEPTH`]; below that, and in arrays,
//! whole values are compared and shown as compact JSON. The numbers of fields and of characters are bounded.

use std::collections::BTreeSet;

use leptos::prelude::*;
use milvaion_protocol::id::OccurrenceId;
use serde_json::{Map, Value};

use crate::format::{clip, plural};

/// The depth down to which objects are compared field by field.
const MAX_DEPTH: usize = 4;
/// The maximum number of fields that a row lists.
const MAX_FIELDS: usize = 100;
/// The maximum length of the path of a field, in characters.
const FIELD_MAX_CHARS: usize = 200;
/// The length above which a value is cut until the user opens it, in characters.
const SHORT_VALUE_CHARS: usize = 160;
/// The maximum length of an open value, in characters.
const VALUE_MAX_CHARS: usize = 4_000;

/// A field with its values, of which at least one is present.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChangedField {
    /// The path, as in `rules.maxRetries`.
    path: String,
    before: Option<String>,
    after: Option<String>,
}

/// The fields that differ.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    fields: Vec<ChangedField>,
    /// True if there are more than [`MAX_FIELDS`].
    more: bool,
}

impl Changes {
    fn between(before: Option<&Value>, after: Option<&Value>) -> Self {
        let mut changes = Self::default();
        changes.add("", before, after, 0);
        changes
    }

    /// Adds the differences of two values at `path`. A null value counts as absent.
    fn add(&mut self, path: &str, before: Option<&Value>, after: Option<&Value>, depth: usize) {
        let before = before.filter(|value| !value.is_null());
        let after = after.filter(|value| !value.is_null());
        if before == after || self.more {
            return;
        }
        let is_object = |value: Option<&Value>| value.is_none_or(Value::is_object);
        if depth < MAX_DEPTH && is_object(before) && is_object(after) {
            let objects = [before, after].into_iter().flatten().filter_map(Value::as_object);
            let names: BTreeSet<&String> = objects.flat_map(Map::keys).collect();
            for name in names {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let before = before.and_then(|value| value.get(name));
                self.add(&inner, before, after.and_then(|value| value.get(name)), depth + 1);
            }
        } else if self.fields.len() == MAX_FIELDS {
            self.more = true;
        } else {
            let path = if path.is_empty() { "value" } else { path };
            let path = clip(path, FIELD_MAX_CHARS);
            self.fields.push(ChangedField { path, before: before.map(value_text), after: after.map(value_text) });
        }
    }
}

/// Returns a value for display: text unchanged, everything else as compact JSON.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => clip(text, VALUE_MAX_CHARS),
        other => clip(&other.to_string(), VALUE_MAX_CHARS),
    }
}

/// Shows the change in a collapsed section; `None` if no field differs.
pub(super) fn changes_view(before: Option<&Value>, after: Option<&Value>) -> Option<AnyView> {
    let Changes { fields, more } = Changes::between(before, after);
    if fields.is_empty() {
        return None;
    }
    let count = i64::try_from(fields.len()).unwrap_or(i64::MAX);
    let noun = match (before.is_some(), after.is_some()) {
        (false, _) => "new value",
        (_, false) => "removed value",
        _ => "changed field",
    };
    let summary = if more { format!("More than {}", plural(count, noun)) } else { plural(count, noun) };
    let rows: Vec<_> = fields.into_iter().map(field_view).collect();
    let more = more.then(|| view! { <p class="muted">"Only the first 100 fields are shown."</p> });
    Some(
        view! {
            <details class="audit-changes">
                <summary>{summary}</summary>
                <dl>{rows}</dl>
                {more}
            </details>
        }
        .into_any(),
    )
}

fn field_view(field: ChangedField) -> impl IntoView {
    let ChangedField { path, before, after } = field;
    let value = |label: &'static str, value: Option<String>| {
        value.map(|text| {
            let value = value_view(&path, text);
            view! { <dd data-side=label><span class="muted">{label} " "</span>{value}</dd> }
        })
    };
    let before = value("before", before);
    let after = value("after", after);
    view! { <div data-field=path.clone()><dt class="mono">{path.clone()}</dt>{before}{after}</div> }
}

fn value_view(path: &str, text: String) -> AnyView {
    if path == "occurrence"
        && let Ok(id) = text.parse::<OccurrenceId>()
    {
        return view! { <a class="mono" href=format!("/occurrences/{id}")>{id.to_string()}</a> }.into_any();
    }
    let short = clip(&text, SHORT_VALUE_CHARS);
    if short == text {
        return view! { <span class="value">{text}</span> }.into_any();
    }
    view! {
        <details>
            <summary><span class="value">{short}</span></summary>
            <span class="value">{text}</span>
        </details>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changes(before: &Value, after: &Value) -> Vec<(String, Option<String>, Option<String>)> {
        let fields = Changes::between(Some(before), Some(after)).fields;
        fields.into_iter().map(|field| (field.path, field.before, field.after)).collect()
    }

    fn text(value: &str) -> Option<String> {
        Some(value.to_owned())
    }

    #[test]
    fn only_changed_fields_are_listed() {
        let before =
            json!({ "name": "a", "rules": { "maxRetries": 1, "overlap": "skip" }, "tags": ["x"], "old": true });
        let after =
            json!({ "name": "a", "rules": { "maxRetries": 2, "overlap": "skip" }, "tags": ["x", "y"], "old": null });
        assert_eq!(
            changes(&before, &after),
            [
                ("old".into(), text("true"), None),
                ("rules.maxRetries".into(), text("1"), text("2")),
                ("tags".into(), text(r#"["x"]"#), text(r#"["x","y"]"#)),
            ]
        );
        assert!(changes(&before, &before).is_empty());
    }

    #[test]
    fn one_missing_side_lists_the_other() {
        let only = json!({ "role": "viewer", "none": null });
        let added = Changes::between(None, Some(&only)).fields;
        assert_eq!(added, [ChangedField { path: "role".into(), before: None, after: text("viewer") }]);
        let removed = Changes::between(Some(&only), None).fields;
        assert_eq!(removed, [ChangedField { path: "role".into(), before: text("viewer"), after: None }]);
        assert_eq!(Changes::between(None, None), Changes::default());
    }

    #[test]
    fn values_of_other_kinds_are_compared_whole() {
        assert_eq!(changes(&json!("a"), &json!(7)), [("value".into(), text("a"), text("7"))]);
        assert_eq!(
            changes(&json!({ "at": { "x": 1 } }), &json!({ "at": 5 })),
            [("at".into(), text(r#"{"x":1}"#), text("5"))]
        );
    }

    #[test]
    fn depth_number_and_length_are_bounded() {
        let deep = json!({ "a": { "b": { "c": { "d": { "e": 1 } } } } });
        assert_eq!(changes(&json!({}), &deep), [("a.b.c.d".into(), None, text(r#"{"e":1}"#))]);
        let many: Map<String, Value> = (0..500).map(|n| (format!("f{n}"), json!(n))).collect();
        let found = Changes::between(None, Some(&Value::Object(many)));
        assert_eq!((found.fields.len(), found.more), (MAX_FIELDS, true));
        let long = json!({ "x": "y".repeat(90_000) });
        let found = Changes::between(None, Some(&long));
        let length = found.fields[0].after.as_ref().map(|text| text.chars().count());
        assert_eq!(length, Some(VALUE_MAX_CHARS + 1), "with the mark of the cut");
    }
}
