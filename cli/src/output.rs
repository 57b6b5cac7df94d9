//! Results as documents for programs.

use serde::Serialize;
use serde_json::Value;

use super::{CliError, OutputFormat};

/// Returns a value as a document with a line break at its end; none for tables.
pub(super) fn to_document<T: Serialize>(format: OutputFormat, value: &T) -> Result<Option<String>, CliError> {
    let failed = |format, reason: String| CliError::Format { format, reason };
    match format {
        OutputFormat::Table => Ok(None),
        OutputFormat::Json => {
            let text = serde_json::to_string_pretty(value).map_err(|error| failed("JSON", error.to_string()))?;
            Ok(Some(text + "\n"))
        }
        OutputFormat::Yaml => {
            // Through JSON, so that both documents have the same fields and words.
            let value: Value = serde_json::to_value(value).map_err(|error| failed("YAML", error.to_string()))?;
            let text = serde_saphyr::to_string(&value).map_err(|error| failed("YAML", error.to_string()))?;
            Ok(Some(text.trim_end().to_owned() + "\n"))
        }
    }
}

/// Returns a value as one of several documents: a line of JSON, or a YAML document with its separator.
pub(super) fn to_stream_document<T: Serialize>(format: OutputFormat, value: &T) -> Result<Option<String>, CliError> {
    match format {
        OutputFormat::Json => {
            let text = serde_json::to_string(value)
                .map_err(|error| CliError::Format { format: "JSON", reason: error.to_string() })?;
            Ok(Some(text + "\n"))
        }
        OutputFormat::Yaml => Ok(to_document(format, value)?.map(|text| format!("---\n{text}"))),
        OutputFormat::Table => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_keeps_texts_that_look_like_other_values() {
        let value = json!({ "b": "yes", "a": ["7", 7, null, "2026-01-01", "x: y", "two\nlines"] });
        let text = to_document(OutputFormat::Yaml, &value).expect("YAML").expect("a document");
        assert!(text.starts_with("b: \"yes\"\n") || text.starts_with("b: 'yes'\n"), "{text}");
        assert!(text.contains("- \"7\"\n") || text.contains("- '7'\n"), "{text}");
        assert!(text.contains("- 7\n") && text.contains("null"), "{text}");
    }

    #[test]
    fn a_stream_of_json_has_one_document_per_line() {
        let text = to_stream_document(OutputFormat::Json, &json!({ "a": "x\ny" })).expect("JSON").expect("a document");
        assert_eq!(text, "{\"a\":\"x\\ny\"}\n");
    }
}
