//! Removes secrets from texts.
//!
//! Every text that leaves a job, and every line that the process logs, is searched for secret values: as they are, and
//! in the `encodings` in which programs repeat them. Their `finder` is built outside any lock, so that the log of the process
//! waits for none.

mod encodings;
mod finder;

use std::{
    borrow::Cow,
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, PoisonError, RwLock},
};

use finder::SecretFinder;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of values. Beyond it the oldest is dropped. Only the redactor of the process can reach this number.
const MAX_KNOWN_SECRETS: usize = 1_000;
/// Maximum number of values with the same label. Only tokens reach it: each OAuth client gets a new one about every
/// hour.
const MAX_SECRETS_PER_LABEL: usize = 100;

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
    use base64::prelude::*;
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use serde_json::json;

    use super::{
        encodings::{MIN_PATTERN_CHARS, base64_middle},
        *,
    };

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
