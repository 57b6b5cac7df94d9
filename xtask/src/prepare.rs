//! The record of the server's queries in `server/.sqlx`.
//!
//! Each `query!` of the server is checked against a database while it compiles. So that a build needs no database, the
//! descriptions of the queries are stored in the repository, one JSON file per query. The macros write these files
//! themselves if they run against a live database and an environment variable names a folder. This task provides both
//! and makes cargo run the macros again.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{cargo, files, run_command, scratch_database::ScratchDatabase, target_dir};

/// Replaces the record with a new one.
///
/// # Errors
/// Returns an error if `DATABASE_URL` is unset or unusable, a migration fails, or the server does not compile.
pub(crate) fn write(root: &Path) -> Result<()> {
    let fresh = record(root)?;
    let folder = record_folder(root);
    let old = read(&folder)?;
    files::fresh_dir(&folder)?;
    for (name, content) in &fresh {
        files::write(&folder.join(name), content)?;
    }
    println!("prepare: {} queries recorded, {} files changed", fresh.len(), differences(&old, &fresh).len());
    Ok(())
}

/// Creates a new record and compares it with the one in the repository.
///
/// # Errors
/// Returns the errors of [`write()`], and an error that lists the files if the two differ.
pub(crate) fn check(root: &Path) -> Result<()> {
    let fresh = record(root)?;
    let different = differences(&read(&record_folder(root))?, &fresh);
    if different.is_empty() {
        println!("prepare: the record of {} queries is up to date", fresh.len());
        return Ok(());
    }
    bail!("server/.sqlx is out of date: run `make prepare` and commit the result\n  {}", different.join("\n  "))
}

fn record_folder(root: &Path) -> PathBuf {
    root.join("server/.sqlx")
}

/// A record: file name to content.
type QueryRecords = BTreeMap<String, Vec<u8>>;

/// Records every query against a database that has exactly the migrations of the repository.
fn record(root: &Path) -> Result<QueryRecords> {
    let server = std::env::var("DATABASE_URL").unwrap_or_default();
    ensure!(
        !server.is_empty(),
        "DATABASE_URL is not set: name a PostgreSQL server, or run `make prepare`, which starts a private one"
    );
    let database = ScratchDatabase::create(&server)?;
    database.migrate(&root.join("migrations"))?;

    let folder = target_dir(root).join("xtask/sqlx");
    files::fresh_dir(&folder)?;
    let touched = TouchedFile::new(&root.join("server/src/lib.rs"))?;
    // The arguments of `make lint`: what that has compiled is then compiled only once, except for the server.
    let checked = run_command(
        cargo(root)
            .args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
            .env("DATABASE_URL", database.url())
            .env("SQLX_OFFLINE", "false")
            .env("SQLX_OFFLINE_DIR", &folder),
        "see the compiler's messages above",
    );
    drop(touched);
    checked?;
    let record = read(&folder)?;
    ensure!(!record.is_empty(), "the server compiled without writing a query: is sqlx's `macros` feature still on?");
    Ok(record)
}

/// A source file whose modification time is set to now and restored on drop. The new time makes cargo compile the crate
/// and its dependents again; the restored one keeps their other builds fresh.
struct TouchedFile {
    path: PathBuf,
    before: SystemTime,
}

impl TouchedFile {
    fn new(path: &Path) -> Result<Self> {
        let before = fs::metadata(path).and_then(|metadata| metadata.modified());
        let before = before.with_context(|| format!("cannot find {}", path.display()))?;
        set_time(path, SystemTime::now())?;
        Ok(Self { path: path.to_path_buf(), before })
    }
}

impl Drop for TouchedFile {
    fn drop(&mut self) {
        if let Err(error) = set_time(&self.path, self.before) {
            eprintln!("xtask: {error:#}; the next build compiles the server once more than necessary");
        }
    }
}

fn set_time(path: &Path, time: SystemTime) -> Result<()> {
    let file = fs::File::options().append(true).open(path);
    file.and_then(|file| file.set_modified(time)).with_context(|| format!("cannot set the time of {}", path.display()))
}

/// Reads the query files of a folder. A missing folder has none.
fn read(folder: &Path) -> Result<QueryRecords> {
    let mut record = QueryRecords::new();
    if !folder.is_dir() {
        return Ok(record);
    }
    for path in files::list(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("query-") && name.ends_with(".json") {
            let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            record.insert(name, content);
        }
    }
    Ok(record)
}

/// Returns one line for each file that differs between the two.
fn differences(old: &QueryRecords, fresh: &QueryRecords) -> Vec<String> {
    let removed =
        old.keys().filter(|name| !fresh.contains_key(*name)).map(|name| format!("{name}: no query has this file"));
    let new = fresh.iter().filter_map(|(name, content)| match old.get(name) {
        None => Some(format!("{name}: missing")),
        Some(found) if found != content => Some(format!("{name}: the database describes the query differently")),
        Some(_) => None,
    });
    removed.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(entries: &[(&str, &str)]) -> QueryRecords {
        entries.iter().map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec())).collect()
    }

    #[test]
    fn added_changed_and_removed_queries_are_named() {
        let old = records(&[("query-a.json", "1"), ("query-b.json", "1"), ("query-c.json", "1")]);
        let fresh = records(&[("query-a.json", "1"), ("query-b.json", "2"), ("query-d.json", "1")]);
        let lines = differences(&old, &fresh);
        assert_eq!(lines.len(), 3);
        for (line, start) in lines.iter().zip(["query-c.json: no", "query-b.json: the", "query-d.json: missing"]) {
            assert!(line.starts_with(start), "{line}");
        }
        assert!(differences(&old, &old).is_empty());
    }

    #[test]
    fn the_modification_time_is_restored() {
        let path = std::env::temp_dir().join(format!("milvaion-touch-{}", std::process::id()));
        files::write(&path, "x").unwrap();
        let before = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        set_time(&path, before).unwrap();
        let touched = TouchedFile::new(&path).unwrap();
        assert!(fs::metadata(&path).unwrap().modified().unwrap() > before);
        drop(touched);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        fs::remove_file(&path).unwrap();
    }
}
