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
const MAX_VALUES: usize = 1_000;
/// The most values shown alike. Only tokens get there, of which each client is given a new one every hour or so.
const MAX_ALIKE: usize = 100;
/// A piece of a value that is looked for by itself (a line, the middle of its base64) has at least this many characters;
/// anything shorter is found in innocent text too.
const SHORTEST_PIECE: usize = 8;
/// Everything but what RFC 3986 calls unreserved.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What a form leaves as it is differs by the tilde and the star.
const FORM: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*');
/// What browsers and reqwest encode in a query, which is less.
const QUERY: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'\'');

/// Replaces secret values by their names.
#[derive(Debug, Default)]
pub(crate) struct Redactor(RwLock<Hidden>);

#[derive(Default)]
struct Hidden {
    /// The values and what stands in their place.
    values: VecDeque<(String, String)>,
    needles: Vec<Needle>,
    finder: Option<AhoCorasick>,
}

struct Needle {
    text: String,
    shown: String,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hidden").field("values", &self.values.len()).finish_non_exhaustive()
    }
}

impl Redactor {
    /// From now on `value` is shown as `shown`. An empty value is no secret.
    pub(crate) fn hide(&self, value: &str, shown: &str) {
        let mut hidden = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if value.is_empty() || hidden.values.iter().any(|(known, _)| known == value) {
            return;
        }
        let mut alike =
            hidden.values.iter().enumerate().filter(|(_, (_, known))| known == shown).map(|(place, _)| place);
        let oldest_alike = alike.next();
        let old = if alike.count() + 1 >= MAX_ALIKE {
            oldest_alike
        } else {
            (hidden.values.len() >= MAX_VALUES).then_some(0)
        };
        if let Some(place) = old {
            hidden.values.remove(place);
        }
        hidden.values.push_back((value.to_owned(), shown.to_owned()));
        hidden.needles = hidden
            .values
            .iter()
            .flat_map(|(value, shown)| shapes(value).into_iter().map(|text| Needle { text, shown: shown.clone() }))
            .collect();
        hidden.finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            // The usual choice, a table for each state, takes kilobytes for each byte of a long key.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(hidden.needles.iter().map(|needle| &needle.text))
            .ok();
    }

    /// `text` without the values.
    pub(crate) fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.clean_start(text, text.len())
    }

    /// The first `max` bytes of `text` without the values. What lies behind them is looked at too, so that a value that
    /// crosses the border is not left behind by half.
    pub(crate) fn clean_start<'a>(&self, text: &'a str, max: usize) -> Cow<'a, str> {
        let max = text.floor_char_boundary(max);
        let hidden = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut cleaned = String::new();
        let mut done = 0;
        for found in hidden.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            if found.start() >= max {
                break;
            }
            cleaned.push_str(&text[done..found.start()]);
            cleaned.push_str(&hidden.needles[found.pattern()].shown);
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
    pub(crate) fn longest(&self) -> usize {
        let hidden = self.0.read().unwrap_or_else(PoisonError::into_inner);
        hidden.needles.iter().map(|needle| needle.text.len()).max().unwrap_or(0)
    }

    /// `value` without the values, in names too. A number that spells one becomes text.
    pub(crate) fn clean_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.clean(&text).into_owned()),
            Value::Array(items) => items.into_iter().map(|item| self.clean_value(item)).collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(name, value)| (self.clean(&name).into_owned(), self.clean_value(value)))
                .collect(),
            Value::Number(number) => {
                let text = number.to_string();
                match self.clean(&text) {
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
    shapes.extend(value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_PIECE).map(str::to_owned));
    for set in [COMPONENT, FORM, QUERY] {
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
            if middle.len() >= SHORTEST_PIECE {
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
pub(crate) struct Veil(pub(crate) Arc<Redactor>);

impl<'a> MakeWriter<'a> for Veil {
    type Writer = Veiled;

    fn make_writer(&'a self) -> Veiled {
        Veiled(self.0.clone())
    }
}

/// Standard error without secrets. An event comes in one piece, so none is cut in two.
pub(crate) struct Veiled(Arc<Redactor>);

impl Write for Veiled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        io::stderr().write_all(self.0.clean(&text).as_bytes())?;
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
    const SHOWN: &str = "{{secret:bird}}";

    fn redactor() -> Redactor {
        let redactor = Redactor::default();
        redactor.hide(CANARY, SHOWN);
        redactor
    }

    #[test]
    fn of_values_that_are_shown_alike_the_last_ones_are_hidden() {
        let redactor = Redactor::default();
        redactor.hide("the password", "[password]");
        let token = |n: usize| format!("token number {n:03}");
        for n in 0..=MAX_ALIKE {
            redactor.hide(&token(n), "[token]");
        }
        assert_eq!(redactor.clean(&token(0)), token(0).as_str(), "it has run out long ago");
        for n in 1..=MAX_ALIKE {
            assert_eq!(redactor.clean(&token(n)), "[token]");
        }
        assert_eq!(redactor.clean("the password"), "[password]");
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
        // The strictest set differs from COMPONENT in four marks, none of which is in the canary.
        for shape in shapes {
            let text = format!("before {shape} after");
            let cleaned = redactor.clean(&text);
            assert!(cleaned.contains(SHOWN), "{shape} is still in {cleaned}");
            assert!(!cleaned.contains("c4n4ry") && !cleaned.contains("Y0bjRyeS"), "{cleaned}");
            assert!(cleaned.starts_with("before ") && cleaned.ends_with(" after"), "{cleaned}");
        }
    }

    #[test]
    fn a_value_of_many_lines_is_found_line_by_line() {
        let redactor = Redactor::default();
        redactor.hide("-----BEGIN KEY-----\nMIIBOgIBAAJBAKj34GkxFhD9\nshort\n-----END KEY-----\n", SHOWN);
        assert_eq!(redactor.clean("line 2: MIIBOgIBAAJBAKj34GkxFhD9"), format!("line 2: {SHOWN}"));
        assert_eq!(redactor.clean("short"), "short");
    }

    #[test]
    fn what_names_a_value_is_not_taken_apart_by_another() {
        let redactor = redactor();
        redactor.hide("secret", "{{secret:silly}}");
        assert_eq!(redactor.clean(&format!("{CANARY} secret")), "{{secret:bird}} {{secret:silly}}");
    }

    #[test]
    fn a_value_across_the_border_does_not_stay_by_half() {
        let redactor = redactor();
        let text = format!("0123456789{CANARY} and more");
        assert_eq!(redactor.clean_start(&text, 14), format!("0123456789{SHOWN}"));
        assert_eq!(redactor.clean_start(&text, 10), "0123456789");
        assert_eq!(redactor.clean_start("Wörld", 2), "W");
    }

    #[test]
    fn json_is_cleaned_in_names_texts_and_numbers() {
        let redactor = redactor();
        redactor.hide("4711", "{{secret:pin}}");
        let cleaned = redactor.clean_value(json!({CANARY: [CANARY, 4711, 4712, true, null]}));
        assert_eq!(cleaned, json!({SHOWN: [SHOWN, "{{secret:pin}}", 4712, true, null]}));
    }

    #[test]
    fn the_oldest_value_is_given_up_when_there_are_too_many() {
        let redactor = Redactor::default();
        redactor.hide("first-value", "x");
        // Put in place without building the finder a thousand times.
        redactor
            .0
            .write()
            .expect("free")
            .values
            .extend((1..MAX_VALUES).map(|n| (format!("value-{n}"), "y".to_owned())));
        redactor.hide("last-value", "z");
        assert_eq!(redactor.clean("first-value last-value"), "first-value z");
    }
}
