//! The transfer sizes of a finished build, and their limits.
//!
//! A browser that opens a page loads the main module, its script, and the modules of the page's group, each compressed
//! with Brotli. The sum determines how long the page cannot respond to a click, so each group has a limit. The limits
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

/// The limits of WebAssembly and script for the groups of `app/src/lazy_pages.rs`, in kB of Brotli. They are a little
/// above the sizes that were reached, so that growth is noticed. The aim for pages that users read is 350 kB.
const GROUP_LIMITS: [(&str, u64); 9] = [
    ("doors", 420),
    ("lists", 530),
    ("overview", 483),
    ("occurrence", 590),
    ("failures", 583),
    ("alerts", 610),
    ("govern", 742),
    ("jobs", 697),
    ("define", 722),
];
/// The limit of a group without an entry.
const OTHER_LIMIT: u64 = 350;
/// The limits of the style sheet and of the fonts of a first visit, in kB of Brotli.
const STYLE_LIMIT: u64 = 25;
const FONT_LIMIT: u64 = 90;
/// The sizes of a release build in percent of those of a build in the profile `local`: the main module with the scripts, and
/// the modules of a group. Both were measured on one tree, in which the estimate was at most 6 % off.
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

/// Fails if a group of pages, the style sheet or the fonts exceed their limit.
///
/// # Errors
/// Returns an error if there is no finished release build, or a limit is exceeded; the message names the group.
pub(crate) fn check(site: &Path) -> Result<()> {
    let sizes = BuildSizes::read(site)?;
    println!("{sizes}");
    ensure!(sizes.is_compressed, "the build is not compressed: run `cargo xtask front --release`");
    let over: Vec<String> = sizes
        .rows()
        .into_iter()
        .filter(|row| row.bytes > row.limit * 1000)
        .map(|row| format!("{} needs {} kB, the limit is {} kB", row.name, kb(row.bytes), row.limit))
        .collect();
    if !over.is_empty() {
        bail!("the browser side is too large: {}", over.join("; "));
    }
    Ok(())
}

/// Prints the sizes that a release build would have, estimated from a local build, and warns of those above their limit.
///
/// # Errors
/// Returns an error if there is no finished build.
pub(crate) fn estimate(site: &Path) -> Result<()> {
    let local = BuildSizes::read(site)?;
    let (of_main, of_group) = RELEASE_PERCENT;
    println!("sizes of a release build, estimated from a local one (`make test-all` measures them)");
    for (group, bytes) in &local.groups {
        let (estimated, limit) = (kb((local.main * of_main + bytes * of_group) / 100), limit_of(group));
        let warning = if estimated > limit { "  warning: above the limit" } else { "" };
        println!("  {:<24}{estimated:>6} kB of {limit}{warning}", format!("pages of {group}"));
    }
    Ok(())
}

/// Returns the limit of a group in kB.
fn limit_of(group: &str) -> u64 {
    GROUP_LIMITS.iter().find(|(name, _)| *name == group).map_or(OTHER_LIMIT, |(_, limit)| *limit)
}

/// The sizes of one build, in bytes.
struct BuildSizes {
    is_compressed: bool,
    /// The main module and the scripts, which every page needs.
    main: u64,
    /// The modules of each group of pages.
    groups: BTreeMap<String, u64>,
    /// All modules and scripts.
    total: u64,
    style: u64,
    fonts: u64,
}

/// One line of the table.
struct SizeRow {
    name: String,
    bytes: u64,
    /// In kB.
    limit: u64,
}

impl BuildSizes {
    fn read(site: &Path) -> Result<Self> {
        ensure!(site.is_dir(), "there is no build in {}: run `cargo xtask front --release`", site.display());
        let all = files::list(&site.join("pkg"))?;
        let of_kind = |kind: &str| -> Result<u64> {
            all.iter()
                .filter(|path| path.extension().and_then(OsStr::to_str) == Some(kind))
                .map(|path| transfer(path))
                .sum()
        };
        let manifest = all
            .iter()
            .find(|path| path.file_name().and_then(OsStr::to_str) == Some(CHUNK_MANIFEST))
            .context("the build has no list of modules")?;
        let modules: BTreeMap<String, Vec<String>> = serde_json::from_str(&files::read(manifest)?)?;
        let module = |name: &str| transfer(&manifest.with_file_name(format!("{name}.wasm")));
        let mut groups = BTreeMap::new();
        for (group, names) in modules {
            groups.insert(group, names.iter().map(|name| module(name)).sum::<Result<u64>>()?);
        }
        // A first visit does not load the extended alphabet.
        let fonts = all.iter().filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.ends_with(".woff2") && !name.contains("latin-ext")
        });
        Ok(Self {
            is_compressed: with_suffix(manifest, "br").exists(),
            main: module("app")? + of_kind("js")?,
            groups,
            total: of_kind("wasm")? + of_kind("js")?,
            style: of_kind("css")?,
            fonts: fonts.map(|path| transfer(path)).sum::<Result<u64>>()?,
        })
    }

    fn rows(&self) -> Vec<SizeRow> {
        let pages = self.groups.iter().map(|(group, bytes)| SizeRow {
            name: format!("pages of {group}"),
            bytes: self.main + bytes,
            limit: limit_of(group),
        });
        let mut rows: Vec<SizeRow> = pages.collect();
        rows.push(SizeRow { name: "style sheet".into(), bytes: self.style, limit: STYLE_LIMIT });
        rows.push(SizeRow { name: "fonts".into(), bytes: self.fonts, limit: FONT_LIMIT });
        rows
    }
}

impl std::fmt::Display for BuildSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let encoding = if self.is_compressed { "Brotli" } else { "not compressed" };
        writeln!(f, "transfer sizes ({encoding}): main module and scripts {} kB", kb(self.main))?;
        for row in self.rows() {
            writeln!(f, "  {:<24}{:>6} kB of {}", row.name, kb(row.bytes), row.limit)?;
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
    fn a_group_over_its_limit_fails_by_name() {
        let site = std::env::temp_dir().join(format!("milvaion-sizes-{}", std::process::id()));
        files::fresh_dir(&site).unwrap();
        let pkg = site.join("pkg/build");
        let write = |name: &str, kb: usize| files::write(&pkg.join(name), "x".repeat(kb * 1000)).unwrap();
        files::write(&pkg.join(CHUNK_MANIFEST), r#"{"lists":["split_lists"],"define":["split_define"]}"#).unwrap();
        for (name, kb) in [("app.wasm", 200), ("app.js", 10), ("split_lists.wasm", 130), ("split_define.wasm", 200)] {
            write(name, kb);
            write(&format!("{name}.br"), kb);
        }
        write(&format!("{CHUNK_MANIFEST}.br"), 1);
        check(&site).unwrap();

        let limit = GROUP_LIMITS.iter().find(|(name, _)| *name == "lists").unwrap().1;
        write("split_lists.wasm.br", usize::try_from(limit).unwrap() - 209);
        let error = check(&site).unwrap_err().to_string();
        let expected = format!("pages of lists needs {} kB, the limit is {limit} kB", limit + 1);
        assert!(error.contains(&expected), "{error}");
        files::remove_dir(&site).unwrap();
    }
}
