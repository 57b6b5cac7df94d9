//! Removes secrets from texts.
//!
//! Every text that leaves a job, and every line that the process logs, is searched for secret values: as they are, and
//! in the encodings in which programs repeat them. These are base64 (also in the middle of something longer, as in an
//! `Authorization` header), percent-encoding, hexadecimal, the escapes of JSON and HTML, and single lines of a value. One
//! pass finds all of them. Of overlapping matches, the leftmost and then the longest counts.
//!
//! Base64 is often broken into lines, at columns that depend on what precedes the value. A second pass therefore ignores
//! line breaks. The output of a program is searched line by line, so a third pass finds single lines of broken base64: it
//! searches for short parts of it and extends each match as far as the text continues like the base64 of the value.
//!
//! The automaton of a pass is large for a large value, so it is built when a text is searched, outside any lock, and runs
//! with the same secrets share it.

use std::{
    borrow::Cow,
    collections::{BTreeSet, VecDeque},
    io::{self, Write},
    sync::{Arc, LazyLock, Mutex, PoisonError, RwLock},
};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::{Engine, prelude::*};
use hashlink::LruCache;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of values. Beyond it the oldest is dropped. Only the redactor of the process can reach this number.
const MAX_KNOWN_SECRETS: usize = 1_000;
/// Maximum number of values with the same label. Only tokens reach it: each OAuth client gets a new one about every
/// hour.
const MAX_SECRETS_PER_LABEL: usize = 100;
/// Minimum length of a part of a value that is searched for by itself: a line, or the middle of its base64. Anything
/// shorter also occurs in unrelated text.
const MIN_PATTERN_CHARS: usize = 8;
/// Number of sets of secrets whose automata are kept for further runs.
const CACHED_FINDERS: usize = 16;
/// Maximum number of values in such a set. The process's own set is larger and changes all the time.
const MAX_CACHED_VALUES: usize = 60;
/// Every character except those that RFC 3986 calls unreserved.
const URI_COMPONENT_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters that forms encode. The set differs from the one above in the tilde and the asterisk.
const FORM_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*');
/// The characters that browsers and reqwest encode in a query. They are fewer.
const QUERY_SET: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'\'');

/// Replaces secret values by their labels.
#[derive(Debug, Default)]
pub(crate) struct Redactor(RwLock<KnownSecrets>);

/// Values, each with the label that replaces it.
type LabelledValues = VecDeque<(String, String)>;

#[derive(Default)]
struct KnownSecrets {
    values: LabelledValues,
    /// The finder of these values, once a text was searched.
    finder: Option<Arc<SecretFinder>>,
}

/// Finds the encodings of some values.
#[derive(Default)]
struct SecretFinder {
    patterns: Vec<SecretPattern>,
    automaton: Option<AhoCorasick>,
    /// The parts of base64 texts, each with the pattern that has the whole text and with its offset in it.
    base64_parts: Vec<(usize, usize)>,
    part_automaton: Option<AhoCorasick>,
}

/// A value in a text.
#[derive(Clone, Copy)]
struct FoundSecret {
    start: usize,
    end: usize,
    pattern: usize,
}

struct SecretPattern {
    text: String,
    shown: String,
}

impl std::fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KnownSecrets").field("values", &self.values.len()).finish_non_exhaustive()
    }
}

impl Redactor {
    /// Registers a value, which from now on is shown as `shown`. An empty value is ignored.
    pub(crate) fn add_secret(&self, value: &str, shown: &str) {
        let mut secrets = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if value.is_empty() || secrets.values.iter().any(|(known, _)| known == value) {
            return;
        }
        let mut same_label =
            secrets.values.iter().enumerate().filter(|(_, (_, label))| label == shown).map(|(index, _)| index);
        let oldest_of_label = same_label.next();
        let dropped = if same_label.count() + 1 >= MAX_SECRETS_PER_LABEL {
            oldest_of_label
        } else {
            (secrets.values.len() >= MAX_KNOWN_SECRETS).then_some(0)
        };
        if let Some(index) = dropped {
            secrets.values.remove(index);
        }
        secrets.values.push_back((value.to_owned(), shown.to_owned()));
        secrets.finder = None;
    }

    /// Returns the finder of the values, which is built if the values have changed.
    fn finder(&self) -> Arc<SecretFinder> {
        loop {
            let values = {
                let secrets = self.0.read().unwrap_or_else(PoisonError::into_inner);
                if let Some(finder) = &secrets.finder {
                    return finder.clone();
                }
                secrets.values.clone()
            };
            // No lock is held: the log of the process waits for none of this.
            let finder = SecretFinder::of(&values);
            let mut secrets = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if secrets.values == values {
                return secrets.finder.insert(finder).clone();
            }
        }
    }

    /// Returns `text` with the values replaced.
    pub(crate) fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_start(text, text.len())
    }

    /// Returns the first `max` bytes of `text` with the values replaced. The text behind them is searched too, so that
    /// no half of a value that crosses the boundary is left.
    pub(crate) fn redact_start<'a>(&self, text: &'a str, max: usize) -> Cow<'a, str> {
        let max = text.floor_char_boundary(max);
        let finder = self.finder();
        let mut redacted = String::new();
        let mut done = 0;
        for found in finder.find(text).into_iter().take_while(|found| found.start < max) {
            redacted.push_str(&text[done..found.start]);
            redacted.push_str(&finder.patterns[found.pattern].shown);
            done = found.end;
        }
        if done == 0 {
            return Cow::Borrowed(&text[..max]);
        }
        if done < max {
            redacted.push_str(&text[done..max]);
        }
        Cow::Owned(redacted)
    }

    /// Returns the length in bytes of the longest pattern.
    pub(crate) fn longest_pattern(&self) -> usize {
        self.finder().patterns.iter().map(|pattern| pattern.text.len()).max().unwrap_or(0)
    }

    /// Returns `value` with the secrets replaced, also in names of fields. A number that spells a secret becomes a
    /// string.
    pub(crate) fn redact_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact(&text).into_owned()),
            Value::Array(items) => items.into_iter().map(|item| self.redact_value(item)).collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(name, value)| (self.redact(&name).into_owned(), self.redact_value(value)))
                .collect(),
            Value::Number(number) => {
                let text = number.to_string();
                match self.redact(&text) {
                    Cow::Borrowed(_) => Value::Number(number),
                    Cow::Owned(redacted) => Value::String(redacted),
                }
            }
            plain => plain,
        }
    }
}

impl SecretFinder {
    /// Returns the finder of some values, which may be one that an earlier run has built.
    fn of(values: &LabelledValues) -> Arc<Self> {
        static CACHE: LazyLock<Mutex<LruCache<LabelledValues, Arc<SecretFinder>>>> =
            LazyLock::new(|| Mutex::new(LruCache::new(CACHED_FINDERS)));
        if values.is_empty() {
            return Arc::default();
        }
        if values.len() > MAX_CACHED_VALUES {
            return Arc::new(Self::build(values));
        }
        let cache = || CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(finder) = cache().get(values) {
            return finder.clone();
        }
        let finder = Arc::new(Self::build(values));
        cache().insert(values.clone(), finder.clone());
        finder
    }

    fn build(values: &LabelledValues) -> Self {
        let (mut patterns, mut base64_parts, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (value, shown) in values {
            let pattern = |text| SecretPattern { text, shown: shown.clone() };
            patterns.extend(encodings(value).into_iter().map(pattern));
            for text in base64_middles(&BASE64_STANDARD, value) {
                for (offset, part) in parts_of(&text) {
                    // Both alphabets of base64.
                    for part in BTreeSet::from([part.to_owned(), part.replace('+', "-").replace('/', "_")]) {
                        base64_parts.push((patterns.len(), offset));
                        parts.push(part);
                    }
                }
                patterns.push(pattern(text));
            }
        }
        Self {
            automaton: automaton(patterns.iter().map(|pattern| pattern.text.as_str())),
            part_automaton: automaton(parts.iter().map(String::as_str)),
            patterns,
            base64_parts,
        }
    }

    /// Returns the values in a text, in order and without overlaps.
    fn find(&self, text: &str) -> Vec<FoundSecret> {
        let Some(automaton) = &self.automaton else { return Vec::new() };
        let mut found: Vec<FoundSecret> = automaton
            .find_iter(text)
            .map(|found| FoundSecret { start: found.start(), end: found.end(), pattern: found.pattern().as_usize() })
            .collect();
        let before = found.len();
        found.extend(self.find_lines_of_base64(text));
        if text.contains('\n') {
            found.extend(self.find_across_lines(automaton, text));
        }
        if found.len() > before {
            found.sort_by_key(|found| (found.start, std::cmp::Reverse(found.end)));
            let mut end = 0;
            found.retain(|found| {
                let is_free = found.start >= end;
                end = if is_free { found.end } else { end };
                is_free
            });
        }
        found
    }

    /// Returns the lines into which the base64 of a value was broken. A line has at least [`MIN_PATTERN_CHARS`] characters of
    /// it, up to a line break on at least one side, so that other base64 with an equal beginning is not found.
    fn find_lines_of_base64(&self, text: &str) -> Vec<FoundSecret> {
        let Some(automaton) = &self.part_automaton else { return Vec::new() };
        let is_same = |(a, b): (&u8, &u8)| a == b || matches!((a, b), (b'-', b'+') | (b'_', b'/'));
        let bytes = text.as_bytes();
        let (mut found, mut done) = (Vec::new(), 0);
        for part in automaton.find_iter(text) {
            if part.start() < done {
                continue;
            }
            let (pattern, offset) = self.base64_parts[part.pattern().as_usize()];
            let whole = self.patterns[pattern].text.as_bytes();
            let earlier = bytes[done..part.start()].iter().rev().zip(whole[..offset].iter().rev());
            let later = bytes[part.end()..].iter().zip(&whole[offset + part.len()..]);
            let start = part.start() - earlier.take_while(|pair| is_same(*pair)).count();
            let end = part.end() + later.take_while(|pair| is_same(*pair)).count();
            done = end;
            if is_at_line_break(&text[..start], &text[end..]) {
                found.push(FoundSecret { start, end, pattern });
            }
        }
        found
    }

    /// Returns the values that are broken into lines.
    fn find_across_lines(&self, automaton: &AhoCorasick, text: &str) -> Vec<FoundSecret> {
        let is_break = |byte: u8| matches!(byte, b'\r' | b'\n');
        let mut joined = Vec::with_capacity(text.len());
        let mut positions = Vec::with_capacity(text.len());
        for (position, byte) in text.bytes().enumerate().filter(|(_, byte)| !is_break(*byte)) {
            joined.push(byte);
            positions.push(position);
        }
        automaton
            .find_iter(&joined)
            .filter(|found| found.len() >= MIN_PATTERN_CHARS)
            .map(|found| FoundSecret {
                start: positions[found.start()],
                end: positions[found.end() - 1] + 1,
                pattern: found.pattern().as_usize(),
            })
            .filter(|found| text.as_bytes()[found.start..found.end].iter().any(|byte| is_break(*byte)))
            .collect()
    }
}

/// Returns the automaton that finds the longest of several texts.
fn automaton<'a>(texts: impl Iterator<Item = &'a str>) -> Option<AhoCorasick> {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        // The default kind, a table for each state, takes kilobytes for each byte of a long key.
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .build(texts)
        .ok()
}

/// Returns the parts of a base64 text by which its lines are found, with their offsets. Each line of 15 characters has one,
/// and so have the first and the last characters.
fn parts_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let last = text.len() - MIN_PATTERN_CHARS;
    let offsets = (0..last).step_by(MIN_PATTERN_CHARS).chain([last]);
    offsets.map(|offset| (offset, &text[offset..offset + MIN_PATTERN_CHARS]))
}

/// Returns true if a line ends before or after a match, also in the notation of JSON. The line may be indented.
fn is_at_line_break(before: &str, after: &str) -> bool {
    let before = before.trim_end_matches([' ', '\t']);
    before.is_empty()
        || before.ends_with(['\n', '\r', '\\'])
        || before.ends_with("\\n")
        || after.is_empty()
        || after.starts_with(['\n', '\r', '\\'])
}

/// Returns the forms in which `value` may appear in a text, except for base64 in the middle of something longer.
fn encodings(value: &str) -> BTreeSet<String> {
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
fn base64_middles(engine: &impl Engine, value: &str) -> impl Iterator<Item = String> {
    let middle =
        move |before| base64_middle(&engine.encode([&vec![0; before], value.as_bytes()].concat()), before, value.len());
    (0..3).map(middle).filter(|middle| middle.len() >= MIN_PATTERN_CHARS)
}

/// Returns the characters of a base64 text that depend only on the `length` bytes that follow `before` others.
fn base64_middle(encoded: &str, before: usize, length: usize) -> String {
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

/// Makes log writers that redact secrets.
#[derive(Clone, Debug)]
pub(crate) struct RedactingMakeWriter(pub(crate) Arc<Redactor>);

impl<'a> MakeWriter<'a> for RedactingMakeWriter {
    type Writer = RedactingWriter;

    fn make_writer(&'a self) -> RedactingWriter {
        RedactingWriter(self.0.clone())
    }
}

/// Standard error without secrets. Each event is written in one call, so that no secret is split between two.
pub(crate) struct RedactingWriter(Arc<Redactor>);

impl Write for RedactingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        io::stderr().write_all(self.0.redact(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CANARY: &str = "c4n4ry/\"Wörld\" 100%";
    const CANARY_LABEL: &str = "{{secret:bird}}";

    fn redactor() -> Redactor {
        let redactor = Redactor::default();
        redactor.add_secret(CANARY, CANARY_LABEL);
        redactor
    }

    #[test]
    fn oldest_value_of_a_full_label_is_dropped() {
        let redactor = Redactor::default();
        redactor.add_secret("the password", "[password]");
        let token = |n: usize| format!("token number {n:03}");
        for n in 0..=MAX_SECRETS_PER_LABEL {
            redactor.add_secret(&token(n), "[token]");
        }
        assert_eq!(redactor.redact(&token(0)), token(0).as_str(), "this token has expired");
        for n in 1..=MAX_SECRETS_PER_LABEL {
            assert_eq!(redactor.redact(&token(n)), "[token]");
        }
        assert_eq!(redactor.redact("the password"), "[password]");
    }

    #[test]
    fn value_is_found_in_every_encoding() {
        let redactor = redactor();
        let mut encodings = vec![
            CANARY.to_owned(),
            json!(CANARY).to_string(),
            format!("{CANARY:?}"),
            BASE64_STANDARD.encode(CANARY),
            BASE64_STANDARD_NO_PAD.encode(CANARY),
            BASE64_URL_SAFE_NO_PAD.encode(CANARY),
            utf8_percent_encode(CANARY, NON_ALPHANUMERIC).to_string(),
            "c4n4ry%2f%22W%c3%b6rld%22%20100%25".to_owned(),
            "c4n4ry%2F%22W%C3%B6rld%22+100%25".to_owned(),
            CANARY.bytes().map(|byte| format!("{byte:02x}")).collect(),
            // json_encode of PHP, json.dumps of Python, and HTML.
            r#"c4n4ry\/\"W\u00f6rld\" 100%"#.to_owned(),
            r#"c4n4ry/\"W\u00f6rld\" 100%"#.to_owned(),
            "c4n4ry/&quot;Wörld&quot; 100%".to_owned(),
            "c4n4ry/&#34;Wörld&#34; 100%".to_owned(),
        ];
        // The form in `Authorization: Basic …`, after user names of every length modulo three.
        for user in ["a", "ab", "abc", "abcd"] {
            encodings.push(BASE64_STANDARD.encode(format!("{user}:{CANARY}")));
        }
        // The strictest set differs from URI_COMPONENT_SET in four characters, none of which is in the canary.
        for encoding in encodings {
            let text = format!("before {encoding} after");
            let redacted = redactor.redact(&text);
            assert!(redacted.contains(CANARY_LABEL), "{encoding} is still in {redacted}");
            assert!(!redacted.contains("c4n4ry") && !redacted.contains("Y0bjRyeS"), "{redacted}");
            assert!(redacted.starts_with("before ") && redacted.ends_with(" after"), "{redacted}");
        }
    }

    #[test]
    fn multi_line_value_is_found_line_by_line() {
        let redactor = Redactor::default();
        redactor.add_secret("-----BEGIN KEY-----\nMIIBOgIBAAJBAKj34GkxFhD9\nshort\n-----END KEY-----\n", CANARY_LABEL);
        assert_eq!(redactor.redact("line 2: MIIBOgIBAAJBAKj34GkxFhD9"), format!("line 2: {CANARY_LABEL}"));
        assert_eq!(redactor.redact("short"), "short");
    }

    #[test]
    fn base64_in_lines_is_found() {
        let redactor = Redactor::default();
        let key: String = (0..150_u8).map(|n| char::from(b'!' + n % 90)).collect();
        redactor.add_secret(&key, CANARY_LABEL);
        for before in 0..40 {
            let encoded = BASE64_STANDARD.encode(format!("{}{key}", "x".repeat(before)));
            for (columns, end) in [(76, "\r\n"), (64, "\n")] {
                let lines = encoded.as_bytes().chunks(columns).map(|line| String::from_utf8_lossy(line));
                let text = lines.collect::<Vec<_>>().join(end);
                let redacted = redactor.redact(&text);
                assert!(redacted.contains(CANARY_LABEL), "{before} {redacted}");
                assert!(redacted.len() < before * 4 / 3 + CANARY_LABEL.len() + 20, "{before} {redacted}");
            }
        }
        // A program's output is searched line by line.
        for line in BASE64_STANDARD.encode(&key).as_bytes().chunks(76) {
            assert_eq!(redactor.redact(&String::from_utf8_lossy(line)), CANARY_LABEL);
        }
    }

    #[test]
    fn single_lines_of_broken_base64_are_found() {
        let redactor = Redactor::default();
        // Its base64 has all characters of both alphabets.
        let key: String = (0..50_u8).flat_map(|n| [char::from(b'!' + n), '?', '~']).collect();
        redactor.add_secret(&key, CANARY_LABEL);
        let encode: [fn(&str) -> String; 2] =
            [|text| BASE64_STANDARD.encode(text), |text| BASE64_URL_SAFE.encode(text)];
        for (before, columns) in (0..80).flat_map(|before| [76, 64, 20].map(|columns| (before, columns))) {
            for encoded in encode.map(|encode| encode(&format!("{}{key} and more", "x".repeat(before)))) {
                let length = base64_middle(&encoded, before, key.len()).len();
                let first = (before * 8).div_ceil(6);
                for (line, number) in encoded.as_bytes().chunks(columns).zip(0..) {
                    let line = String::from_utf8_lossy(line);
                    for shown in [line.clone().into_owned(), format!("  {line}"), format!("first\\n{line}\\nlast")] {
                        // The part of the line that belongs to the key.
                        let part = first.saturating_sub(number * columns).min(line.len())
                            ..(first + length).saturating_sub(number * columns).min(line.len());
                        let redacted = redactor.redact(&shown);
                        for window in line[part].as_bytes().windows(MIN_PATTERN_CHARS) {
                            let window = String::from_utf8_lossy(window);
                            assert!(!redacted.contains(&*window), "{before} {columns} {number} {window} {redacted}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn other_base64_with_an_equal_beginning_is_unchanged() {
        let redactor = Redactor::default();
        redactor.add_secret("-----BEGIN PRIVATE KEY-----\nMIIBOgIBAAJBAKj34GkxFhD9", CANARY_LABEL);
        let certificate = format!("ca.crt: {}", BASE64_STANDARD.encode("-----BEGIN CERTIFICATE-----\nMIIC"));
        assert_eq!(redactor.redact(&certificate), certificate);
    }

    #[test]
    fn runs_with_the_same_secrets_share_one_finder() {
        let of = |values: &[&str]| {
            let redactor = Redactor::default();
            values.iter().for_each(|value| redactor.add_secret(value, CANARY_LABEL));
            redactor.finder()
        };
        let first = of(&["shared-secret", "another-secret"]);
        assert!(Arc::ptr_eq(&first, &of(&["shared-secret", "another-secret"])));
        assert!(!Arc::ptr_eq(&first, &of(&["shared-secret"])));
    }

    #[test]
    fn label_is_not_changed_by_another_value() {
        let redactor = redactor();
        redactor.add_secret("secret", "{{secret:silly}}");
        assert_eq!(redactor.redact(&format!("{CANARY} secret")), "{{secret:bird}} {{secret:silly}}");
    }

    #[test]
    fn value_across_the_boundary_is_replaced_whole() {
        let redactor = redactor();
        let text = format!("0123456789{CANARY} and more");
        assert_eq!(redactor.redact_start(&text, 14), format!("0123456789{CANARY_LABEL}"));
        assert_eq!(redactor.redact_start(&text, 10), "0123456789");
        assert_eq!(redactor.redact_start("Wörld", 2), "W");
    }

    #[test]
    fn json_names_strings_and_numbers_are_redacted() {
        let redactor = redactor();
        redactor.add_secret("4711", "{{secret:pin}}");
        let redacted = redactor.redact_value(json!({CANARY: [CANARY, 4711, 4712, true, null]}));
        assert_eq!(redacted, json!({CANARY_LABEL: [CANARY_LABEL, "{{secret:pin}}", 4712, true, null]}));
    }

    #[test]
    fn oldest_value_is_dropped_beyond_the_limit() {
        let redactor = Redactor::default();
        redactor.add_secret("first-value", "x");
        redactor
            .0
            .write()
            .expect("the lock is not poisoned")
            .values
            .extend((1..MAX_KNOWN_SECRETS).map(|n| (format!("value-{n}"), "y".to_owned())));
        redactor.add_secret("last-value", "z");
        assert_eq!(redactor.redact("first-value last-value"), "first-value z");
    }
}
