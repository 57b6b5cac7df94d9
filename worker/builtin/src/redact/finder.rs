//! Finds the encodings of secret values in a text.
//!
//! One pass of an automaton finds whole patterns. Base64 is often broken into lines, at columns that depend on what precedes
//! the value, so a second pass ignores line breaks. The output of a program is searched line by line, so a third pass finds
//! single lines of broken base64: it searches for short parts of it and extends each match as far as the text continues like
//! the base64 of the value. Of overlapping matches, the leftmost and then the longest counts.
//!
//! The automaton of a pass is large for a large value, so it is built when a text is searched, and runs with the same secrets
//! share it.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::prelude::*;
use hashlink::LruCache;

use super::{
    LabelledValues,
    encodings::{MIN_PATTERN_CHARS, base64_middles, encodings, parts_of},
};

/// Number of sets of secrets whose automata are kept for further runs.
const CACHED_FINDERS: usize = 16;
/// Maximum number of values in such a set. The process's own set is larger and changes all the time.
const MAX_CACHED_VALUES: usize = 60;
/// Finds the encodings of some values.
#[derive(Default)]
pub(super) struct SecretFinder {
    pub(super) patterns: Vec<SecretPattern>,
    automaton: Option<AhoCorasick>,
    /// The parts of base64 texts, each with the pattern that has the whole text and with its offset in it.
    base64_parts: Vec<(usize, usize)>,
    part_automaton: Option<AhoCorasick>,
}

/// A value in a text.
#[derive(Clone, Copy)]
pub(super) struct FoundSecret {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) pattern: usize,
}

pub(super) struct SecretPattern {
    pub(super) text: String,
    pub(super) shown: String,
}

impl SecretFinder {
    /// Returns the finder of some values, which may be one that an earlier run has built.
    pub(super) fn of(values: &LabelledValues) -> Arc<Self> {
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
    pub(super) fn find(&self, text: &str) -> Vec<FoundSecret> {
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

/// Returns true if a line ends before or after a match, also in the notation of JSON. The line may be indented.
fn is_at_line_break(before: &str, after: &str) -> bool {
    let before = before.trim_end_matches([' ', '\t']);
    before.is_empty()
        || before.ends_with(['\n', '\r', '\\'])
        || before.ends_with("\\n")
        || after.is_empty()
        || after.starts_with(['\n', '\r', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_the_same_secrets_share_one_finder() {
        let of = |values: &[&str]| {
            let labelled = |value: &&str| ((*value).to_owned(), "{{secret:bird}}".to_owned());
            SecretFinder::of(&values.iter().map(labelled).collect())
        };
        let first = of(&["shared-secret", "another-secret"]);
        assert!(Arc::ptr_eq(&first, &of(&["shared-secret", "another-secret"])));
        assert!(!Arc::ptr_eq(&first, &of(&["shared-secret"])));
    }
}
