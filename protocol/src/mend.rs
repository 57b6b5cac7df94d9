//! Parses the messages of workers as other languages write them.
//!
//! `JSON.stringify` of JavaScript and `json.dumps` of Python write half of a surrogate pair as `\ud83d`, which is left of an
//! emoji that a program has cut, and of a file name that is no Unicode. Python also writes `NaN` and `Infinity`. serde_json
//! refuses both, and with them the whole message: up to hundreds of reports for one character in one of them. So a message
//! that cannot be parsed is parsed once more with U+FFFD in place of such characters and null in place of such numbers.
//! Bytes that are not UTF-8 and control characters in a text are treated in the same way. The author of the worker learns of
//! it, because the message is counted as unreadable in part.

use std::fmt;

use serde_json::Value;

use crate::message::MAX_MESSAGE_BYTES;

/// The maximum length of the reason in a problem, in characters.
const MAX_REASON_CHARS: usize = 200;

/// A field that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadProblem {
    /// The path of the field, such as `durationMs` or `lines[3].seq`. Empty if the problem concerns the whole message.
    pub field: String,
    /// The reason.
    pub reason: String,
}

impl ReadProblem {
    pub(crate) fn new(field: impl Into<String>, reason: impl fmt::Display) -> Self {
        let mut reason = reason.to_string();
        if let Some((end, _)) = reason.char_indices().nth(MAX_REASON_CHARS) {
            reason.truncate(end);
            reason.push('…');
        }
        Self { field: field.into(), reason }
    }
}

impl fmt::Display for ReadProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.field, self.reason) }
    }
}

/// Checks the size of a message.
///
/// # Errors
///
/// Returns a problem without a field if the message has more than [`MAX_MESSAGE_BYTES`] bytes.
pub fn check_size(body: &[u8]) -> Result<(), ReadProblem> {
    if body.len() > MAX_MESSAGE_BYTES {
        let reason = format!("the message has {} bytes, more than {MAX_MESSAGE_BYTES}", body.len());
        return Err(ReadProblem::new("", reason));
    }
    Ok(())
}

/// Parses a message. Also returns the problem if characters or numbers in it had to be replaced.
///
/// # Errors
///
/// Returns the problem if it is too large, or no JSON even then.
pub(crate) fn parse(body: &[u8]) -> Result<(Value, Option<ReadProblem>), ReadProblem> {
    check_size(body)?;
    let error = match serde_json::from_slice(body) {
        Ok(message) => return Ok((message, None)),
        Err(error) => error,
    };
    match serde_json::from_str(&mend(&String::from_utf8_lossy(body))) {
        Ok(message) => {
            let reason = format!("{error}: characters and numbers that JSON does not have were replaced");
            Ok((message, Some(ReadProblem::new("", reason))))
        }
        Err(_) => Err(ReadProblem::new("", error)),
    }
}

fn mend(text: &str) -> String {
    let mut mended = String::with_capacity(text.len() + 16);
    let (mut rest, mut is_text) = (text, false);
    while let Some(first) = rest.chars().next() {
        let (length, replacement) = if is_text { next_in_text(first, rest) } else { next_outside(first, rest) };
        mended.push_str(replacement.as_deref().unwrap_or(&rest[..length]));
        is_text ^= first == '"';
        rest = &rest[length..];
    }
    mended
}

/// Returns the length of the next character of a text, or of its escape, and its replacement if JSON does not have it.
fn next_in_text(first: char, rest: &str) -> (usize, Option<String>) {
    match (first, code_unit(rest)) {
        ('\\', Some(0xd800..=0xdbff)) if matches!(rest.get(6..).and_then(code_unit), Some(0xdc00..=0xdfff)) => {
            (12, None)
        }
        ('\\', Some(0xd800..=0xdfff)) => (6, Some("\\ufffd".into())),
        // The escaped character too, because it may be a quotation mark.
        ('\\', _) => (1 + rest[1..].chars().next().map_or(0, char::len_utf8), None),
        ('\0'..='\u{1f}', _) => (1, Some(format!("\\u{:04x}", u32::from(first)))),
        _ => (first.len_utf8(), None),
    }
}

/// Returns the length of the next character between texts, or that of a number that JSON does not have, with null for it.
fn next_outside(first: char, rest: &str) -> (usize, Option<String>) {
    match ["NaN", "Infinity", "-Infinity"].into_iter().find(|name| rest.starts_with(name)) {
        Some(name) => (name.len(), Some("null".into())),
        None => (first.len_utf8(), None),
    }
}

/// Returns the code unit of an escape such as `\ud83d`, if the text begins with one.
fn code_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn characters_that_json_does_not_have_are_replaced() {
        for (text, expected) in [
            (r#"{"a":"x\ud83d"}"#, json!({ "a": "x\u{fffd}" })),
            (r#"{"a":"\ude00x\ud83dy"}"#, json!({ "a": "\u{fffd}x\u{fffd}y" })),
            (r#"{"a":"\ud83d\ud83d\ude00"}"#, json!({ "a": "\u{fffd}😀" })),
            (r#"{"a":"\\ud83d \" \ud83d"}"#, json!({ "a": "\\ud83d \" \u{fffd}" })),
            (r#"{"a":NaN,"b":[Infinity,-Infinity],"c":"NaN"}"#, json!({ "a": null, "b": [null, null], "c": "NaN" })),
            ("{\"a\":\"one\ntwo\"}", json!({ "a": "one\ntwo" })),
        ] {
            let (message, problem) = parse(text.as_bytes()).unwrap_or_else(|problem| panic!("{text}: {problem}"));
            assert_eq!(message, expected);
            assert!(problem.is_some(), "{text}");
        }
        let (message, _) = parse(b"{\"a\":\"caf\xe9\"}").expect("Latin-1");
        assert_eq!(message, json!({ "a": "caf\u{fffd}" }));
    }

    #[test]
    fn json_is_taken_as_it_is() {
        let text = r#"{"a":"\ud83d\ude00 \\u \u00e9","b":1.5}"#;
        assert_eq!(parse(text.as_bytes()), Ok((json!({ "a": "😀 \\u é", "b": 1.5 }), None)));
        for text in ["", "{", "status=2", "{\"a\":\"\\u12\"}", "{\"a\":\"\\"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        let large = vec![b' '; MAX_MESSAGE_BYTES + 1];
        assert_eq!(
            parse(&large).expect_err("too large").to_string(),
            "the message has 1048577 bytes, more than 1048576"
        );
    }
}
