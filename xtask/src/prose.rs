//! The language of comments, names and documents, measured.
//!
//! The rules for names and sentences are in `CONTRIBUTING.md`. Most of them need a reader, but five can be counted, and
//! a limit on these five slows the decline of the others. Each limit is a value that comparable projects keep, a little
//! above the value of this project today: a limit that every change nearly exceeds would be raised rather than obeyed.

use std::{fmt, path::Path, sync::LazyLock};

use anyhow::{Result, bail};
use regex::Regex;

use crate::files;

/// A doc comment that starts with one of these words describes a question, not the item.
static OPENER: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)^(what|how|whether|who|whom|whose|where|when|which|that|as|of)\b"));
/// Words for people. A process, a message or a row is a thing.
static PEOPLE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\b(somebody|nobody|anybody|everybody|whoever|whom|someone else's)\b"));
/// The marker of a comment line, and its text.
static COMMENT: LazyLock<Regex> = LazyLock::new(|| regex(r"^(///|//!|//) ?(.*)$"));
/// A declared type.
static TYPE: LazyLock<Regex> = LazyLock::new(|| regex(r"^(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait) ([A-Z]\w*)"));
/// A type's name of more than one word.
static QUALIFIED: LazyLock<Regex> = LazyLock::new(|| regex(r"[a-z0-9][A-Z]"));
/// A declared function.
static FUNCTION: LazyLock<Regex> = LazyLock::new(|| regex(r"^(?:pub )?(?:async )?fn (\w+)"));
/// The attribute of a test.
static TEST: LazyLock<Regex> = LazyLock::new(|| regex(r"#\[(?:\w+::)?test\b"));

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

/// The counts of all files read so far.
#[derive(Debug, Default)]
struct ProseCounts {
    doc_comments: usize,
    openers: usize,
    comment_lines: usize,
    people_in_comments: usize,
    types: usize,
    bare_types: usize,
    test_names: Vec<usize>,
    markdown_lines: usize,
    people_in_markdown: usize,
    /// The lines that were counted against a limit, as `path:line: text`.
    findings: Vec<(Measure, String)>,
}

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Openers,
    People,
    TestNames,
    BareTypes,
    Markdown,
}

impl Measure {
    const ALL: [Self; 5] = [Self::Openers, Self::People, Self::TestNames, Self::BareTypes, Self::Markdown];

    /// The highest value that passes.
    const fn limit(self) -> f64 {
        match self {
            Self::Openers => 1.0,
            Self::People => 0.5,
            Self::TestNames => 52.0,
            Self::BareTypes => 10.0,
            Self::Markdown => 0.5,
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Openers => "% of the doc comments open with a question word",
            Self::People => "words for people in 1,000 comment lines",
            Self::TestNames => "characters in a test's name, 90th percentile",
            Self::BareTypes => "% of the types are named with one word",
            Self::Markdown => "words for people in 1,000 lines of Markdown",
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.unit())
    }
}

/// Measures every Rust and Markdown file of the repository.
///
/// # Errors
/// Returns an error if a file cannot be read, or a measure is above its limit. The message lists the lines that count.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut counts = ProseCounts::default();
    for path in files::tracked(root)? {
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        let is_markdown = path.extension().is_some_and(|extension| extension == "md");
        if is_rust || is_markdown {
            let text = files::read(&root.join(&path))?;
            let name = path.display().to_string();
            if is_rust { counts.add_rust(&name, &text) } else { counts.add_markdown(&name, &text) }
        }
    }
    let mut failed = Vec::new();
    for measure in Measure::ALL {
        let value = counts.value(measure);
        println!("prose: {value:.1} {measure} (limit {})", measure.limit());
        if value > measure.limit() {
            let lines =
                counts.findings.iter().filter(|(of, _)| *of == measure).map(|(_, line)| format!("\n    {line}"));
            failed.push(format!("{value:.1} {measure}, more than {}:{}", measure.limit(), lines.collect::<String>()));
        }
    }
    if !failed.is_empty() {
        bail!("the language rules of CONTRIBUTING.md are broken\n  {}", failed.join("\n  "));
    }
    Ok(())
}

impl ProseCounts {
    fn add_rust(&mut self, path: &str, text: &str) {
        let counts_types = path.contains("src/");
        let mut previous = "";
        for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
            if let Some(comment) = COMMENT.captures(line) {
                let (marker, words) = (&comment[1], &comment[2]);
                self.comment_lines += 1;
                let people = PEOPLE.find_iter(words).count();
                self.people_in_comments += people;
                if people > 0 {
                    self.findings.push((Measure::People, format!("{path}:{number}: {line}")));
                }
                if marker != "//" && !previous.starts_with(marker) {
                    self.doc_comments += 1;
                    if OPENER.is_match(words) {
                        self.openers += 1;
                        self.findings.push((Measure::Openers, format!("{path}:{number}: {line}")));
                    }
                }
            }
            if counts_types && let Some(name) = TYPE.captures(line) {
                self.types += 1;
                if !QUALIFIED.is_match(&name[1]) {
                    self.bare_types += 1;
                    self.findings.push((Measure::BareTypes, format!("{path}:{number}: {}", &name[1])));
                }
            }
            if TEST.is_match(previous)
                && let Some(name) = FUNCTION.captures(line)
            {
                self.test_names.push(name[1].len());
                if name[1].len() as f64 > Measure::TestNames.limit() {
                    self.findings.push((Measure::TestNames, format!("{path}:{number}: {}", &name[1])));
                }
            }
            previous = line;
        }
    }

    fn add_markdown(&mut self, path: &str, text: &str) {
        for (index, line) in text.lines().enumerate() {
            self.markdown_lines += 1;
            let people = PEOPLE.find_iter(line).count();
            self.people_in_markdown += people;
            if people > 0 {
                self.findings.push((Measure::Markdown, format!("{path}:{}: {line}", index + 1)));
            }
        }
    }

    fn value(&self, measure: Measure) -> f64 {
        let ratio = |part: usize, whole: usize, scale: f64| part as f64 * scale / whole.max(1) as f64;
        match measure {
            Measure::Openers => ratio(self.openers, self.doc_comments, 100.0),
            Measure::People => ratio(self.people_in_comments, self.comment_lines, 1_000.0),
            Measure::TestNames => {
                let mut lengths = self.test_names.clone();
                lengths.sort_unstable();
                lengths.get(lengths.len() * 9 / 10).copied().unwrap_or_default() as f64
            }
            Measure::BareTypes => ratio(self.bare_types, self.types, 100.0),
            Measure::Markdown => ratio(self.people_in_markdown, self.markdown_lines, 1_000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> ProseCounts {
        let mut counts = ProseCounts::default();
        counts.add_rust("server/src/lib.rs", text);
        counts
    }

    #[test]
    fn question_word_openers_are_counted_once_per_comment() {
        let counts =
            counts("/// How long a claim is held.\n/// What is more is cut.\nfn a() {}\n/// Returns it.\nfn b() {}\n");
        assert_eq!((counts.openers, counts.doc_comments, counts.comment_lines), (1, 2, 3));
    }

    #[test]
    fn people_words_are_counted_in_comments_only() {
        let word = ["some", "body"].concat();
        let counts = counts(&format!("// {word} reads this\nlet a = \"{word}\";\n"));
        assert_eq!((counts.people_in_comments, counts.findings.len()), (1, 1));
    }

    #[test]
    fn bare_type_names_are_counted_in_sources_only() {
        let mut counts = counts("pub struct Lease;\npub(crate) enum LeaseStatus {}\n");
        counts.add_rust("server/tests/it/main.rs", "struct Bench;\n");
        assert_eq!((counts.bare_types, counts.types), (1, 2));
    }

    #[test]
    fn test_name_lengths_are_taken_after_the_attribute() {
        let counts = counts("#[tokio::test]\nasync fn abc() {}\n#[test]\nfn abcdef() {}\nfn helper_function() {}\n");
        assert_eq!(counts.test_names, [3, 6]);
    }
}
