//! Keeps what is secret out of what is written.
//!
//! A value that must not be read is looked for in every text that leaves a job, and in every line the process logs: as it
//! is, and in the shapes in which programs repeat it — base64 (also in the middle of something longer, as in an
//! `Authorization` header), percent-encoded, hexadecimal, escaped as in JSON, and line by line. One pass finds them all;
//! where two overlap, the longer one counts.

use std::{
    borrow::Cow,
    collections::{BTreeSet, VecDeque},
    io::{self, Write},
    sync::{Arc, PoisonError, RwLock},
};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::{Engine, prelude::*};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

/// The most values remembered; the oldest is given up. Only the process-wide redactor can get there.
const MAX_KNOWN_SECRETS: usize = 1_000;
/// The most values shown alike. Only tokens get there, of which each client is given a new one every hour or so.
const MAX_SECRETS_PER_LABEL: usize = 100;
/// A piece of a value that is looked for by itself (a line, the middle of its base64) has at least this many characters;
/// anything shorter is found in innocent text too.
const MIN_PATTERN_CHARS: usize = 8;
/// Everything but what RFC 3986 calls unreserved.
const URI_COMPONENT_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What a form leaves as it is differs by the tilde and the star.
const FORM_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*');
/// What browsers and reqwest encode in a query, which is less.
const QUERY_SET: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'\'');

/// Replaces secret values by their names.
#[derive(Debug, Default)]
pub(crate) struct Redactor(RwLock<KnownSecrets>);

#[derive(Default)]
struct KnownSecrets {
    /// The values and what stands in their place.
    values: VecDeque<(String, String)>,
    patterns: Vec<SecretPattern>,
    finder: Option<AhoCorasick>,
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
    /// From now on `value` is shown as `shown`. An empty value is no secret.
    pub(crate) fn add_secret(&self, value: &str, shown: &str) {
        let mut hidden = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if value.is_empty() || hidden.values.iter().any(|(known, _)| known == value) {
            return;
        }
        let mut alike =
            hidden.values.iter().enumerate().filter(|(_, (_, known))| known == shown).map(|(place, _)| place);
        let oldest_alike = alike.next();
        let old = if alike.count() + 1 >= MAX_SECRETS_PER_LABEL {
            oldest_alike
        } else {
            (hidden.values.len() >= MAX_KNOWN_SECRETS).then_some(0)
        };
        if let Some(place) = old {
            hidden.values.remove(place);
        }
        hidden.values.push_back((value.to_owned(), shown.to_owned()));
        hidden.patterns = hidden
            .values
            .iter()
            .flat_map(|(value, shown)| {
                shapes(value).into_iter().map(|text| SecretPattern { text, shown: shown.clone() })
            })
            .collect();
        hidden.finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            // The usual choice, a table for each state, takes kilobytes for each byte of a long key.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(hidden.patterns.iter().map(|pattern| &pattern.text))
            .ok();
    }

    /// `text` without the values.
    pub(crate) fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_start(text, text.len())
    }

    /// The first `max` bytes of `text` without the values. What lies behind them is looked at too, so that a value that
    /// crosses the border is not left behind by half.
    pub(crate) fn redact_start<'a>(&self, text: &'a str, max: usize) -> Cow<'a, str> {
        let max = text.floor_char_boundary(max);
        let hidden = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut cleaned = String::new();
        let mut done = 0;
        for found in hidden.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            if found.start() >= max {
                break;
            }
            cleaned.push_str(&text[done..found.start()]);
            cleaned.push_str(&hidden.patterns[found.pattern()].shown);
            done = found.end();
        }
        if done == 0 {
            return Cow::Borrowed(&text[..max]);
        }
        if done < max {
            cleaned.push_str(&text[done..max]);
        }
        Cow::Owned(cleaned)
    }

    /// How many bytes the longest thing to look for has.
    pub(crate) fn longest_pattern(&self) -> usize {
        let hidden = self.0.read().unwrap_or_else(PoisonError::into_inner);
        hidden.patterns.iter().map(|pattern| pattern.text.len()).max().unwrap_or(0)
    }

    /// `value` without the values, in names too. A number that spells one becomes text.
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
                    Cow::Owned(cleaned) => Value::String(cleaned),
                }
            }
            plain => plain,
        }
    }
}

/// The ways `value` may be written.
fn shapes(value: &str) -> BTreeSet<String> {
    let mut shapes = BTreeSet::from([value.to_owned()]);
    shapes.extend(value.lines().map(str::trim).filter(|line| line.len() >= MIN_PATTERN_CHARS).map(str::to_owned));
    for set in [URI_COMPONENT_SET, FORM_SET, QUERY_SET] {
        let encoded = utf8_percent_encode(value, set).to_string();
        shapes.insert(encoded.replace("%20", "+"));
        shapes.insert(lower_hex(&encoded));
        shapes.insert(encoded);
    }
    // A `String` is always JSON.
    let quoted = Value::String(value.to_owned()).to_string();
    shapes.insert(quoted[1..quoted.len() - 1].to_owned());
    let debug = format!("{value:?}");
    shapes.insert(debug[1..debug.len() - 1].to_owned());
    let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
    shapes.insert(hex.to_uppercase());
    shapes.insert(hex);
    for engine in [BASE64_STANDARD, BASE64_URL_SAFE] {
        let whole = engine.encode(value);
        shapes.insert(whole.trim_end_matches('=').to_owned());
        shapes.insert(whole);
        for before in 0..3 {
            let middle =
                base64_middle(&engine.encode([&vec![0; before], value.as_bytes()].concat()), before, value.len());
            if middle.len() >= MIN_PATTERN_CHARS {
                shapes.insert(middle);
            }
        }
    }
    shapes
}

/// Those characters of a base64 text that are made of nothing but the `length` bytes which follow `before` others.
fn base64_middle(encoded: &str, before: usize, length: usize) -> String {
    let (first, end) = ((before * 8).div_ceil(6), (before + length) * 8 / 6);
    encoded.get(first..end).unwrap_or_default().to_owned()
}

/// `%2F` → `%2f`.
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

/// Makes a log's writer one that writes no secret.
#[derive(Clone, Debug)]
pub(crate) struct RedactingMakeWriter(pub(crate) Arc<Redactor>);

impl<'a> MakeWriter<'a> for RedactingMakeWriter {
    type Writer = RedactingWriter;

    fn make_writer(&'a self) -> RedactingWriter {
        RedactingWriter(self.0.clone())
    }
}

/// Standard error without secrets. An event comes in one piece, so none is cut in two.
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
    fn of_values_that_are_shown_alike_the_last_ones_are_hidden() {
        let redactor = Redactor::default();
        redactor.add_secret("the password", "[password]");
        let token = |n: usize| format!("token number {n:03}");
        for n in 0..=MAX_SECRETS_PER_LABEL {
            redactor.add_secret(&token(n), "[token]");
        }
        assert_eq!(redactor.redact(&token(0)), token(0).as_str(), "it has run out long ago");
        for n in 1..=MAX_SECRETS_PER_LABEL {
            assert_eq!(redactor.redact(&token(n)), "[token]");
        }
        assert_eq!(redactor.redact("the password"), "[password]");
    }

    #[test]
    fn a_value_is_found_in_every_shape() {
        let redactor = redactor();
        let mut shapes = vec![
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
        ];
        // As it stands in `Authorization: Basic …`, behind user names of every length modulo three.
        for user in ["a", "ab", "abc", "abcd"] {
            shapes.push(BASE64_STANDARD.encode(format!("{user}:{CANARY}")));
        }
        // The strictest set differs from URI_COMPONENT_SET in four marks, none of which is in the canary.
        for shape in shapes {
            let text = format!("before {shape} after");
            let cleaned = redactor.redact(&text);
            assert!(cleaned.contains(CANARY_LABEL), "{shape} is still in {cleaned}");
            assert!(!cleaned.contains("c4n4ry") && !cleaned.contains("Y0bjRyeS"), "{cleaned}");
            assert!(cleaned.starts_with("before ") && cleaned.ends_with(" after"), "{cleaned}");
        }
    }

    #[test]
    fn a_value_of_many_lines_is_found_line_by_line() {
        let redactor = Redactor::default();
        redactor.add_secret("-----BEGIN KEY-----\nMIIBOgIBAAJBAKj34GkxFhD9\nshort\n-----END KEY-----\n", CANARY_LABEL);
        assert_eq!(redactor.redact("line 2: MIIBOgIBAAJBAKj34GkxFhD9"), format!("line 2: {CANARY_LABEL}"));
        assert_eq!(redactor.redact("short"), "short");
    }

    #[test]
    fn what_names_a_value_is_not_taken_apart_by_another() {
        let redactor = redactor();
        redactor.add_secret("secret", "{{secret:silly}}");
        assert_eq!(redactor.redact(&format!("{CANARY} secret")), "{{secret:bird}} {{secret:silly}}");
    }

    #[test]
    fn a_value_across_the_border_does_not_stay_by_half() {
        let redactor = redactor();
        let text = format!("0123456789{CANARY} and more");
        assert_eq!(redactor.redact_start(&text, 14), format!("0123456789{CANARY_LABEL}"));
        assert_eq!(redactor.redact_start(&text, 10), "0123456789");
        assert_eq!(redactor.redact_start("Wörld", 2), "W");
    }

    #[test]
    fn json_is_cleaned_in_names_texts_and_numbers() {
        let redactor = redactor();
        redactor.add_secret("4711", "{{secret:pin}}");
        let cleaned = redactor.redact_value(json!({CANARY: [CANARY, 4711, 4712, true, null]}));
        assert_eq!(cleaned, json!({CANARY_LABEL: [CANARY_LABEL, "{{secret:pin}}", 4712, true, null]}));
    }

    #[test]
    fn the_oldest_value_is_given_up_when_there_are_too_many() {
        let redactor = Redactor::default();
        redactor.add_secret("first-value", "x");
        // Put in place without building the finder a thousand times.
        redactor
            .0
            .write()
            .expect("free")
            .values
            .extend((1..MAX_KNOWN_SECRETS).map(|n| (format!("value-{n}"), "y".to_owned())));
        redactor.add_secret("last-value", "z");
        assert_eq!(redactor.redact("first-value last-value"), "first-value z");
    }
}
