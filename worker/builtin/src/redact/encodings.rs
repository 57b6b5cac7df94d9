//! The forms in which programs repeat a value: as it is, in base64 (also in the middle of something longer, as in an
//! `Authorization` header), in percent-encoding, in hexadecimal, with the escapes of JSON and HTML, and line by line.

use std::collections::BTreeSet;

use base64::{Engine, prelude::*};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// Minimum length of a part of a value that is searched for by itself: a line, or the middle of its base64. Anything
/// shorter also occurs in unrelated text.
pub(super) const MIN_PATTERN_CHARS: usize = 8;
/// Every character except those that RFC 3986 calls unreserved.
const URI_COMPONENT_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters that forms encode. The set differs from the one above in the tilde and the asterisk.
const FORM_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*');
/// The characters that browsers and reqwest encode in a query. They are fewer.
const QUERY_SET: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'\'');

/// Returns the forms in which `value` may appear in a text, except for base64 in the middle of something longer.
pub(super) fn encodings(value: &str) -> BTreeSet<String> {
    let mut encodings = BTreeSet::from([value.to_owned()]);
    encodings.extend(value.lines().map(str::trim).filter(|line| line.len() >= MIN_PATTERN_CHARS).map(str::to_owned));
    for set in [URI_COMPONENT_SET, FORM_SET, QUERY_SET] {
        let encoded = utf8_percent_encode(value, set).to_string();
        encodings.insert(encoded.replace("%20", "+"));
        encodings.insert(lower_hex(&encoded));
        encodings.insert(encoded);
    }
    // The first and the last byte are the quotes, in JSON as in Rust.
    let quoted = Value::String(value.to_owned()).to_string();
    let debug = format!("{value:?}");
    encodings.insert(debug[1..debug.len() - 1].to_owned());
    // PHP escapes the slash, and Python and PHP escape everything outside ASCII.
    let quoted = &quoted[1..quoted.len() - 1];
    for text in [quoted.to_owned(), ascii_json(quoted, false), ascii_json(quoted, true)] {
        encodings.insert(text.replace('/', "\\/"));
        encodings.insert(text);
    }
    let markup = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    encodings.insert(markup.clone());
    for (quote, apostrophe) in [
        ("&quot;", "&#39;"),
        ("&quot;", "&#x27;"),
        ("&#34;", "&#39;"),
        ("&quot;", "&apos;"),
        ("&quot;", "&#039;"),
        ("&quot;", "'"),
    ] {
        encodings.insert(markup.replace('"', quote).replace('\'', apostrophe));
    }
    let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
    encodings.insert(hex.to_uppercase());
    encodings.insert(hex);
    for engine in [BASE64_STANDARD, BASE64_URL_SAFE] {
        let whole = engine.encode(value);
        encodings.insert(whole.trim_end_matches('=').to_owned());
        encodings.insert(whole);
    }
    encodings.extend(base64_middles(&BASE64_URL_SAFE, value));
    encodings
}

/// Returns the base64 of `value` after 0, 1 and 2 other bytes, as far as it depends only on the value.
pub(super) fn base64_middles(engine: &impl Engine, value: &str) -> impl Iterator<Item = String> {
    let middle =
        move |before| base64_middle(&engine.encode([&vec![0; before], value.as_bytes()].concat()), before, value.len());
    (0..3).map(middle).filter(|middle| middle.len() >= MIN_PATTERN_CHARS)
}

/// Returns the characters of a base64 text that depend only on the `length` bytes that follow `before` others.
pub(super) fn base64_middle(encoded: &str, before: usize, length: usize) -> String {
    let (first, end) = ((before * 8).div_ceil(6), (before + length) * 8 / 6);
    encoded.get(first..end).unwrap_or_default().to_owned()
}

/// Escapes the characters of a JSON text that are not ASCII.
fn ascii_json(text: &str, is_upper: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            escaped.push_str(&if is_upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") });
        }
    }
    escaped
}

/// Changes the digits of percent-encoded bytes to lower case: `%2F` → `%2f`.
fn lower_hex(encoded: &str) -> String {
    let mut rest = 0;
    let lower = |c: char| {
        if c == '%' {
            rest = 2;
            return c;
        }
        if rest > 0 {
            rest -= 1;
            return c.to_ascii_lowercase();
        }
        c
    };
    encoded.chars().map(lower).collect()
}

/// Returns the parts of a base64 text by which its lines are found, with their offsets. Each line of 15 characters has one,
/// and so have the first and the last characters.
pub(super) fn parts_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let last = text.len() - MIN_PATTERN_CHARS;
    let offsets = (0..last).step_by(MIN_PATTERN_CHARS).chain([last]);
    offsets.map(|offset| (offset, &text[offset..offset + MIN_PATTERN_CHARS]))
}
