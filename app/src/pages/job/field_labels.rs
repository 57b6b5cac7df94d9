//! The fields of a job's definition as people read them.

use serde_json::Value;

use crate::{
    components::input_form::capitalized,
    format::{clip, plural},
};

/// How many changed fields a row names.
const MAX_NAMED_FIELDS: usize = 4;
/// How much of a value is shown.
const VALUE_MAX_CHARS: usize = 4_000;

/// The first few fields in words.
pub(super) fn field_names(fields: &[String], more: bool) -> String {
    if fields.is_empty() {
        return "Nothing".to_owned();
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

/// A field's name as people read it: `rules.maxRetries` → `Rules: max retries`. What stands in the input is the user's
/// own word and stays as it is.
pub(super) fn field_label(field: &str) -> String {
    if let Some(own) = field.strip_prefix("jobData") {
        return if own.is_empty() { "Input".to_owned() } else { format!("Input: {}", &own[1..]) };
    }
    let known = match field {
        "displayName" => Some("Name"),
        "workerId" => Some("Worker"),
        "isActive" => Some("Active"),
        "timeoutSeconds" => Some("Timeout in seconds"),
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

/// A value as it is shown. Text stands as it is, everything else as JSON.
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
    fn fields_read_as_words_and_those_of_the_input_as_they_are() {
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
    fn many_fields_are_not_all_named() {
        let fields: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).into();
        assert_eq!(field_names(&fields, false), "A, B, C, D, and 2 others");
        assert_eq!(field_names(&fields[..2], false), "A, B");
        assert_eq!(field_names(&fields[..1], true), "A, and many others");
        assert_eq!(field_names(&[], false), "Nothing");
    }
}
