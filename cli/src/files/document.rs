//! The documents of a YAML file, with the lines of their fields.
//!
//! A file comes from a repository, and perhaps from a stranger's pull request: the parser stops at a number of nodes, of
//! aliases and of levels, so that a small file cannot become gigabytes of memory.
//!
//! Values have the types of the core schema of YAML 1.2, in which `NO`, `off` and `1_000` are texts. A number that would be
//! stored in another spelling is refused with its line, because it may be a code of which each digit counts: `01234` would
//! become 1234, `3.10` would become 3.1, and a long id would be rounded.

use std::{collections::HashMap, fmt};

use milvaion_api::rest::{
    DocumentKind,
    files::{MAX_DOCUMENTS, MAX_FILES_BYTES},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, Spanned};

/// The maximum number of values in a file.
const MAX_NODES: usize = 500_000;
/// The maximum number of aliases in a file.
const MAX_ALIASES: usize = 1_000;
/// The maximum number of values that aliases add to a file.
const MAX_ALIAS_EVENTS: usize = 100_000;
/// The maximum number of levels.
const MAX_DEPTH: usize = 64;
/// The maximum number of refused numbers of a document that are reported at once.
const MAX_REFUSED_NUMBERS: usize = 20;

/// A file with its documents.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedFile {
    /// The name: the path as it was given.
    pub(super) name: String,
    /// The documents. Empty ones are left out.
    pub(super) documents: Vec<ParsedDocument>,
}

/// A document with the lines of its fields.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedDocument {
    /// The content.
    pub(super) value: Value,
    /// The lines of the fields, by their paths: names joined by dots.
    lines: HashMap<String, u64>,
}

impl ParsedFile {
    /// Parses a file.
    ///
    /// # Errors
    ///
    /// Returns messages with the places of the errors.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_documents: MAX_DOCUMENTS,
                max_nodes: MAX_NODES,
                max_events: 3 * MAX_NODES,
                max_aliases: MAX_ALIASES,
                max_depth: MAX_DEPTH,
                max_total_scalar_bytes: MAX_FILES_BYTES,
            },
            alias_limits: serde_saphyr::alias_limits! {
                max_total_replayed_events: MAX_ALIAS_EVENTS,
            },
            strict_booleans: true,
            underscored_numbers_as_strings: true,
            reject_unsupported_tags: true,
            with_snippet: false,
        };
        let parsed: Vec<Spanned<Node>> = serde_saphyr::from_multiple_with_options(text, options)
            .map_err(|error| syntax_error(name, text, error.without_snippet()))?;
        let (documents, refused): (Vec<_>, Vec<_>) =
            parsed.into_iter().map(|node| ParsedDocument::new(node, text)).unzip();
        let file = Self { name: name.to_owned(), documents };
        let mut errors = Vec::new();
        for (index, numbers) in refused.iter().enumerate() {
            errors.extend(numbers.iter().map(|(field, message)| file.describe(index, field, message)));
        }
        if !errors.is_empty() {
            return Err(errors.join("\n"));
        }
        for (index, document) in file.documents.iter().enumerate() {
            let kind = document.value.get("kind").and_then(Value::as_str);
            let kinds = DocumentKind::ALL.map(DocumentKind::as_str);
            if kind.is_none_or(|kind| !kinds.contains(&kind)) {
                let message = format!("must be one of {}", kinds.join(", "));
                return Err(file.describe(index, "kind", &message));
            }
        }
        Ok(file)
    }

    /// Describes an error of a field of a document, with its line.
    pub(super) fn describe(&self, index: usize, field: &str, message: &str) -> String {
        let document = self.documents.get(index);
        let line = document.and_then(|document| document.line_of(field));
        let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
        let identity = document.and_then(|document| {
            let name = document.value.get("key").or_else(|| document.value.get("name"));
            name.and_then(Value::as_str).map(|name| format!(" ({name})"))
        });
        let field = if field.is_empty() { String::new() } else { format!("{field} ") };
        format!("{}, document {}{}{line}: {field}{message}", self.name, index + 1, identity.unwrap_or_default())
    }
}

impl ParsedDocument {
    /// Converts a document of the file `text`. Also returns the fields with refused numbers, each with a message.
    fn new(node: Spanned<Node>, text: &str) -> (Self, Vec<(String, String)>) {
        let mut conversion = YamlConversion { text, lines: HashMap::new(), refused: Vec::new() };
        let value = conversion.convert(node, "");
        (Self { value, lines: conversion.lines }, conversion.refused)
    }

    /// Returns the line of a field, or of the nearest field around it.
    fn line_of(&self, field: &str) -> Option<u64> {
        let mut path = field;
        loop {
            if let Some(line) = self.lines.get(path) {
                return Some(*line);
            }
            path = match path.rsplit_once('.') {
                Some((around, _)) => around,
                None if path.is_empty() => return None,
                None => "",
            };
        }
    }
}

/// A YAML value whose parts know their places.
#[derive(Debug)]
enum Node {
    Scalar(Value),
    Items(Vec<Spanned<Node>>),
    Fields(Vec<(String, Spanned<Node>)>),
}

/// The conversion of a document to JSON.
struct YamlConversion<'a> {
    /// The text of the file.
    text: &'a str,
    lines: HashMap<String, u64>,
    /// The fields with refused numbers, each with a message.
    refused: Vec<(String, String)>,
}

impl YamlConversion<'_> {
    fn convert(&mut self, node: Spanned<Node>, path: &str) -> Value {
        let line = node.referenced.line();
        if line > 0 {
            self.lines.insert(path.to_owned(), line);
        }
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match node.value {
            Node::Scalar(value) => {
                if let Value::Number(number) = &value {
                    self.check_number(number, node.defined, path);
                }
                value
            }
            Node::Items(items) => {
                let items = items.into_iter().enumerate();
                items.map(|(index, item)| self.convert(item, &below(&index.to_string()))).collect::<Vec<_>>().into()
            }
            Node::Fields(fields) => {
                let fields = fields.into_iter().map(|(name, field)| {
                    let value = self.convert(field, &below(&name));
                    (name, value)
                });
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }

    /// Refuses a number that would be stored in another spelling than it has at `place`, or than an export gives it.
    fn check_number(&mut self, number: &Number, place: Location, path: &str) {
        let written = spelling(self.text, place).unwrap_or_default();
        let stored = number.to_string();
        let is_exported = || serde_saphyr::to_string(number).is_ok_and(|exported| exported.trim_end() == written);
        if written != stored && !is_exported() && self.refused.len() < MAX_REFUSED_NUMBERS {
            let message = format!(
                "is {written:.40}, which would be stored as {stored}: write that, or put it in quotation marks to keep it as text"
            );
            self.refused.push((path.to_owned(), message));
        }
    }
}

/// Describes an error of the parser. Two mistakes that the parser words for programmers get a remedy.
fn syntax_error(name: &str, text: &str, error: &serde_saphyr::Error) -> String {
    if let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), location } = error {
        return format!("{name}, line {}: the field {key} is given twice: remove one of them", location.line());
    }
    let line = error.location().and_then(|location| usize::try_from(location.line()).ok()?.checked_sub(1));
    let line = line.and_then(|line| text.lines().nth(line)).unwrap_or_default().trim_start().trim_start_matches("- ");
    let value = line.split_once(": ").map_or(line, |(_, value)| value).trim_start();
    let remedy = if value.starts_with('*') {
        "; a value that begins with * refers to an anchor: put a cron expression in quotation marks, such as \"*/5 * * * *\""
    } else {
        ""
    };
    format!("{name} is not valid YAML: {error}{remedy}")
}

/// Returns the text of a value in its file.
fn spelling(text: &str, place: Location) -> Option<&str> {
    let span = place.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let length = usize::try_from(span.byte_len()?).ok()?;
    text.get(start..start.checked_add(length)?)
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Node, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number must be finite: write it as text"))?;
        Ok(Node::Scalar(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = items.next_element()? {
            nodes.push(node);
        }
        Ok(Node::Items(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(field) = fields.next_entry::<String, Spanned<Node>>()? {
            nodes.push(field);
        }
        Ok(Node::Fields(nodes))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TWO: &str = "# jobs\nkind: Job\nkey: a\nrules:\n  maxRetries: 3\ntags: [x, 2026-01-01]\n---\n---\nkind: Calendar\nname: Holidays\nwindows:\n  - weekday: 1\n    from: 22:00:00\n";

    #[test]
    fn documents_keep_their_lines() {
        let file = ParsedFile::parse("a.yaml", TWO).expect("valid YAML");
        assert_eq!(file.documents.len(), 2, "an empty document is none");
        assert_eq!(file.documents[0].value["tags"], json!(["x", "2026-01-01"]), "a day is text");
        assert_eq!(file.documents[1].value["windows"][0]["from"], json!("22:00:00"), "a time is text");
        assert_eq!(
            file.describe(0, "rules.maxRetries", "is wrong"),
            "a.yaml, document 1 (a), line 5: rules.maxRetries is wrong"
        );
        assert_eq!(
            file.describe(1, "windows.0.to", "is missing"),
            "a.yaml, document 2 (Holidays), line 12: windows.0.to is missing"
        );
    }

    #[test]
    fn invalid_file_is_refused_with_its_place() {
        let error = |text: &str| ParsedFile::parse("a.yaml", text).expect_err("invalid");
        assert!(error("kind: Job\nkey: [a\n").contains("a.yaml is not valid YAML: "));
        assert!(error("kind: Job\nkey: [a\n").contains("line"), "{}", error("kind: Job\nkey: [a\n"));
        assert_eq!(
            error("kind: Job\nkind: Job\n"),
            "a.yaml, line 2: the field kind is given twice: remove one of them"
        );
        for expression in ["*", "* * * * *", "*/5 * * * *", "*/5"] {
            let error = error(&format!("kind: Job\nkey: a\nschedule:\n  kind: cron\n  expression: {expression}\n"));
            assert!(error.contains("line 5") && error.contains("put a cron expression in quotation marks"), "{error}");
        }
        assert_eq!(error("kind: Pod\n"), "a.yaml, document 1, line 1: kind must be one of Job, Calendar, AlertRule");
        assert!(error("just text").contains("document 1, line 1: kind must be"));
        assert!(error("kind: Job\nkey: .nan\n").contains("a.yaml is not valid YAML"));
    }

    #[test]
    fn values_have_the_types_of_the_core_schema() {
        let text =
            "kind: Job\nkey: a\njobData: {country: NO, y: y, off: off, n: 1_000, ok: true, none: ~, at: 12:30:45}\n";
        let file = ParsedFile::parse("a.yaml", text).expect("valid YAML");
        let expected = json!({
            "country": "NO", "y": "y", "off": "off", "n": "1_000", "ok": true, "none": null, "at": "12:30:45",
        });
        assert_eq!(file.documents[0].value["jobData"], expected);
        assert!(ParsedFile::parse("a.yaml", "kind: Job\nkey: !env KEY\n").is_err(), "a tag without a meaning");
    }

    #[test]
    fn number_that_would_be_stored_in_another_spelling_is_refused() {
        let numbers =
            ["01234", "007", "01443e5", "1443e53", "18446744073709551616", "3.10", "+48", "0x1F", "0o17", "-0", ".5"];
        for number in numbers {
            let file = |input: &str| format!("kind: Job\nkey: a\njobData:\n  é: é\n  n: [{input}]\n");
            let error = ParsedFile::parse("a.yaml", &file(number)).expect_err(number);
            let start = "a.yaml, document 1 (a), line 5: jobData.n.0 is";
            assert!(error.starts_with(&format!("{start} {number}, which would be stored as ")), "{error}");
            let quoted = ParsedFile::parse("a.yaml", &file(&format!("\"{number}\""))).expect("valid YAML");
            assert_eq!(quoted.documents[0].value["jobData"]["n"][0], json!(number));
        }
        let two = ParsedFile::parse("a.yaml", "kind: Job\nkey: 007\npriority: 03\n").expect_err("refused");
        assert_eq!(two.lines().count(), 2, "{two}");
    }

    #[test]
    fn number_is_kept_as_it_is_written() {
        let numbers = ["0", "7", "-12", "1.5", "1.0", "-0.0", "18446744073709551615", "-9223372036854775808"];
        let exported = [1e21, -1e-7, 123_456.789, f64::MAX, f64::MIN_POSITIVE];
        let exported = exported.map(|number| serde_saphyr::to_string(&number).expect("YAML").trim_end().to_owned());
        for number in numbers.map(str::to_owned).into_iter().chain(exported) {
            let text = format!("kind: Job\nkey: a\njobData:\n  n: &n {number}\n  again: *n\n");
            let file = ParsedFile::parse("a.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
            let input = &file.documents[0].value["jobData"];
            assert_eq!(input["n"].to_string().parse::<f64>(), number.parse::<f64>());
            assert_eq!(input["n"], input["again"]);
        }
    }

    #[test]
    fn alias_bomb_is_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert!(ParsedFile::parse("a.yaml", &bomb).is_err());
        let deep = "[".repeat(100_000);
        assert!(ParsedFile::parse("a.yaml", &deep).is_err());
    }
}
