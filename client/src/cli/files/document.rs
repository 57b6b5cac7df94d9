//! The documents of a YAML file, with the lines of their fields.
//!
//! A file comes from a repository, and perhaps from a stranger's pull request: the parser stops at a number of nodes, of
//! aliases and of levels, so that a small file cannot become gigabytes of memory.

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
use serde_saphyr::Spanned;

/// The maximum number of values in a file.
const MAX_NODES: usize = 500_000;
/// The maximum number of aliases in a file.
const MAX_ALIASES: usize = 1_000;
/// The maximum number of values that aliases add to a file.
const MAX_ALIAS_EVENTS: usize = 100_000;
/// The maximum number of levels.
const MAX_DEPTH: usize = 64;

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
    /// Returns a message with the place of the error.
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
            with_snippet: false,
        };
        let parsed: Vec<Spanned<Node>> = serde_saphyr::from_multiple_with_options(text, options)
            .map_err(|error| format!("{name} is not valid YAML: {}", error.without_snippet()))?;
        let documents = parsed.into_iter().map(ParsedDocument::new).collect();
        let file = Self { name: name.to_owned(), documents };
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
    fn new(node: Spanned<Node>) -> Self {
        let mut lines = HashMap::new();
        let value = convert(node, "", &mut lines);
        Self { value, lines }
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

fn convert(node: Spanned<Node>, path: &str, lines: &mut HashMap<String, u64>) -> Value {
    let line = node.referenced.line();
    if line > 0 {
        lines.insert(path.to_owned(), line);
    }
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match node.value {
        Node::Scalar(value) => value,
        Node::Items(items) => {
            let items = items.into_iter().enumerate();
            items.map(|(index, item)| convert(item, &below(&index.to_string()), lines)).collect::<Vec<_>>().into()
        }
        Node::Fields(fields) => {
            let fields = fields.into_iter().map(|(name, field)| {
                let value = convert(field, &below(&name), lines);
                (name, value)
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
    }
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
        assert!(error("kind: Job\nkind: Job\n").contains("line 2"), "{}", error("kind: Job\nkind: Job\n"));
        assert_eq!(error("kind: Pod\n"), "a.yaml, document 1, line 1: kind must be one of Job, Calendar, AlertRule");
        assert!(error("just text").contains("document 1, line 1: kind must be"));
        assert!(error("kind: Job\nkey: .nan\n").contains("a.yaml is not valid YAML"));
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
