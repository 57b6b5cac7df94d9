//! Fingerprints that group failures with the same cause.
//!
//! Two exceptions with one cause differ in their details: an order number, a host, a time. These details are replaced
//! by placeholders and the rest is hashed. The hash is only used for grouping and never shown. It may change between
//! versions; the only harm is that a group then appears twice.

use sha2::{Digest, Sha256};

/// Number of lines that identify an exception: the message and the innermost frames, without the outer call stack.
const FINGERPRINT_LINES: usize = 5;
/// Number of characters of each line that are hashed.
const MAX_LINE_CHARS: usize = 400;
/// Number of bytes of the hash that are kept.
const FINGERPRINT_BYTES: usize = 8;

/// Returns the fingerprint of an exception: 16 hexadecimal characters, equal for failures with the same cause.
#[must_use]
pub fn fingerprint(exception: &str) -> String {
    let hash = Sha256::digest(normal(exception).as_bytes());
    hash.iter().take(FINGERPRINT_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the exception without the details that differ between failures with the same cause.
fn normal(exception: &str) -> String {
    let lines = exception.lines().map(str::trim).filter(|line| !line.is_empty()).take(FINGERPRINT_LINES);
    let mut normal = String::new();
    for line in lines {
        let line: String = line.chars().take(MAX_LINE_CHARS).collect();
        normal_line(&line, &mut normal);
        normal.push('\n');
    }
    normal
}

/// Replaces quoted values by `''`, words with a digit and hexadecimal words by `#`, and white space by one space.
fn normal_line(line: &str, out: &mut String) {
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            rest = rest.trim_start();
            out.push(' ');
        } else if let Some(length) = quoted(rest, out.chars().next_back()) {
            out.push_str("''");
            rest = &rest[length..];
        } else if first.is_alphanumeric() {
            let length = word(rest);
            let (word, after) = rest.split_at(length);
            if is_value(word) {
                // `1.2.3`, `10:20:30Z` and a UUID are one value, not several.
                if !out.ends_with('#') {
                    out.push('#');
                }
                rest = joined(after);
            } else {
                out.push_str(&word.to_lowercase());
                rest = after;
            }
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
}

/// Returns the length in bytes of the quotation at the start of `text`, including its quotation marks. An apostrophe
/// inside a word does not start a quotation.
fn quoted(text: &str, before: Option<char>) -> Option<usize> {
    let mark = text.chars().next()?;
    let end = match mark {
        '"' | '`' => mark,
        '\'' if !before.is_some_and(char::is_alphanumeric) => mark,
        '“' => '”',
        '‘' => '’',
        '«' => '»',
        _ => return None,
    };
    let inside = &text[mark.len_utf8()..];
    Some(mark.len_utf8() + inside.find(end)? + end.len_utf8())
}

/// Returns the length in bytes of the word at the start of `text`.
fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Returns true if a word is a value: it contains a digit, or it is long and hexadecimal.
fn is_value(word: &str) -> bool {
    word.contains(|c: char| c.is_numeric())
        || (word.len() >= 8 && word.len().is_multiple_of(4) && word.chars().all(|c| c.is_ascii_hexdigit()))
}

/// Returns the text after a value and after all values that are joined to it by punctuation.
fn joined(after: &str) -> &str {
    let Some(mark) = after.chars().next() else { return after };
    if !matches!(mark, '.' | '-' | ':' | '+' | ',') {
        return after;
    }
    let next = &after[mark.len_utf8()..];
    let length = word(next);
    // The groups of a UUID may contain no digit.
    let is_group = length == 4 && mark == '-' && next[..length].chars().all(|c| c.is_ascii_hexdigit());
    if length > 0 && (is_value(&next[..length]) || is_group) { joined(&next[length..]) } else { after }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_cause_has_same_fingerprint() {
        let table = [
            ("order 17 not found", "order 4711 not found"),
            ("connect to 10.0.0.1:5432 failed", "connect to 10.0.0.27:6543 failed"),
            ("lock 0190a0a0-0000-7000-8000-000000000000 is held", "lock 0190a0a0-dead-beef-8abc-cafe00000fff is held"),
            ("at 2026-11-21T10:20:30.123Z: refused", "at 2025-01-02T03:04:05Z: refused"),
            ("no such file: '/tmp/a b.txt'", "no such file: '/var/c.txt'"),
            ("unexpected \"x\" in input", "unexpected \"some y\" in input"),
            ("/data/run42/part-0007.csv is empty", "/data/run7/part-1234.csv is empty"),
            ("object 0x7ffdeadbeef moved", "object 0x10 moved"),
            ("digest deadbeefcafebabe differs", "digest abad1deaabad1dea differs"),
            ("boom   at line 3\n\n  in f", "boom at line 99\nin f"),
            ("took 1.5s", "took 12s"),
            ("Timeout", "timeout"),
            ("same\na\nb\nc\nd\ncalled from here", "same\na\nb\nc\nd\ncalled from there"),
        ];
        for (one, other) in table {
            assert_eq!(normal(one), normal(other));
            assert_eq!(fingerprint(one), fingerprint(other));
        }
    }

    #[test]
    fn different_causes_have_different_fingerprints() {
        let table = [
            ("order 17 not found", "customer 17 not found"),
            ("can't connect", "can't resolve"),
            ("can't open 'a' or 'b'", "can't close 'a' or 'b'"),
            ("boom\nin f", "boom\nin g"),
            ("added", "faded"),
            ("", "x"),
        ];
        for (one, other) in table {
            assert_ne!(fingerprint(one), fingerprint(other), "{one} / {other}");
        }
    }

    #[test]
    fn fingerprint_length_is_fixed() {
        for text in ["", "ü", "“", "'", "`a", &"x1 ".repeat(100_000), &"«".repeat(1_000), "١٢٣ 😀"] {
            let mark = fingerprint(text);
            assert_eq!(mark.len(), 16);
            assert!(mark.chars().all(|c| c.is_ascii_hexdigit()));
        }
    }
}
