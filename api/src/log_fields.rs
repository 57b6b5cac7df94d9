//! The fields of a log line as text, for people who read a log on a page or in a terminal.

use serde_json::Value;

/// The fields that name the span of a line. They are not shown, because the occurrence has its trace id.
const SPAN_FIELDS: [&str; 2] = ["trace_id", "span_id"];

/// Returns the data of a log line as text that follows its message: ` key=value` for each field, except those of the span.
/// Data without fields is written as JSON.
#[must_use]
pub fn log_fields_text(data: &Value) -> String {
    let Value::Object(fields) = data else { return format!(" {data}") };
    let shown = fields.iter().filter(|(name, _)| !SPAN_FIELDS.contains(&name.as_str()));
    shown.map(|(name, value)| format!(" {name}={}", value_text(value))).collect()
}

/// Returns a value as text: a word without quotation marks, and everything else as JSON.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) if is_word(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Returns true if a text can be recognized as one value without quotation marks.
fn is_word(text: &str) -> bool {
    let is_special = |letter: char| letter.is_whitespace() || letter.is_control() || matches!(letter, '=' | '"' | '\\');
    !text.is_empty() && !text.contains(is_special)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_shown_without_those_of_the_span() {
        let span = json!({ "trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331" });
        assert_eq!(log_fields_text(&span), "");
        let one = json!({ "trace_id": "0af7651916cd43dd8448eb211c80319c", "rows": 12 });
        assert_eq!(log_fields_text(&one), " rows=12");
        assert_eq!(log_fields_text(&json!({})), "");
    }

    #[test]
    fn values_that_are_no_words_are_written_as_json() {
        for (value, expected) in [
            (json!("/a/b.csv"), "/a/b.csv"),
            (json!("no space left"), r#""no space left""#),
            (json!("a=b"), r#""a=b""#),
            (json!(""), r#""""#),
            (json!("a\nb"), r#""a\nb""#),
            (json!(null), "null"),
            (json!([1, 2]), "[1,2]"),
            (json!({ "a": true }), r#"{"a":true}"#),
        ] {
            assert_eq!(log_fields_text(&json!({ "field": value })), format!(" field={expected}"));
        }
        assert_eq!(log_fields_text(&json!(["a", 1])), r#" ["a",1]"#);
    }
}
