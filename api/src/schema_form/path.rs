//! The keys of the typed text.
//!
//! A path is a JSON pointer without its first slash. The properties of a union's variant have the path of the union
//! itself, so that fields of the same name keep their text when another variant is chosen. A tilde starts a mark, since
//! the tildes of property names are escaped: `~v` is the variant of a union, `~s` the value of a variant that is no
//! object, `~k` the name of a map's row, `~i` a row that exists although it may be empty, and `~x` the properties that no
//! field shows.

use std::collections::BTreeMap;

/// Returns the path of a property.
#[must_use]
pub fn child(path: &str, name: &str) -> String {
    let name = name.replace('~', "~0").replace('/', "~1").replace('[', "~2").replace(']', "~3");
    if path.is_empty() { name } else { format!("{path}/{name}") }
}

/// Returns the path of row `index` of a list or map.
#[must_use]
pub fn row(path: &str, index: usize) -> String {
    format!("{path}/{index}")
}

/// Returns the key of the chosen variant of a union.
#[must_use]
pub fn variant(path: &str) -> String {
    format!("{path}~v")
}

/// Returns the path of the value of a variant that is no object.
#[must_use]
pub fn scalar(path: &str) -> String {
    format!("{path}~s")
}

/// Returns the key of the name of a map's row.
#[must_use]
pub fn key(row: &str) -> String {
    format!("{row}~k")
}

/// Returns the key that marks a row as existing.
#[must_use]
pub fn mark(row: &str) -> String {
    format!("{row}~i")
}

/// Returns the key of the properties that no field shows.
#[must_use]
pub fn others(path: &str) -> String {
    format!("{path}~x")
}

/// Returns the rest of `key` after `path`, if it belongs to it: empty, or starting with `/` or `~`.
fn rest<'a>(key: &'a str, path: &str) -> Option<&'a str> {
    key.strip_prefix(path).filter(|rest| rest.is_empty() || rest.starts_with(['/', '~']))
}

/// Returns true if a text below `path` is not blank.
#[must_use]
pub fn has_text(typed: &BTreeMap<String, String>, path: &str) -> bool {
    typed
        .range(path.to_owned()..)
        .take_while(|(key, _)| key.starts_with(path))
        .any(|(key, text)| rest(key, path).is_some() && !text.trim().is_empty())
}

/// Returns the indexes of the rows that exist: those with a mark or a text.
#[must_use]
pub fn rows(typed: &BTreeMap<String, String>, path: &str) -> Vec<usize> {
    let prefix = format!("{path}/");
    let mut found: Vec<usize> = typed
        .range(prefix.clone()..)
        .take_while(|(key, _)| key.starts_with(&prefix))
        .filter(|(_, text)| !text.trim().is_empty())
        .filter_map(|(key, _)| key[prefix.len()..].split(['/', '~']).next()?.parse().ok())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns true if the structure differs from the one that is drawn: another variant, or a text in a row without a mark.
#[must_use]
pub fn is_restructured(drawn: &BTreeMap<String, String>, typed: &BTreeMap<String, String>) -> bool {
    typed.iter().any(|(key, text)| {
        let is_new = drawn.get(key).map_or("", String::as_str) != text;
        is_new && (key.ends_with("~v") || (!text.trim().is_empty() && is_in_unmarked_row(typed, key)))
    })
}

fn is_in_unmarked_row(typed: &BTreeMap<String, String>, key: &str) -> bool {
    key.match_indices('/').any(|(slash, _)| {
        let start = slash + 1;
        let end = key[start..].find(['/', '~']).map_or(key.len(), |length| start + length);
        key[start..end].parse::<usize>().is_ok() && !typed.contains_key(&mark(&key[..end]))
    })
}

/// Adds an empty row after the last one and returns its index.
pub fn add_row(typed: &mut BTreeMap<String, String>, path: &str) -> usize {
    let index = rows(typed, path).last().map_or(0, |last| last + 1);
    // The row for pages without scripts may have left empty texts at this index.
    clear(typed, &row(path, index));
    typed.insert(mark(&row(path, index)), "1".into());
    index
}

/// Removes a row. The following rows move up.
pub fn remove_row(typed: &mut BTreeMap<String, String>, path: &str, index: usize) {
    clear(typed, &row(path, index));
    for next in rows(typed, path).into_iter().filter(|next| *next > index) {
        rename(typed, &row(path, next), &row(path, next - 1));
    }
}

/// Exchanges two rows.
pub fn swap_rows(typed: &mut BTreeMap<String, String>, path: &str, one: usize, other: usize) {
    let (one, other) = (row(path, one), row(path, other));
    let aside = format!("{path}~t");
    rename(typed, &one, &aside);
    rename(typed, &other, &one);
    rename(typed, &aside, &other);
}

/// Removes all texts of `path` and below it.
pub(super) fn clear(typed: &mut BTreeMap<String, String>, path: &str) {
    typed.retain(|key, _| rest(key, path).is_none());
}

fn rename(typed: &mut BTreeMap<String, String>, from: &str, to: &str) {
    clear(typed, to);
    let keys: Vec<String> = typed.keys().filter(|key| rest(key, from).is_some()).cloned().collect();
    for key in keys {
        if let Some(text) = typed.remove(&key) {
            typed.insert(format!("{to}{}", &key[from.len()..]), text);
        }
    }
}
