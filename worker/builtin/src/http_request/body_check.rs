//! What an answer's body must be like.
//!
//! Patterns and paths come from whoever defines a job, and the body from somewhere else, so both are bounded before they
//! meet: regular expressions take time linear in the body and little memory, and a path that could visit the same value
//! again and again is refused.

use jsonpath_rust::{parser::parse_json_path, query::js_path_process};
use regex::RegexBuilder;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::context::BuiltinError;

/// The longest pattern or path.
const MAX_PATTERN_BYTES: usize = 1_000;
/// The most memory of a compiled pattern, in bytes.
const MAX_COMPILED_PATTERN_BYTES: usize = 1024 * 1024;
/// The most commas in a path: each can double the work of a step.
const MAX_PATH_COMMAS: usize = 3;

/// Something a body must be like.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum BodyCheck {
    /// It has a text in it.
    Contains {
        /// The text.
        text: String,
    },
    /// A regular expression is found in it.
    Matches {
        /// The expression.
        pattern: String,
    },
    /// It is JSON that has something at a path.
    JsonPath {
        /// A JSONPath (RFC 9535), such as `$.items[0].state`.
        path: String,
        /// What must be there. Nothing given: anything.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        equals: Option<Value>,
    },
}

/// A null that is written down is a value to compare with, and not nothing.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl BodyCheck {
    /// Whether it can be checked at all.
    ///
    /// # Errors
    /// A permanent failure that says what is wrong with it.
    pub(super) fn validate(&self) -> Result<(), BuiltinError> {
        match self {
            Self::Contains { text } if text.is_empty() => Err(BuiltinError::permanent(
                "a `contains` in `expectBody` has an empty text, which every body has in it",
            )),
            Self::Contains { .. } => Ok(()),
            Self::Matches { pattern } => compile(pattern).map(drop),
            Self::JsonPath { path, .. } => {
                bounded(path)?;
                parse_json_path(path).map(drop).map_err(|error| unreadable(path, &error.to_string()))
            }
        }
    }

    /// Why `body` is not like this; none if it is.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub(super) fn mismatch(&self, body: &str, json: &Result<Value, String>) -> Result<Option<String>, BuiltinError> {
        Ok(match self {
            Self::Contains { text } => {
                (!body.contains(text.as_str())).then(|| format!("the body has no {text:?} in it"))
            }
            Self::Matches { pattern } => {
                (!compile(pattern)?.is_match(body)).then(|| format!("nothing in the body matches {pattern:?}"))
            }
            Self::JsonPath { path, equals } => {
                let json = match json {
                    Ok(json) => json,
                    Err(error) => return Ok(Some(format!("the body is not JSON ({error}), so it has no {path}"))),
                };
                let query = parse_json_path(path).map_err(|error| unreadable(path, &error.to_string()))?;
                let found = js_path_process(&query, json).map_err(|error| unreadable(path, &error.to_string()))?;
                let mut found = found.into_iter().map(|place| place.val);
                match (equals, found.next()) {
                    (_, None) => Some(format!("the body has nothing at {path}")),
                    (None, Some(_)) => None,
                    (Some(wanted), Some(first)) => {
                        let is_there = is_same(first, wanted) || found.any(|value| is_same(value, wanted));
                        (!is_there).then(|| format!("at {path} the body has {} and not {wanted}", short(first)))
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
            BuiltinError::permanent(format!("the pattern {pattern:?} in `expectBody` cannot be used: {error}"))
        })
}

fn unreadable(path: &str, error: &str) -> BuiltinError {
    BuiltinError::permanent(format!("the path {path:?} in `expectBody` cannot be read: {}", error.trim()))
}

/// Refuses paths whose work can grow faster than the body: more than one `..`, a second `$`, long lists of selectors, and
/// functions that compile a pattern for every value.
fn bounded(path: &str) -> Result<(), BuiltinError> {
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
        return refuse("looks everywhere below more than once; use `..` once".to_owned());
    }
    if bare.matches('$').count() > 1 {
        return refuse("begins anew inside a filter; use `$` once, at its beginning".to_owned());
    }
    if bare.matches(',').count() > MAX_PATH_COMMAS {
        return refuse(format!("has more than {MAX_PATH_COMMAS} commas"));
    }
    if bare.contains("match(") || bare.contains("search(") {
        return refuse("uses match() or search(); add an entry `matches` instead".to_owned());
    }
    Ok(())
}

/// Numbers are the same when they mean the same: 1 and 1.0.
fn is_same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    let end = text.floor_char_boundary(200);
    if end < text.len() { format!("{}…", &text[..end]) } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(check: Value) -> BodyCheck {
        serde_json::from_value(check).expect("a check")
    }

    fn objection(check: Value, body: &str) -> Option<String> {
        let check = read(check);
        check.validate().expect("usable");
        let json = serde_json::from_str(body).map_err(|error: serde_json::Error| error.to_string());
        check.mismatch(body, &json).expect("usable")
    }

    #[test]
    fn a_body_is_like_it_or_the_difference_is_told() {
        let body = r#"{"state": "ready", "n": 1.0, "items": [{"id": 1, "ok": true}, {"id": 2, "ok": false}]}"#;
        for (check, told) in [
            (json!({"type": "contains", "text": "ready"}), None),
            (json!({"type": "contains", "text": "steady"}), Some("no \"steady\"")),
            (json!({"type": "matches", "pattern": "\"id\": [0-9]"}), None),
            (json!({"type": "matches", "pattern": "^ready"}), Some("nothing in the body matches")),
            (json!({"type": "jsonPath", "path": "$.state"}), None),
            (json!({"type": "jsonPath", "path": "$.state", "equals": "ready"}), None),
            (json!({"type": "jsonPath", "path": "$.n", "equals": 1}), None),
            (json!({"type": "jsonPath", "path": "$.items[?@.ok==false].id", "equals": 2}), None),
            (json!({"type": "jsonPath", "path": "$..id", "equals": 2}), None),
            (json!({"type": "jsonPath", "path": "$..id", "equals": 3}), Some("has 1 and not 3")),
            (json!({"type": "jsonPath", "path": "$.state", "equals": null}), Some("has \"ready\" and not null")),
            (json!({"type": "jsonPath", "path": "$.nobody"}), Some("nothing at $.nobody")),
        ] {
            let objection = objection(check.clone(), body);
            assert_eq!(objection.is_some(), told.is_some(), "{check}: {objection:?}");
            assert!(objection.unwrap_or_default().contains(told.unwrap_or_default()), "{check}");
        }
        assert!(
            objection(json!({"type": "jsonPath", "path": "$.a"}), "<html>")
                .is_some_and(|text| text.contains("not JSON"))
        );
    }

    #[test]
    fn what_cannot_be_checked_is_refused_before_anything_is_called() {
        for (check, told) in [
            (json!({"type": "contains", "text": ""}), "empty text"),
            (json!({"type": "matches", "pattern": "("}), "cannot be used"),
            (json!({"type": "matches", "pattern": "x".repeat(MAX_PATTERN_BYTES + 1)}), "more than 1000 bytes"),
            (json!({"type": "matches", "pattern": "(\\w{100}){100}"}), "cannot be used"),
            (json!({"type": "jsonPath", "path": "state"}), "cannot be read"),
            (json!({"type": "jsonPath", "path": "$..[*]..[*]"}), "more than once"),
            (json!({"type": "jsonPath", "path": "$[?@.a == $.b[*].c]"}), "begins anew"),
            (json!({"type": "jsonPath", "path": "$[*,*][*,*][*,*][*,*]"}), "more than 3 commas"),
            (json!({"type": "jsonPath", "path": "$[?search(@.a, 'x')]"}), "add an entry `matches`"),
        ] {
            let failure = read(check.clone()).validate().expect_err("must be refused");
            assert!(failure.is_permanent() && failure.to_string().contains(told), "{check}: {failure}");
        }
        // Within quotes they are only text.
        read(json!({"type": "jsonPath", "path": "$['a..b..$,,,,']"})).validate().expect("usable");
    }
}
