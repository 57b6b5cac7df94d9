//! The report of a tick as text for the log.

use serde::Serialize;
use serde_json::Value;

/// The most items of a list that are written; of a longer one, the number is.
const MAX_ITEMS: usize = 5;

/// Returns the fields of a report that say something, such as `started 2, resolved 1, has more`. Zero, false and what is
/// missing or empty is left out; the result is empty if nothing is left.
pub(super) fn report_text(report: &impl Serialize) -> String {
    let mut parts = Vec::new();
    // A report that cannot be written as JSON is not worth an error.
    collect("", &serde_json::to_value(report).unwrap_or_default(), &mut parts);
    parts.join(", ")
}

fn collect(name: &str, value: &Value, parts: &mut Vec<String>) {
    let field = |text: &str| if name.is_empty() { text.to_owned() } else { format!("{} {text}", words(name)) };
    match value {
        Value::Null | Value::Bool(false) => {}
        Value::Bool(true) => parts.push(words(name)),
        Value::Number(number) if number.as_f64() == Some(0.0) => {}
        Value::Number(number) => parts.push(field(&number.to_string())),
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => parts.push(field(text)),
        Value::Array(items) if items.is_empty() => {}
        Value::Array(items) if items.len() <= MAX_ITEMS && items.iter().all(Value::is_string) => {
            let texts: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            parts.push(field(&texts.join(" and ")));
        }
        Value::Array(items) => parts.push(field(&items.len().to_string())),
        Value::Object(fields) => {
            for (name, value) in fields {
                collect(name, value, parts);
            }
        }
    }
}

/// Returns the name of a field as words.
fn words(name: &str) -> String {
    name.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Serialize)]
    struct TestReport {
        counts: TestCounts,
        dropped: Vec<String>,
        failure: Option<String>,
        has_more: bool,
    }

    #[derive(Default, Serialize)]
    struct TestCounts {
        dead_letters: u64,
        step_ms: i64,
    }

    #[test]
    fn fields_that_say_something_are_written() {
        assert_eq!(report_text(&TestReport::default()), "");
        let report = TestReport {
            counts: TestCounts { dead_letters: 3, step_ms: -20 },
            dropped: vec!["runs_1".into(), "runs_2".into()],
            failure: Some("refused".into()),
            has_more: true,
        };
        let expected = "dead letters 3, step ms -20, dropped runs_1 and runs_2, failure refused, has more";
        assert_eq!(report_text(&report), expected);
        let many = TestReport { dropped: vec!["runs".into(); 9], ..TestReport::default() };
        assert_eq!(report_text(&many), "dropped 9");
        assert_eq!(report_text(&7_usize), "7");
    }
}
