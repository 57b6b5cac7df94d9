//! `sql-query`: runs one statement on a configured database.
//!
//! A job names a connection, never a URL or a password, which belong to the worker's configuration. Every run opens a
//! connection of its own, so the session state that a statement leaves behind (a setting, a lock, a temporary table)
//! does not affect the next run. Parameters are bound and not inserted into the text, so they cannot change the
//! statement.

pub(crate) mod database;
mod error_class;
mod input;
mod postgres;
mod postgres_cells;
mod postgres_parameters;
mod result_table;
mod sqlite;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use self::{database::SqlDatabase, input::SqlQueryInput, result_table::SqlQueryOutput};
use crate::{
    context::{BuiltinContext, BuiltinError, BuiltinJob},
    settings::alias_key,
};

/// The job type, with the databases by alias.
pub(crate) struct SqlQuery {
    pub(crate) databases: BTreeMap<String, SqlDatabase>,
}

impl BuiltinJob for SqlQuery {
    const TYPE: &'static str = "sql-query";
    const DESCRIPTION: &'static str =
        "Runs one SQL statement on a PostgreSQL or SQLite database of the worker's configuration.";
    // Each run opens a connection.
    const CONCURRENCY: u16 = 5;
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(3600 + 60));
    type Input = SqlQueryInput;
    type Output = SqlQueryOutput;

    fn check_unresolved(input: &SqlQueryInput) -> Result<(), BuiltinError> {
        input::refuse_secrets(&input.query)
    }

    async fn run(&self, context: &BuiltinContext, input: SqlQueryInput) -> Result<SqlQueryOutput, BuiltinError> {
        input.check()?;
        let Some(database) = self.databases.get(&alias_key(&input.connection)) else {
            let known = self.databases.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(BuiltinError::permanent(format!(
                "`connection` is {:?}, which this worker's configuration does not contain; give one of {known}",
                input.connection
            )));
        };
        if let Some(password) = database.password() {
            context.add_secret(password, "{{connection password}}");
        }
        let started = Instant::now();
        let table = match database {
            SqlDatabase::Postgres { options, .. } => postgres::run(options, &input, context).await?,
            SqlDatabase::Sqlite { options } => sqlite::run(options, &input, context).await?,
        };
        let output = table.finish(started.elapsed());
        context.info(output.summary());
        Ok(output)
    }
}

#[cfg(test)]
mod tests;
