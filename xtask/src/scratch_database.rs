//! A database for the duration of one task: created empty, migrated, and dropped at the end.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{files, run_command};

/// A new database on the server of `DATABASE_URL`. It is dropped with the value, also after an error.
pub(crate) struct ScratchDatabase {
    server: String,
    name: String,
    url: String,
}

impl ScratchDatabase {
    /// Creates the database. `server` is a URL of the server whose user may create databases.
    ///
    /// # Errors
    /// Returns an error if psql is missing, the server does not respond, or the user may not create databases.
    pub(crate) fn create(server: &str) -> Result<Self> {
        let name = format!("milvaion_prepare_{}", std::process::id());
        let url = with_database(server, &name)?;
        run_command(
            psql(server).args(["-c", &format!("CREATE DATABASE {name}")]),
            "DATABASE_URL must name a running PostgreSQL whose user may create databases, and psql must be installed \
             (`make install`)",
        )?;
        Ok(Self { server: server.to_owned(), name, url })
    }

    /// Returns the URL of the database.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Applies every migration of a folder in numeric order, each in its own transaction unless its first line is
    /// `-- no-transaction`.
    ///
    /// # Errors
    /// Returns an error if the folder has no migration, two have the same number, or one fails.
    pub(crate) fn migrate(&self, folder: &Path) -> Result<()> {
        for path in migrations(folder)? {
            let whole = !files::read(&path)?.starts_with("-- no-transaction");
            let mut psql = psql(&self.url);
            if whole {
                psql.arg("--single-transaction");
            }
            run_command(psql.arg("-f").arg(&path), &format!("see psql's message about {} above", path.display()))?;
        }
        Ok(())
    }
}

impl Drop for ScratchDatabase {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        if let Err(error) = run_command(psql(&self.server).args(["-c", &sql]), "drop it manually") {
            eprintln!("xtask: the database {} was not dropped: {error:#}", self.name);
        }
    }
}

/// Returns a psql command that ignores the user's settings and prints nothing unless it fails.
fn psql(url: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "--quiet", "--no-password", "-v", "ON_ERROR_STOP=1", "-d", url]);
    command.env("PGOPTIONS", "--client-min-messages=warning").stdout(Stdio::null());
    command
}

/// Returns a URL with its database replaced.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (address, options) = url.split_once('?').map_or((url, ""), |(address, options)| (address, options));
    let (scheme, rest) =
        address.split_once("://").context("DATABASE_URL must look like postgres://user@host/database")?;
    ensure!(
        scheme == "postgres" || scheme == "postgresql",
        "DATABASE_URL must start with postgres://, it starts with {scheme}://"
    );
    let server = rest.split_once('/').map_or(rest, |(server, _)| server);
    let options = if options.is_empty() { String::new() } else { format!("?{options}") };
    Ok(format!("{scheme}://{server}/{name}{options}"))
}

/// Returns the migrations of a folder in numeric order.
fn migrations(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for path in files::list(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(".sql") || name.ends_with(".down.sql") {
            continue;
        }
        let number = name.split_once('_').and_then(|(number, _)| number.parse().ok());
        let number = number.with_context(|| format!("{name}: name a migration <number>_<change>.sql"))?;
        found.push((number, path));
    }
    ensure!(!found.is_empty(), "{} has no migration", folder.display());
    found.sort();
    for pair in found.windows(2) {
        ensure!(pair[0].0 != pair[1].0, "two migrations have the number {}: rename one", pair[0].0);
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_a_url_is_replaced() {
        for (from, to) in [
            ("postgres://u:p%2F@h:5432/main", "postgres://u:p%2F@h:5432/scratch"),
            ("postgresql://h", "postgresql://h/scratch"),
            ("postgres://u@h/main?sslmode=require", "postgres://u@h/scratch?sslmode=require"),
            ("postgres:///main?host=/run/pg", "postgres:///scratch?host=/run/pg"),
        ] {
            assert_eq!(with_database(from, "scratch").unwrap(), to);
        }
        assert!(with_database("mysql://h/main", "x").unwrap_err().to_string().contains("postgres://"));
        assert!(with_database("main", "x").is_err());
    }

    #[test]
    fn migrations_are_in_numeric_order() {
        let folder = std::env::temp_dir().join(format!("milvaion-migrations-{}", std::process::id()));
        files::fresh_dir(&folder).unwrap();
        for name in ["10_b.sql", "9_a.sql", "9_a.down.sql", "README.md"] {
            files::write(&folder.join(name), "").unwrap();
        }
        assert_eq!(migrations(&folder).unwrap(), [folder.join("9_a.sql"), folder.join("10_b.sql")]);
        files::write(&folder.join("10_c.sql"), "").unwrap();
        assert!(migrations(&folder).unwrap_err().to_string().contains("number 10"));
        files::remove_dir(&folder).unwrap();
    }
}
