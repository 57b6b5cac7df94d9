//! `sql-query`: one statement on a database the worker knows.
//!
//! A job names a connection, never an address or a password: those are the worker's configuration. Every run has a
//! connection of its own, so nothing a statement leaves behind in a session (a setting, a lock, a temporary table) is
//! met by the next. Parameters are bound, not pasted; a statement cannot become another one through them.

mod classify;
mod database;
mod input;
mod postgres;
mod postgres_cells;
mod postgres_parameters;
mod sqlite;
mod table;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

pub(crate) use self::database::Database;
use self::{input::Input, table::Output};
use crate::{
    seal::{BuiltIn, Desk, Failure},
    settings::alias_key,
};

/// The job type, and the databases it knows by alias.
pub(crate) struct SqlQuery {
    pub(crate) databases: BTreeMap<String, Database>,
}

impl BuiltIn for SqlQuery {
    const TYPE: &'static str = "sql-query";
    const DESCRIPTION: &'static str = "Runs one SQL statement on a database the worker knows, PostgreSQL or SQLite.";
    // Each is a connection.
    const CONCURRENCY: u16 = 5;
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(3600 + 60));
    type Input = Input;
    type Output = Output;

    fn preview(input: &Input) -> Result<(), Failure> {
        input::refuse_secrets(&input.query)
    }

    async fn run(&self, desk: &Desk, input: Input) -> Result<Output, Failure> {
        input.check()?;
        let Some(database) = self.databases.get(&alias_key(&input.connection)) else {
            let known = self.databases.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(Failure::permanent(format!(
                "`connection` is {:?}, which this worker does not know; give one of {known}",
                input.connection
            )));
        };
        if let Some(password) = database.password() {
            desk.hide(password, "{{connection password}}");
        }
        let started = Instant::now();
        let table = match database {
            Database::Postgres { options, .. } => postgres::run(options, &input, desk).await?,
            Database::Sqlite { options } => sqlite::run(options, &input, desk).await?,
        };
        let output = table.finish(started.elapsed());
        desk.info(output.told());
        Ok(output)
    }
}

#[cfg(test)]
mod tests;
