//! The transfer sizes of a finished build, and their limits.
//!
//! A browser that opens a page loads the main module, the scripts and the archive of the page, each compressed with
//! Brotli. The sum determines how long the page cannot respond to a click, so each kind of page has a limit. The limits
//! are checked by `make test-all` and not by the build, so that a newer compiler cannot stop a user's build. `make test`
//! builds the browser side in the profile `local`, which takes half of the time, and estimates the sizes from it.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{compress::with_suffix, files, wasm::CHUNK_MANIFEST};

/// A limit of the transfer size. `docs/PERFORMANCE.md` has a table of the goals.
#[derive(Clone, Copy)]
struct SizeLimit {
    /// A build above the goal has a warning.
    goal: u64,
    /// A build above the gate fails. It is higher than the goal only where the goal is not reached yet.
    gate: u64,
    unit: &'static str,
}

/// The limits of script and WebAssembly for each kind of page, in kB of Brotli.
const READING: SizeLimit = SizeLimit { goal: 250, gate: 250, unit: "kB" };
const OCCURRENCE: SizeLimit = SizeLimit { goal: 300, gate: 300, unit: "kB" };
const FORM: SizeLimit = SizeLimit { goal: 400, gate: 400, unit: "kB" };
/// The gates of the pages that have not reached their goal. A higher number needs a line in the changelog that says why.
const GATES: [(&str, u64); 26] = [
    ("account", 440),
    ("alert_channel", 420),
    ("alert_channels", 345),
    ("alert_rule", 469),
    ("alert_rules", 352),
    ("alerts", 367),
    ("audit", 377),
    ("calendar_form", 433),
    ("calendars", 328),
    ("failure", 441),
    ("failures", 418),
    ("help", 297),
    ("job", 524),
    ("job_form", 562),
    ("jobs", 382),
    ("login", 360),
    ("menu", 295),
    ("occurrence", 465),
    ("occurrences", 375),
    ("one_time_link", 363),
    ("overview", 388),
    ("person", 427),
    ("singleton_loops", 381),
    ("team", 412),
    ("tokens", 410),
    ("workers", 366),
];
/// The limit of the files of script and WebAssembly that a first page requests.
const FILES: SizeLimit = SizeLimit { goal: 8, gate: 8, unit: "files" };
/// The limits of the style sheet and of the fonts of a first visit, in kB of Brotli.
const STYLE: SizeLimit = SizeLimit { goal: 25, gate: 25, unit: "kB" };
const FONTS: SizeLimit = SizeLimit { goal: 90, gate: 90, unit: "kB" };
/// The sizes of a release build in percent of those of a build in the profile `local`: the main module with the scripts, and
/// the archive of a page. Both were measured on one tree, in which the estimate was at most 6 % off.
const RELEASE_PERCENT: (u64, u64) = (49, 30);

/// Prints the sizes of a finished build.
///
/// # Errors
/// Returns an error if there is no finished build.
pub(crate) fn print(site: &Path) -> Result<()> {
    let sizes = BuildSizes::read(site)?;
    println!("{sizes}");
    Ok(())
}

/// Fails if a page, the style sheet or the fonts exceed their limit.
///
/// # Errors
/// Returns an error if there is no finished release build, or a limit is exceeded; the message names the page.
pub(crate) fn check(site: &Path) -> Result<()> {
    let sizes = BuildSizes::read(site)?;
    println!("{sizes}");
    ensure!(sizes.is_compressed, "the build is not compressed: run `cargo xtask front --release`");
    let over: Vec<String> = sizes
        .rows()
        .into_iter()
        .filter(|row| row.amount > row.limit.gate)
        .map(|row| {
            let SizeLimit { gate, unit, .. } = row.limit;
            format!("{} needs {} {unit}, the limit is {gate} {unit}", row.name, row.amount)
        })
        .collect();
    if !over.is_empty() {
        bail!("the browser side is too large: {}", over.join("; "));
    }
    Ok(())
}

/// Prints the sizes that a release build would have, estimated from a local build, and warns of those above their goal.
///
/// # Errors
/// Returns an error if there is no finished build.
pub(crate) fn estimate(site: &Path) -> Result<()> {
    let mut sizes = BuildSizes::read(site)?;
    let (of_main, of_page) = RELEASE_PERCENT;
    sizes.main = sizes.main * of_main / 100;
    for bytes in sizes.pages.values_mut() {
        *bytes = *bytes * of_page / 100;
    }
    println!("sizes of a release build, estimated from a local one (`make test-all` measures them)");
    for row in sizes.page_rows() {
        println!("{row}");
    }
    Ok(())
}

/// Returns the limit of a page, by the name of its module in `app/src/lazy_pages.rs`.
fn limit_of(page: &str) -> SizeLimit {
    let limit = match page {
        "occurrence" => OCCURRENCE,
        "job_form" | "calendar_form" | "alert_rule" | "alert_channel" => FORM,
        _ => READING,
    };
    let gate = GATES.iter().find(|(name, _)| *name == page).map_or(limit.gate, |(_, gate)| *gate);
    SizeLimit { gate, ..limit }
}

/// The sizes of one build, in bytes.
struct BuildSizes {
    is_compressed: bool,
    /// The main module and the scripts, which every page needs.
    main: u64,
    /// The archive of each page.
    pages: BTreeMap<String, u64>,
    /// The number of scripts and WebAssembly files that a first page requests.
    files: u64,
    /// All modules and scripts.
    total: u64,
    style: u64,
    fonts: u64,
}

/// One line of the table.
struct SizeRow {
    name: String,
    /// In the unit of the limit.
    amount: u64,
    limit: SizeLimit,
}

impl SizeRow {
    fn of_bytes(name: impl Into<String>, bytes: u64, limit: SizeLimit) -> Self {
        Self { name: name.into(), amount: kb(bytes), limit }
    }
}

impl std::fmt::Display for SizeRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SizeLimit { goal, unit, .. } = self.limit;
        let warning = if self.amount > goal { "  warning: above the goal" } else { "" };
        write!(f, "  {:<24}{:>6} {unit} of {goal}{warning}", self.name, self.amount)
    }
}

impl BuildSizes {
    fn read(site: &Path) -> Result<Self> {
        ensure!(site.is_dir(), "there is no build in {}: run `cargo xtask front --release`", site.display());
        let all = files::list(&site.join("pkg"))?;
        let paths_of_kind =
            |kind: &'static str| all.iter().filter(move |path| path.extension().and_then(OsStr::to_str) == Some(kind));
        let of_kind = |kind| -> Result<u64> { paths_of_kind(kind).map(|path| transfer(path)).sum() };
        let manifest = all
            .iter()
            .find(|path| path.file_name().and_then(OsStr::to_str) == Some(CHUNK_MANIFEST))
            .context("the build has no list of modules")?;
        let modules: BTreeMap<String, Vec<String>> = serde_json::from_str(&files::read(manifest)?)?;
        let module = |name: &str| transfer(&manifest.with_file_name(format!("{name}.wasm")));
        let mut pages = BTreeMap::new();
        for (page, names) in &modules {
            pages.insert(page.clone(), names.iter().map(|name| module(name)).sum::<Result<u64>>()?);
        }
        // The main module, all scripts (each imports the next one), and the archive of the page.
        let archives = modules.values().map(Vec::len).max().unwrap_or_default();
        let files = 1 + paths_of_kind("js").count() + archives;
        // A first visit does not load the extended alphabet.
        let fonts = all.iter().filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.ends_with(".woff2") && !name.contains("latin-ext")
        });
        Ok(Self {
            is_compressed: with_suffix(manifest, "br").exists(),
            main: module("app")? + of_kind("js")?,
            pages,
            files: u64::try_from(files)?,
            total: of_kind("wasm")? + of_kind("js")?,
            style: of_kind("css")?,
            fonts: fonts.map(|path| transfer(path)).sum::<Result<u64>>()?,
        })
    }

    /// Returns the lines for scripts and WebAssembly.
    fn page_rows(&self) -> Vec<SizeRow> {
        let pages = self.pages.iter();
        let mut rows: Vec<SizeRow> =
            pages.map(|(page, bytes)| SizeRow::of_bytes(page, self.main + bytes, limit_of(page))).collect();
        rows.push(SizeRow { name: "first load of a page".into(), amount: self.files, limit: FILES });
        rows
    }

    fn rows(&self) -> Vec<SizeRow> {
        let mut rows = self.page_rows();
        rows.push(SizeRow::of_bytes("style sheet", self.style, STYLE));
        rows.push(SizeRow::of_bytes("fonts", self.fonts, FONTS));
        rows
    }
}

impl std::fmt::Display for BuildSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let encoding = if self.is_compressed { "Brotli" } else { "not compressed" };
        writeln!(f, "transfer sizes ({encoding}): main module and scripts {} kB", kb(self.main))?;
        for row in self.rows() {
            writeln!(f, "{row}")?;
        }
        write!(f, "  {:<24}{:>6} kB", "all modules together", kb(self.total))
    }
}

/// Returns the bytes that a browser transfers for a file.
fn transfer(path: &Path) -> Result<u64> {
    let sent: PathBuf = Some(with_suffix(path, "br")).filter(|br| br.exists()).unwrap_or_else(|| path.to_path_buf());
    Ok(fs::metadata(&sent).with_context(|| format!("cannot find {}", sent.display()))?.len())
}

fn kb(bytes: u64) -> u64 {
    bytes.div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_over_its_limit_fails_by_name() {
        let site = std::env::temp_dir().join(format!("milvaion-sizes-{}", std::process::id()));
        files::fresh_dir(&site).unwrap();
        let pkg = site.join("pkg/build");
        let write = |name: &str, kb: usize| files::write(&pkg.join(name), "x".repeat(kb * 1000)).unwrap();
        files::write(&pkg.join(CHUNK_MANIFEST), r#"{"new":["page_new"],"help":["page_help"]}"#).unwrap();
        // The help has a gate above its goal.
        for (name, kb) in [("app.wasm", 200), ("app.js", 10), ("page_new.wasm", 40), ("page_help.wasm", 50)] {
            write(name, kb);
            write(&format!("{name}.br"), kb);
        }
        write(&format!("{CHUNK_MANIFEST}.br"), 1);
        check(&site).unwrap();

        write("page_new.wasm.br", 41);
        let error = check(&site).unwrap_err().to_string();
        assert!(error.ends_with("too large: new needs 251 kB, the limit is 250 kB"), "{error}");

        write("page_new.wasm.br", 1);
        for number in 1..=6 {
            write(&format!("snippets/{number}.js"), 0);
        }
        let error = check(&site).unwrap_err().to_string();
        assert!(error.ends_with("first load of a page needs 9 files, the limit is 8 files"), "{error}");
        files::remove_dir(&site).unwrap();
    }

    #[test]
    fn goals_are_those_of_the_document() {
        let document = files::read(&crate::root().unwrap().join("docs/PERFORMANCE.md")).unwrap();
        for (name, limit) in [
            ("Script and WebAssembly of an occurrence", OCCURRENCE),
            ("Script and WebAssembly of the form of a job, a calendar, an alert rule or an alert channel", FORM),
            ("Script and WebAssembly of any other page", READING),
            ("Requests for script and WebAssembly", FILES),
            ("Style sheet", STYLE),
            ("Fonts", FONTS),
        ] {
            let row = format!("| {name} | {} {} |", limit.goal, limit.unit);
            assert!(document.contains(&row), "docs/PERFORMANCE.md has no row {row}");
        }
    }
}
