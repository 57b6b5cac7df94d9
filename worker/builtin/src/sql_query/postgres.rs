//! A statement on PostgreSQL.
//!
//! Sent through the extended protocol, which takes one statement and no more. The server says what types the parameters
//! have, and they are bound as such. Dropping a connection does not end what it runs there, so a run that is to end asks
//! the server to cancel it, over a second connection.

use std::time::Duration;

use futures::StreamExt;
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions, Connection, Either, Executor, PgConnection, Row, SqlSafeStr, Statement,
    TypeInfo, postgres::PgConnectOptions,
};
use tokio::time::{sleep, timeout};

use super::{
    classify::failure,
    input::Input,
    postgres_cells::cell,
    postgres_parameters::bind,
    table::{Column, Table},
};
use crate::seal::{Desk, Failure};

/// How long the server may take to let us in.
const CONNECTING: Duration = Duration::from_secs(10);
/// How much longer than the server's own timeout we wait before the statement is cancelled from outside.
const MARGIN: Duration = Duration::from_secs(2);
/// How long a run waits for its cancellation, of the second it has; what takes longer is done without it.
const LAST_WORDS: Duration = Duration::from_millis(800);

pub(super) async fn run(options: &PgConnectOptions, input: &Input, desk: &Desk) -> Result<Table, Failure> {
    let mut connection = desk.unless_cancelled("the connection", connect(options)).await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await.map_err(failure)?;
    let patience = Duration::from_secs(input.timeout_seconds.into());
    let ended = tokio::select! {
        done = statement(&mut connection, input, desk) => {
            let table = done?;
            // Nothing is left to be said; whether the server hears the goodbye does not matter.
            drop(timeout(LAST_WORDS, connection.close()).await);
            return Ok(table);
        }
        () = sleep(patience + MARGIN) => {
            format!("the statement was cancelled after {} s; give timeoutSeconds a larger value if it needs longer", patience.as_secs())
        }
        () = desk.cancelled().cancelled() => "the statement was cancelled because the run was to end".to_owned(),
    };
    // A task of its own: it goes on when the run is dropped.
    let cancelling = tokio::spawn(cancel(options.clone(), pid));
    match timeout(LAST_WORDS, cancelling).await {
        Ok(Ok(Ok(()))) => Err(Failure::retry(ended)),
        Ok(Ok(Err(error))) => Err(error.within(format!("{ended}; the server did not hear it"))),
        Ok(Err(_)) | Err(_) => Err(Failure::retry(format!("{ended}; the server has not answered yet"))),
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, Failure> {
    timeout(CONNECTING, options.connect())
        .await
        .map_err(|_| Failure::retry(format!("the database did not answer within {} s", CONNECTING.as_secs())))?
        .map_err(|error| failure(error).within("the database cannot be reached"))
}

async fn cancel(options: PgConnectOptions, pid: i32) -> Result<(), Failure> {
    let mut connection = connect(&options).await?;
    sqlx::query("SELECT pg_cancel_backend($1)").bind(pid).execute(&mut connection).await.map_err(failure)?;
    Ok(())
}

async fn statement(connection: &mut PgConnection, input: &Input, desk: &Desk) -> Result<Table, Failure> {
    let limit = format!("SET statement_timeout = {}", u64::from(input.timeout_seconds) * 1000);
    connection.execute(AssertSqlSafe(limit)).await.map_err(failure)?;
    if input.read_only {
        // A transaction of ours, so that the statement cannot end it and begin one of its own that writes.
        connection.execute("BEGIN READ ONLY").await.map_err(failure)?;
    }
    // It is what the job says, on purpose; what the account may do is the bound.
    let sql = AssertSqlSafe(input.query.clone()).into_sql_str();
    let prepared = connection.prepare(sql).await.map_err(failure)?;
    let arguments = bind(&prepared, &input.parameters)?;
    let mut table = Table::new(input.max_rows);
    table.describe(
        prepared
            .columns()
            .iter()
            .map(|column| Column { name: column.name().to_owned(), kind: column.type_info().name().to_lowercase() }),
    );
    let mut results = connection.fetch_many(prepared.query_with(arguments));
    while let Some(result) = results.next().await {
        match result.map_err(failure)? {
            Either::Left(done) => table.affect(done.rows_affected()),
            Either::Right(row) if table.has_room() => {
                let cells = (0..row.len()).map(|place| cell(&row, place)).collect::<Result<_, _>>()?;
                table.push(cells, desk.redactor());
            }
            Either::Right(_) => {
                table.skip();
                // What only reads need not be read to its end; what changes something must come to it.
                if input.read_only {
                    break;
                }
            }
        }
    }
    Ok(table)
}
