//! The weight of the code: its lines, its circles of files, and the files that a change touches.
//!
//! A circle is a set of files in which each uses each other one, directly or through others: none of them can be read,
//! tested or moved alone. The uses are read from the paths in the code (`crate::a::b`, `super::b`), so a call through a
//! method does not count. A file may use a module that contains it; that is no arrow of a circle. `docs/ARCHITECTURE.md`
//! names the circles that stay, with the reason, and the lint fails on any other.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

use crate::files;

/// Folders and files that tools write.
const GENERATED: [&str; 4] = ["server/.sqlx/", "docs/api/", "docs/protocol/", "Cargo.lock"];

/// The modules of the server that call others, the lowest first. One uses those below it, and none beside it.
const SERVER_LEVELS: [&[&str]; 8] = [
    &["faults"],
    &["store", "cache", "broker"],
    &["engine"],
    &["command"],
    &["background", "ingest"],
    &["http"],
    &["ui"],
    &["lifecycle"],
];

/// Prints the lines of each crate and the circles, or, with an expression, the files in which it matches.
///
/// # Errors
/// Returns an error if git cannot list the files or one cannot be read.
pub(crate) fn print(root: &Path, word: Option<&str>) -> Result<()> {
    if let Some(word) = word {
        return print_files_with(root, word);
    }
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for path in tracked(root, "*.rs")? {
        let folder = path.split("/src/").next().and_then(|path| path.split("/tests/").next()).unwrap_or(&path);
        *lines.entry(folder.to_owned()).or_default() += files::read(&root.join(&path))?.lines().count();
    }
    for (folder, count) in &lines {
        println!("{count:>7} {folder}");
    }
    println!("{:>7} lines of Rust", lines.values().sum::<usize>());
    for circle in SourceGraph::read(root)?.circles() {
        println!("a circle of {} files: {}", circle.len(), circle.join(", "));
    }
    Ok(())
}

/// Fails if there is a circle of files that `docs/ARCHITECTURE.md` does not name, or an arrow against its drawing.
///
/// # Errors
/// Returns an error if a file cannot be read, or if a use breaks one of the rules; the message lists them.
pub(crate) fn check(root: &Path) -> Result<()> {
    let named = files::read(&root.join("docs/ARCHITECTURE.md"))?;
    let graph = SourceGraph::read(root)?;
    let against = graph.arrows_against_the_drawing();
    if !against.is_empty() {
        bail!(
            "modules of the server use only those below them, as docs/ARCHITECTURE.md draws them; move the part that is needed down\n  {}",
            against.join("\n  ")
        );
    }
    let is_named = |circle: &[String]| {
        named
            .lines()
            .any(|line| line.starts_with("- ") && circle.iter().all(|file| line.contains(&format!("`{file}`"))))
    };
    let circles = graph.circles();
    let unnamed: Vec<_> = circles.iter().filter(|circle| !is_named(circle)).map(|circle| circle.join(" ")).collect();
    if !unnamed.is_empty() {
        bail!(
            "these files use each other in a circle; move the part that they share down, or name all of them with the reason in one line of docs/ARCHITECTURE.md\n  {}",
            unnamed.join("\n  ")
        );
    }
    println!("circles: {} of files, all named; no arrow of the server against the drawing", circles.len());
    Ok(())
}

fn print_files_with(root: &Path, word: &str) -> Result<()> {
    let output =
        Command::new("git").args(["grep", "-liE", word]).current_dir(root).output().context("git grep failed")?;
    let found = String::from_utf8(output.stdout)?;
    let is_generated = |path: &&str| GENERATED.iter().any(|prefix| path.starts_with(prefix));
    let (generated, written): (Vec<&str>, Vec<&str>) = found.lines().partition(is_generated);
    let is_source = |path: &&str| {
        let is_code = [".rs", ".sql"].iter().any(|end| path.ends_with(end));
        is_code && !path.contains("tests") && !path.starts_with("end2end/") && !path.starts_with("migrations/")
    };
    let (source, others): (Vec<&str>, Vec<&str>) = written.into_iter().partition(is_source);
    for path in source.iter().chain(&others) {
        println!("{path}");
    }
    println!("{word}: {} source files, {} others, {} generated", source.len(), others.len(), generated.len());
    Ok(())
}

fn tracked(root: &Path, pattern: &str) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", pattern])
        .current_dir(root)
        .output()
        .context("git could not be started")?;
    ensure!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
    let paths = String::from_utf8(output.stdout)?;
    Ok(paths.lines().filter(|path| root.join(path).exists()).map(str::to_owned).collect())
}

/// A module: the folder of its crate, and its path in the crate.
type Module = (String, Vec<String>);

/// The files of the crates: the path of each module, and the modules that each uses.
struct SourceGraph {
    paths: BTreeMap<Module, String>,
    uses: BTreeMap<Module, BTreeSet<Module>>,
}

impl SourceGraph {
    fn read(root: &Path) -> Result<Self> {
        let mut paths: BTreeMap<Module, String> = BTreeMap::new();
        for path in tracked(root, "*.rs")? {
            if let Some((folder, file)) = path.split_once("/src/") {
                let mut module: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
                if module.last().is_some_and(|last| last == "mod" || last == "lib") {
                    module.pop();
                }
                paths.insert((folder.to_owned(), module), path);
            }
        }
        let mut uses = BTreeMap::new();
        for (module, path) in &paths {
            let code = files::read(&root.join(path))?;
            let used = used_paths(&code, &module.1).into_iter().filter_map(|mut used| {
                loop {
                    let found = (module.0.clone(), used.clone());
                    if paths.contains_key(&found) {
                        return Some(found);
                    }
                    used.pop()?;
                }
            });
            uses.insert(module.clone(), used.filter(|used| !module.1.starts_with(&used.1)).collect());
        }
        Ok(Self { paths, uses })
    }

    /// Returns the circles of files, each sorted.
    fn circles(&self) -> Vec<Vec<String>> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.uses.keys().map(|start| (start, self.reach(start))).collect();
        let mut found = BTreeSet::new();
        for (module, others) in &reached {
            let circle: Vec<&Module> = others.iter().copied().filter(|other| reached[other].contains(module)).collect();
            if circle.len() > 1 {
                found.insert(circle);
            }
        }
        let files = |circle: Vec<&Module>| circle.into_iter().map(|module| self.paths[module].clone()).collect();
        found.into_iter().map(files).collect()
    }

    /// Returns the modules that `start` uses, directly or through others.
    fn reach<'a>(&'a self, start: &'a Module) -> BTreeSet<&'a Module> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(module) = open.pop() {
            open.extend(self.uses[module].iter().filter(|next| reached.insert(*next)));
        }
        reached
    }

    /// Returns each use in the server of a module that is not below the one that uses it; see [`SERVER_LEVELS`].
    fn arrows_against_the_drawing(&self) -> Vec<String> {
        let top = |module: &Module| module.1.first().cloned().unwrap_or_default();
        let level = |name: &str| SERVER_LEVELS.iter().position(|level| level.contains(&name));
        let mut found = Vec::new();
        for (module, used) in self.uses.iter().filter(|(module, _)| module.0 == "server") {
            for other in used {
                let (from, to) = (top(module), top(other));
                let levels = level(&from).zip(level(&to));
                if from != to && levels.is_some_and(|(from, to)| from <= to) {
                    found.push(format!("{} uses {}", self.paths[module], self.paths[other]));
                }
            }
        }
        found
    }
}

/// Returns the paths in the code of `module` that begin at the crate or at a module above, without its unit tests.
fn used_paths(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let comment = Regex::new(r"(?m)//.*$").expect("the expression is valid");
    let code = comment.replace_all(code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default(), "");
    let path = r"(?m)(?:\b(crate|super)|^\s*(?:pub(?:\(\w+\))? )?use (?:self::)?(\w+))((?:::\w+)*)(::\{)?";
    let path = Regex::new(path).expect("the expression is valid");
    let mut found = Vec::new();
    for one in path.captures_iter(&code) {
        let first = one.get(1).or(one.get(2)).map_or("", |name| name.as_str());
        let mut start: Vec<String> = if first == "crate" { Vec::new() } else { module.to_vec() };
        for part in [first].into_iter().chain(one[3].split("::")) {
            match part {
                "" | "crate" => {}
                "super" => drop(start.pop()),
                _ => start.push(part.to_owned()),
            }
        }
        match one.get(4) {
            Some(brace) => grouped(&code[brace.end()..], start, &mut found),
            None => found.push(start),
        }
    }
    found
}

/// Adds the paths of a group `{a::b, c::{d, e}}` of imports, of which `text` begins after the first brace.
fn grouped(text: &str, start: Vec<String>, found: &mut Vec<Vec<String>>) {
    let token = Regex::new(r"\w+|[{},;]").expect("the expression is valid");
    let (mut path, mut starts) = (Some(start.clone()), vec![start]);
    for one in token.find_iter(text) {
        match one.as_str() {
            "{" => starts.extend(path.clone()),
            "," => {
                found.extend(path.take());
                path = starts.last().cloned();
            }
            "}" => {
                found.extend(path.take());
                starts.pop();
                if starts.is_empty() {
                    return;
                }
            }
            ";" => return,
            "self" | "as" => {}
            name => path.get_or_insert_default().push(name.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_against_the_drawing_and_circles_are_found() {
        let module = |name: &str| ("server".to_owned(), name.split('/').map(str::to_owned).collect::<Vec<_>>());
        let all = ["engine/a", "command/b", "ingest/c", "background/d"].map(module);
        let [engine, command, ingest, background] = all.clone();
        let graph = SourceGraph {
            paths: all.iter().map(|module| (module.clone(), module.1.join("/"))).collect(),
            uses: BTreeMap::from([
                (engine.clone(), BTreeSet::from([command.clone()])),
                (command, BTreeSet::from([engine.clone()])),
                (ingest, BTreeSet::from([engine, background.clone()])),
                (background, BTreeSet::new()),
            ]),
        };
        assert_eq!(graph.arrows_against_the_drawing(), ["engine/a uses command/b", "ingest/c uses background/d"]);
        assert_eq!(graph.circles(), [["command/b", "engine/a"]]);
    }

    #[test]
    fn paths_of_groups_and_of_modules_above_are_read() {
        let code = "use super::{a, b::{self, C}};\nuse crate::{\n    d::E as F,\n    g::h::i,\n};\npub use m::N;\n// crate::comment\nfn f() { crate::j::k(super::super::l) }";
        let module = ["x".to_owned(), "y".to_owned()];
        let found: Vec<String> = used_paths(code, &module).into_iter().map(|path| path.join("::")).collect();
        for path in ["x::a", "x::b", "x::b::C", "d::E::F", "g::h::i", "x::y::m::N", "j::k", "l"] {
            assert!(found.contains(&path.to_owned()), "{path} is missing in {found:?}");
        }
        assert!(!found.iter().any(|path| path == "comment" || path == "x::y::d"), "{found:?}");
    }
}
