//! The tables of `docs/configuration.md`, generated from the configuration structs.
//!
//! The documentation of each field names its environment variable, its bounds and its default in fixed phrases:
//! `` `PORT`: port to listen on. From 1 to 65,535. Default none. `` This task turns these paragraphs into tables, so
//! the page cannot drift from the code. Two things could still be wrong, and are checked: a variable that is read and
//! not documented, and a documented bound or default that differs from the one in the call that reads the number.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

use crate::files;

/// The page with the tables.
const PAGE: &str = "docs/configuration.md";

/// The tables by the name in their marker, with the files they are generated from.
const TABLES: [(&str, &[&str]); 3] = [
    (
        "server",
        &[
            "server/src/config/mod.rs",
            "server/src/config/database.rs",
            "server/src/config/cache.rs",
            "server/src/config/broker.rs",
            "server/src/config/http.rs",
            "server/src/config/background.rs",
            "server/src/config/lost_runs.rs",
            "server/src/config/alerts.rs",
            "server/src/config/metrics.rs",
            "server/src/config/retention.rs",
            "server/src/telemetry.rs",
        ],
    ),
    ("worker", &["worker/src/api/config.rs"]),
    ("builtin", &["worker/builtin/src/settings.rs"]),
];

/// Variables that are read and are no settings: the machine's own, and those of the fault suite.
const NOT_SETTINGS: [&str; 4] = ["FAILPOINTS", "HOSTNAME", "PATH", "DATABASE_URL_"];

/// A documented environment variable.
#[derive(Debug, PartialEq, Eq)]
struct SettingRow {
    name: String,
    meaning: String,
    bounds: String,
    default: String,
}

/// Writes the tables into the page.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or the code and its documentation disagree.
pub(crate) fn write(root: &Path) -> Result<()> {
    let (old, new) = generate(root)?;
    if old != new {
        files::write(&root.join(PAGE), &new)?;
    }
    println!("settings: {PAGE} {}", if old == new { "is up to date" } else { "was written" });
    Ok(())
}

/// Checks that the page has the tables that [`write()`] would write.
///
/// # Errors
/// Returns the errors of [`write()`], and an error if the page is out of date.
pub(crate) fn check(root: &Path) -> Result<()> {
    let (old, new) = generate(root)?;
    ensure!(old == new, "{PAGE} is out of date: run `cargo xtask settings` and commit the result");
    println!("settings: {PAGE} is up to date");
    Ok(())
}

/// Returns the current page and the page with generated tables.
fn generate(root: &Path) -> Result<(String, String)> {
    let old = files::read(&root.join(PAGE))?;
    let mut new = old.clone();
    let mut problems = Vec::new();
    for (table, sources) in TABLES {
        let mut rows: BTreeMap<String, SettingRow> = BTreeMap::new();
        let mut order = Vec::new();
        let mut code = String::new();
        for source in sources {
            let text = files::read(&root.join(source))?;
            for row in documented(&text) {
                if !rows.contains_key(&row.name) {
                    order.push(row.name.clone());
                    rows.insert(row.name.clone(), row);
                }
            }
            code.push_str(text.split("#[cfg(test)]").next().unwrap_or_default());
        }
        ensure!(!rows.is_empty(), "no setting of the {table} is documented: have its files moved?");
        problems.extend(disagreements(&code, &rows));
        let lines: Vec<String> = order.iter().map(|name| rows[name].markdown()).collect();
        let body = format!("| Variable | Meaning | Bounds | Default |\n|---|---|---|---|\n{}\n", lines.join("\n"));
        new = replace_between(&new, table, &body)?;
    }
    if !problems.is_empty() {
        bail!("the code and the documentation of settings disagree\n  {}", problems.join("\n  "));
    }
    Ok((old, new))
}

impl SettingRow {
    fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        format!("| `{}` | {} | {} | {} |", self.name, cell(&self.meaning), cell(&self.bounds), cell(&self.default))
    }
}

/// Returns the variables that the documentation comments of a file describe, in their order.
fn documented(text: &str) -> Vec<SettingRow> {
    let start = Regex::new(r"^`([A-Z][A-Z0-9_…]+)`: (.+)$").expect("the pattern is valid");
    let bounds = Regex::new(r" From ([^.]+?) to ([^.]+?)\.(?: |$)").expect("the pattern is valid");
    // A default may hold dots; it ends the paragraph.
    let default = Regex::new(r" Default:? (.+?)\.?$").expect("the pattern is valid");
    let link = Regex::new(r"\[([^\]]+)\]\([^)]*\)|\[(`[^\]]+`)\]").expect("the pattern is valid");
    paragraphs(text)
        .into_iter()
        .filter_map(|paragraph| {
            let found = start.captures(&paragraph)?;
            let mut meaning = format!(" {}", link.replace_all(&found[2], "$1$2"));
            let mut take = |pattern: &Regex, render: &dyn Fn(&regex::Captures<'_>) -> String| {
                let found =
                    pattern.captures(&meaning).map(|part| (part.get(0).map(|whole| whole.range()), render(&part)));
                let Some((Some(range), value)) = found else { return String::new() };
                meaning.replace_range(range, " ");
                value
            };
            let default = take(&default, &|part| part[1].to_owned());
            let bounds = take(&bounds, &|part| format!("{} to {}", &part[1], &part[2]));
            let meaning = capitalized(meaning.trim());
            Some(SettingRow { name: found[1].to_owned(), meaning, bounds, default })
        })
        .collect()
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Returns each paragraph of the documentation comments as one line.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("///").map(str::trim) {
            Some(words) if !words.is_empty() => {
                if let Some(last) = found.last_mut() {
                    if !last.is_empty() {
                        last.push(' ');
                    }
                    last.push_str(words);
                }
            }
            _ => found.push(String::new()),
        }
    }
    found.retain(|paragraph| !paragraph.is_empty());
    found
}

/// Compares what the code reads with what is documented.
fn disagreements(code: &str, rows: &BTreeMap<String, SettingRow>) -> Vec<String> {
    let mut problems = Vec::new();
    let reads = Regex::new(
        r#"(?:read\.text|read\.number|read|env::var|env::var_os|url|days)\(\s*(?:&mut read, )?"([A-Z][A-Z0-9_]+)""#,
    );
    let arms = Regex::new(r#""(MILVAION_[A-Z0-9_]+)" =>"#);
    let (reads, arms) = (reads.expect("the pattern is valid"), arms.expect("the pattern is valid"));
    let names: BTreeSet<&str> = reads
        .captures_iter(code)
        .chain(arms.captures_iter(code))
        .filter_map(|found| found.get(1))
        .map(|name| name.as_str())
        .collect();
    for name in names {
        if !rows.contains_key(name) && !NOT_SETTINGS.contains(&name) {
            problems.push(format!("{name} is read and not documented"));
        }
    }
    let number = Regex::new(r#"read\.number\(\s*"([A-Z0-9_]+)",\s*([0-9_]+)(?:_[iu]\d+)?,\s*([0-9_]+),\s*([0-9_]+)"#);
    for found in number.expect("the pattern is valid").captures_iter(code) {
        let Some(row) = rows.get(&found[1]) else { continue };
        let plain = |text: &str| text.replace(['_', ','], "");
        let (default, low, high) = (plain(&found[2]), plain(&found[3]), plain(&found[4]));
        if plain(&row.bounds) != format!("{low} to {high}") {
            problems.push(format!("{} takes {low} to {high} and its documentation says {:?}", row.name, row.bounds));
        }
        let says = plain(row.default.split([' ', ':']).next().unwrap_or_default());
        // A default of 0 outside the bounds stands for "not set".
        if says != default && !(says == "none" && default == "0") {
            problems
                .push(format!("{} has the default {default} and its documentation says {:?}", row.name, row.default));
        }
    }
    problems
}

/// Replaces the lines between the two markers of a table.
fn replace_between(page: &str, table: &str, body: &str) -> Result<String> {
    let (start, end) = (format!("<!-- settings: {table} -->\n"), format!("<!-- end of settings: {table} -->"));
    let from = page.find(&start).with_context(|| format!("{PAGE} has no line {}", start.trim()))? + start.len();
    let to = page.find(&end).with_context(|| format!("{PAGE} has no line {end}"))?;
    ensure!(from <= to, "{PAGE}: the markers of {table} are in the wrong order");
    Ok(format!("{}{body}{}", &page[..from], &page[to..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "    /// `PORT`: port to listen on; see [`Other`](x). From 1 to\n    /// 65,535. Default none: the first\n    /// free port.\n    pub port: u16,\n";

    #[test]
    fn field_documentation_becomes_a_row() {
        let rows = documented(SOURCE);
        assert_eq!(
            rows[0].markdown(),
            "| `PORT` | Port to listen on; see `Other`. | 1 to 65,535 | none: the first free port |"
        );
    }

    #[test]
    fn undocumented_and_wrong_settings_are_found() {
        let rows: BTreeMap<_, _> = documented(SOURCE).into_iter().map(|row| (row.name.clone(), row)).collect();
        let code = r#"read.number("PORT", 0_u16, 1, 65_535); read.text("HOST"); read.number("PORT", 7, 1, 9);"#;
        let problems = disagreements(code, &rows);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].starts_with("HOST is read"), "{problems:?}");
    }

    #[test]
    fn tables_are_replaced_between_their_markers() {
        let page = "a\n<!-- settings: x -->\nold\n<!-- end of settings: x -->\nb\n";
        let new = replace_between(page, "x", "new\n").expect("markers");
        assert_eq!(new, "a\n<!-- settings: x -->\nnew\n<!-- end of settings: x -->\nb\n");
    }
}
