//! A database that lives as long as one task: created empty, given the migrations, dropped at the end.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{files, run_command};

/// A database of its own on the server that `DATABASE_URL` names. It is dropped with the value, also after an error.
pub(crate) struct ScratchDatabase {
    server: String,
    name: String,
    url: String,
}

impl ScratchDatabase {
    /// Creates it. The address is the server's: its user must be allowed to create databases.
    ///
    /// # Errors
    /// If psql is missing, the server does not answer, or the user may not create databases.
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

    /// Its address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Applies every migration of a folder in the order of their numbers, each in its own transaction unless its first
    /// line says `-- no-transaction`.
    ///
    /// # Errors
    /// If the folder holds no migration, two share a number, or one fails.
    pub(crate) fn migrate(&self, folder: &Path) -> Result<()> {
        for path in migrations(folder)? {
            let whole = !files::read(&path)?.starts_with("-- no-transaction");
            let mut psql = psql(&self.url);
            if whole {
                psql.arg("--single-transaction");
            }
            run_command(psql.arg("-f").arg(&path), &format!("the migration {} is wrong", path.display()))?;
        }
        Ok(())
    }
}

impl Drop for ScratchDatabase {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        if let Err(error) = run_command(psql(&self.server).args(["-c", &sql]), "drop it by hand") {
            eprintln!("xtask: the database {} is left over: {error:#}", self.name);
        }
    }
}

/// psql without the user's own settings, silent unless something fails.
fn psql(url: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "--quiet", "--no-password", "-v", "ON_ERROR_STOP=1", "-d", url]);
    command.env("PGOPTIONS", "--client-min-messages=warning").stdout(Stdio::null());
    command
}

/// The same address with another database.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (address, options) = url.split_once('?').map_or((url, ""), |(address, options)| (address, options));
    let (scheme, rest) =
        address.split_once("://").context("DATABASE_URL must look like postgres://user@host/database")?;
    ensure!(
        scheme == "postgres" || scheme == "postgresql",
        "DATABASE_URL must begin with postgres://, it begins with {scheme}://"
    );
    let server = rest.split_once('/').map_or(rest, |(server, _)| server);
    let options = if options.is_empty() { String::new() } else { format!("?{options}") };
    Ok(format!("{scheme}://{server}/{name}{options}"))
}

/// The migrations of a folder in the order of their numbers.
fn migrations(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for path in files::list(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(".sql") || name.ends_with(".down.sql") {
            continue;
        }
        let number = name.split_once('_').and_then(|(number, _)| number.parse().ok());
        let number = number.with_context(|| format!("{name}: a migration is named <number>_<what>.sql"))?;
        found.push((number, path));
    }
    ensure!(!found.is_empty(), "{} holds no migration", folder.display());
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
    fn only_the_database_of_an_address_is_exchanged() {
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
    fn migrations_go_by_number_not_by_spelling() {
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
