//! Conditions on the body of a response.
//!
//! Patterns and paths come from the users who define jobs, and the body comes from another server. Both are therefore
//! bounded: a regular expression takes time linear in the body and little memory, and a path that could visit the same
//! value repeatedly is refused.

use jsonpath_rust::{parser::parse_json_path, query::js_path_process};
use regex::RegexBuilder;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{context::BuiltinError, redact::Redactor};

/// Maximum size of a value of the body that a mismatch quotes.
const MAX_SHOWN_VALUE_BYTES: usize = 200;
/// Maximum size of a pattern or path.
const MAX_PATTERN_BYTES: usize = 1_000;
/// Maximum memory of a compiled pattern, in bytes.
const MAX_COMPILED_PATTERN_BYTES: usize = 1024 * 1024;
/// Maximum number of commas in a path. Each comma can double the work of a step.
const MAX_PATH_COMMAS: usize = 3;

/// A condition on the body of a response.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum BodyCheck {
    /// The body contains a text.
    Contains {
        /// Text to find, not empty.
        text: String,
    },
    /// The body matches a regular expression.
    Matches {
        /// Regular expression, up to 1,000 bytes.
        pattern: String,
    },
    /// The body is JSON with a value at a path.
    JsonPath {
        /// JSONPath (RFC 9535) such as `$.items[0].state`, up to 1,000 bytes.
        path: String,
        /// Expected value; any value by default.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        equals: Option<Value>,
    },
}

/// Deserializes a field that is present. Its null is a value to compare with, and not a missing field.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl BodyCheck {
    /// Checks that the condition can be evaluated.
    ///
    /// # Errors
    /// Returns a permanent error with the reason if it cannot.
    pub(super) fn validate(&self) -> Result<(), BuiltinError> {
        match self {
            Self::Contains { text } if text.is_empty() => Err(BuiltinError::permanent(
                "a `contains` in `expectBody` has an empty text, which every body contains",
            )),
            Self::Contains { .. } => Ok(()),
            Self::Matches { pattern } => compile(pattern).map(drop),
            Self::JsonPath { path, .. } => {
                check_path_bounds(path)?;
                parse_json_path(path).map(drop).map_err(|error| invalid_path(path, &error.to_string()))
            }
        }
    }

    /// Returns the reason if `body` does not meet the condition. A value of the body is redacted before it is shortened, so
    /// that no half of a secret is left.
    ///
    /// # Errors
    /// Returns the same errors as [`validate`](Self::validate).
    pub(super) fn mismatch(
        &self,
        body: &str,
        json: &Result<Value, String>,
        redactor: &Redactor,
    ) -> Result<Option<String>, BuiltinError> {
        Ok(match self {
            Self::Contains { text } => {
                (!body.contains(text.as_str())).then(|| format!("the body does not contain {text:?}"))
            }
            Self::Matches { pattern } => {
                (!compile(pattern)?.is_match(body)).then(|| format!("nothing in the body matches {pattern:?}"))
            }
            Self::JsonPath { path, equals } => {
                let json = match json {
                    Ok(json) => json,
                    Err(error) => {
                        return Ok(Some(format!("the body is not JSON ({error}), so it has no value at {path}")));
                    }
                };
                let query = parse_json_path(path).map_err(|error| invalid_path(path, &error.to_string()))?;
                let found = js_path_process(&query, json).map_err(|error| invalid_path(path, &error.to_string()))?;
                let mut found = found.into_iter().map(|node| node.val);
                match (equals, found.next()) {
                    (_, None) => Some(format!("the body has no value at {path}")),
                    (None, Some(_)) => None,
                    (Some(wanted), Some(first)) => {
                        let is_found = is_same(first, wanted) || found.any(|value| is_same(value, wanted));
                        (!is_found)
                            .then(|| format!("the body has {} at {path} instead of {wanted}", shorten(first, redactor)))
                    }
                }
            }
        })
    }
}

fn compile(pattern: &str) -> Result<regex::Regex, BuiltinError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(BuiltinError::permanent(format!(
            "a pattern in `expectBody` has more than {MAX_PATTERN_BYTES} bytes"
        )));
    }
    RegexBuilder::new(pattern)
        .size_limit(MAX_COMPILED_PATTERN_BYTES)
        .dfa_size_limit(MAX_COMPILED_PATTERN_BYTES)
        .build()
        .map_err(|error| {
            BuiltinError::permanent(format!("the pattern {pattern:?} in `expectBody` cannot be compiled: {error}"))
        })
}

fn invalid_path(path: &str, error: &str) -> BuiltinError {
    BuiltinError::permanent(format!("the path {path:?} in `expectBody` is invalid: {}", error.trim()))
}

/// Refuses paths whose work can grow faster than the body: more than one `..`, a second `$`, long lists of selectors,
/// and functions that compile a pattern for every value.
///
/// # Errors
/// Returns a permanent error with the bound that `path` exceeds.
fn check_path_bounds(path: &str) -> Result<(), BuiltinError> {
    let refuse = |why: String| Err(BuiltinError::permanent(format!("the path {path:?} in `expectBody` {why}")));
    if path.len() > MAX_PATTERN_BYTES {
        return Err(BuiltinError::permanent(format!("a path in `expectBody` has more than {MAX_PATTERN_BYTES} bytes")));
    }
    let mut bare = String::with_capacity(path.len());
    let mut quote = None;
    let mut letters = path.chars();
    while let Some(c) = letters.next() {
        match (quote, c) {
            (Some(_), '\\') => drop(letters.next()),
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if c.is_whitespace() => {}
            (None, c) => bare.push(c),
        }
    }
    if bare.matches("..").count() > 1 {
        return refuse("has more than one `..`; use it once".to_owned());
    }
    if bare.matches('$').count() > 1 {
        return refuse("has a `$` inside a filter; use it once, at the start".to_owned());
    }
    if bare.matches(',').count() > MAX_PATH_COMMAS {
        return refuse(format!("has more than {MAX_PATH_COMMAS} commas"));
    }
    if bare.contains("match(") || bare.contains("search(") {
        return refuse("uses match() or search(); add an entry `matches` instead".to_owned());
    }
    Ok(())
}

/// Returns true if the values are equal. Numbers are compared by value: 1 equals 1.0.
fn is_same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

fn shorten(value: &Value, redactor: &Redactor) -> String {
    let text = value.to_string();
    let start = redactor.redact_start(&text, MAX_SHOWN_VALUE_BYTES);
    if text.len() > MAX_SHOWN_VALUE_BYTES { format!("{start}…") } else { start.into_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(check: Value) -> BodyCheck {
        serde_json::from_value(check).expect("a check")
    }

    fn mismatch(check: Value, body: &str) -> Option<String> {
        let check = read(check);
        check.validate().expect("usable");
        let json = serde_json::from_str(body).map_err(|error: serde_json::Error| error.to_string());
        let redactor = Redactor::default();
        redactor.add_secret("c4n4ry-in-the-body", "{{secret:bird}}");
        check.mismatch(body, &json, &redactor).expect("usable")
    }

    #[test]
    fn shortened_value_contains_no_half_of_a_secret() {
        for before in MAX_SHOWN_VALUE_BYTES - 20..MAX_SHOWN_VALUE_BYTES {
            let body = json!({"v": format!("{}c4n4ry-in-the-body", "x".repeat(before))}).to_string();
            let text = mismatch(json!({"type": "jsonPath", "path": "$.v", "equals": 1}), &body).expect("a mismatch");
            assert!(!text.contains("c4"), "{text}");
        }
    }

    #[test]
    fn mismatch_describes_the_difference() {
        let body = r#"{"state": "ready", "n": 1.0, "items": [{"id": 1, "ok": true}, {"id": 2, "ok": false}]}"#;
        for (check, message) in [
            (json!({"type": "contains", "text": "ready"}), None),
            (json!({"type": "contains", "text": "steady"}), Some("not contain \"steady\"")),
            (json!({"type": "matches", "pattern": "\"id\": [0-9]"}), None),
            (json!({"type": "matches", "pattern": "^ready"}), Some("nothing in the body matches")),
            (json!({"type": "jsonPath", "path": "$.state"}), None),
            (json!({"type": "jsonPath", "path": "$.state", "equals": "ready"}), None),
            (json!({"type": "jsonPath", "path": "$.n", "equals": 1}), None),
            (json!({"type": "jsonPath", "path": "$.items[?@.ok==false].id", "equals": 2}), None),
            (json!({"type": "jsonPath", "path": "$..id", "equals": 2}), None),
            (json!({"type": "jsonPath", "path": "$..id", "equals": 3}), Some("has 1 at $..id instead of 3")),
            (
                json!({"type": "jsonPath", "path": "$.state", "equals": null}),
                Some("\"ready\" at $.state instead of null"),
            ),
            (json!({"type": "jsonPath", "path": "$.missing"}), Some("no value at $.missing")),
        ] {
            let mismatch = mismatch(check.clone(), body);
            assert_eq!(mismatch.is_some(), message.is_some(), "{check}: {mismatch:?}");
            assert!(mismatch.unwrap_or_default().contains(message.unwrap_or_default()), "{check}");
        }
        assert!(
            mismatch(json!({"type": "jsonPath", "path": "$.a"}), "<html>")
                .is_some_and(|text| text.contains("not JSON"))
        );
    }

    #[test]
    fn invalid_check_is_refused() {
        for (check, message) in [
            (json!({"type": "contains", "text": ""}), "empty text"),
            (json!({"type": "matches", "pattern": "("}), "cannot be compiled"),
            (json!({"type": "matches", "pattern": "x".repeat(MAX_PATTERN_BYTES + 1)}), "more than 1000 bytes"),
            (json!({"type": "matches", "pattern": "(\\w{100}){100}"}), "cannot be compiled"),
            (json!({"type": "jsonPath", "path": "state"}), "is invalid"),
            (json!({"type": "jsonPath", "path": "$..[*]..[*]"}), "more than one `..`"),
            (json!({"type": "jsonPath", "path": "$[?@.a == $.b[*].c]"}), "inside a filter"),
            (json!({"type": "jsonPath", "path": "$[*,*][*,*][*,*][*,*]"}), "more than 3 commas"),
            (json!({"type": "jsonPath", "path": "$[?search(@.a, 'x')]"}), "add an entry `matches`"),
        ] {
            let failure = read(check.clone()).validate().expect_err("must be refused");
            assert!(failure.is_permanent() && failure.to_string().contains(message), "{check}: {failure}");
        }
        // In quotes they are text.
        read(json!({"type": "jsonPath", "path": "$['a..b..$,,,,']"})).validate().expect("usable");
    }
}
