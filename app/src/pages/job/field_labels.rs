//! Labels for the fields of a job's definition.

use serde_json::Value;

use crate::format::{capitalized, clip, plural};

/// The maximum number of changed fields that a row names.
const MAX_NAMED_FIELDS: usize = 4;
/// The maximum length of a displayed value, in characters.
const VALUE_MAX_CHARS: usize = 4_000;

/// Returns the labels of the first few fields.
pub(super) fn field_names(fields: &[String], more: bool) -> String {
    if fields.is_empty() {
        return "No changes".to_owned();
    }
    let mut words: Vec<String> = fields.iter().take(MAX_NAMED_FIELDS).map(|field| field_label(field)).collect();
    let rest = i64::try_from(fields.len().saturating_sub(MAX_NAMED_FIELDS)).unwrap_or(i64::MAX);
    if more {
        words.push("and many others".to_owned());
    } else if rest > 0 {
        words.push(format!("and {}", plural(rest, "other")));
    }
    words.join(", ")
}

/// Returns the label of a field: `rules.maxRetries` → `Rules: max retries`. Names inside the input are the user's own
/// and stay unchanged.
pub(super) fn field_label(field: &str) -> String {
    if let Some(own) = field.strip_prefix("jobData") {
        return if own.is_empty() { "Input".to_owned() } else { format!("Input: {}", &own[1..]) };
    }
    let known = match field {
        "displayName" => Some("Name"),
        "workerId" => Some("Worker"),
        "isActive" => Some("Active"),
        "timeoutSeconds" => Some("Timeout (seconds)"),
        _ => None,
    };
    if let Some(known) = known {
        return known.to_owned();
    }
    let mut words = String::with_capacity(field.len() + 8);
    for letter in field.chars() {
        match letter {
            '.' => words.push_str(": "),
            letter if letter.is_ascii_uppercase() => {
                words.push(' ');
                words.push(letter.to_ascii_lowercase());
            }
            letter => words.push(letter),
        }
    }
    capitalized(&words)
}

/// Formats a value for display: text unchanged, everything else as JSON.
pub(super) fn field_value(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    clip(&text, VALUE_MAX_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_become_labels_except_in_the_input() {
        for (field, words) in [
            ("displayName", "Name"),
            ("rules.maxRetries", "Rules: max retries"),
            ("schedule.expression", "Schedule: expression"),
            ("jobData", "Input"),
            ("jobData.someKey.inner", "Input: someKey.inner"),
            ("tags", "Tags"),
        ] {
            assert_eq!(field_label(field), words);
        }
    }

    #[test]
    fn long_field_lists_are_shortened() {
        let fields: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).into();
        assert_eq!(field_names(&fields, false), "A, B, C, D, and 2 others");
        assert_eq!(field_names(&fields[..2], false), "A, B");
        assert_eq!(field_names(&fields[..1], true), "A, and many others");
        assert_eq!(field_names(&[], false), "No changes");
    }
}
