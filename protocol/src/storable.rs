//! Texts and JSON values as PostgreSQL can store them: its types text and jsonb hold every character except NUL.

use serde_json::Value;

/// Replaces NUL in a text by U+FFFD.
#[must_use]
pub fn clean_text(text: impl Into<String>) -> String {
    let text = text.into();
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

/// Replaces NUL in the texts and the names of a JSON value by U+FFFD.
#[must_use]
pub fn clean_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean_text(text)),
        Value::Array(items) => items.into_iter().map(clean_value).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (clean_text(name), clean_value(value))).collect()
        }
        other => other,
    }
}

/// Returns true if a JSON value has no NUL.
#[must_use]
pub fn is_storable(value: &Value) -> bool {
    nul_paths(value, 1).is_empty()
}

/// Returns the paths, such as `/lines/0/name`, of texts with NUL, and of objects that have NUL in a name. After `limit` of
/// them the search ends.
#[must_use]
pub fn nul_paths(value: &Value, limit: usize) -> Vec<String> {
    let mut paths = Vec::new();
    match value {
        _ if limit == 0 => {}
        Value::String(text) if text.contains('\0') => paths.push(String::new()),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let within = nul_paths(item, limit.saturating_sub(paths.len()));
                paths.extend(within.into_iter().map(|path| format!("/{index}{path}")));
            }
        }
        Value::Object(fields) => {
            for (name, item) in fields {
                paths.extend(name.contains('\0').then(String::new));
                let within = nul_paths(item, limit.saturating_sub(paths.len()));
                paths.extend(within.into_iter().map(|path| format!("/{name}{path}")));
            }
        }
        _ => {}
    }
    paths.truncate(limit);
    paths
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nul_is_found_and_replaced() {
        let value = json!({ "a": ["x", "y\0"], "b\0": { "c": "\0" }, "d": [1, null, "\\u0000"] });
        assert_eq!(nul_paths(&value, 9), ["/a/1", "", "/b\0/c"]);
        assert_eq!(nul_paths(&value, 2).len(), 2);
        assert!(!is_storable(&value) && is_storable(&value["d"]), "the escape as text is no NUL");
        let cleaned = json!({ "a": ["x", "y\u{fffd}"], "b\u{fffd}": { "c": "\u{fffd}" }, "d": [1, null, "\\u0000"] });
        assert_eq!(clean_value(value), cleaned);
    }
}
