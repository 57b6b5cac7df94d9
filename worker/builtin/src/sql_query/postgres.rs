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
    error_class::classify_error,
    input::SqlQueryInput,
    postgres_cells::cell,
    postgres_parameters::bind,
    result_table::{ResultColumn, ResultTable},
};
use crate::context::{BuiltinContext, BuiltinError};

/// How long the server may take to let us in.
const POSTGRES_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer than the server's own timeout we wait before the statement is cancelled from outside.
const STATEMENT_TIMEOUT_MARGIN: Duration = Duration::from_secs(2);
/// How long a run waits for its cancellation, of the second it has; what takes longer is done without it.
const POSTGRES_CANCEL_TIMEOUT: Duration = Duration::from_millis(800);

pub(super) async fn run(
    options: &PgConnectOptions,
    input: &SqlQueryInput,
    context: &BuiltinContext,
) -> Result<ResultTable, BuiltinError> {
    let mut connection = context.unless_cancelled("the connection", connect(options)).await?;
    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await.map_err(classify_error)?;
    let patience = Duration::from_secs(input.timeout_seconds.into());
    let ended = tokio::select! {
        done = statement(&mut connection, input, context) => {
            let table = done?;
            // Nothing is left to be said; whether the server hears the goodbye does not matter.
            drop(timeout(POSTGRES_CANCEL_TIMEOUT, connection.close()).await);
            return Ok(table);
        }
        () = sleep(patience + STATEMENT_TIMEOUT_MARGIN) => {
            format!("the statement was cancelled after {} s; give timeoutSeconds a larger value if it needs longer", patience.as_secs())
        }
        () = context.cancelled().cancelled() => "the statement was cancelled because the run was to end".to_owned(),
    };
    // A task of its own: it goes on when the run is dropped.
    let cancelling = tokio::spawn(cancel(options.clone(), pid));
    match timeout(POSTGRES_CANCEL_TIMEOUT, cancelling).await {
        Ok(Ok(Ok(()))) => Err(BuiltinError::retry(ended)),
        Ok(Ok(Err(error))) => Err(error.with_context(format!("{ended}; the server did not hear it"))),
        Ok(Err(_)) | Err(_) => Err(BuiltinError::retry(format!("{ended}; the server has not answered yet"))),
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, BuiltinError> {
    timeout(POSTGRES_CONNECT_TIMEOUT, options.connect())
        .await
        .map_err(|_| {
            BuiltinError::retry(format!("the database did not answer within {} s", POSTGRES_CONNECT_TIMEOUT.as_secs()))
        })?
        .map_err(|error| classify_error(error).with_context("the database cannot be reached"))
}

async fn cancel(options: PgConnectOptions, pid: i32) -> Result<(), BuiltinError> {
    let mut connection = connect(&options).await?;
    sqlx::query("SELECT pg_cancel_backend($1)").bind(pid).execute(&mut connection).await.map_err(classify_error)?;
    Ok(())
}

async fn statement(
    connection: &mut PgConnection,
    input: &SqlQueryInput,
    context: &BuiltinContext,
) -> Result<ResultTable, BuiltinError> {
    let limit = format!("SET statement_timeout = {}", u64::from(input.timeout_seconds) * 1000);
    connection.execute(AssertSqlSafe(limit)).await.map_err(classify_error)?;
    if input.read_only {
        // A transaction of ours, so that the statement cannot end it and begin one of its own that writes.
        connection.execute("BEGIN READ ONLY").await.map_err(classify_error)?;
    }
    // It is what the job says, on purpose; what the account may do is the bound.
    let sql = AssertSqlSafe(input.query.clone()).into_sql_str();
    let prepared = connection.prepare(sql).await.map_err(classify_error)?;
    let arguments = bind(&prepared, &input.parameters)?;
    let mut table = ResultTable::new(input.max_rows);
    table.describe(
        prepared.columns().iter().map(|column| ResultColumn {
            name: column.name().to_owned(),
            kind: column.type_info().name().to_lowercase(),
        }),
    );
    let mut results = connection.fetch_many(prepared.query_with(arguments));
    while let Some(result) = results.next().await {
        match result.map_err(classify_error)? {
            Either::Left(done) => table.add_affected(done.rows_affected()),
            Either::Right(row) if table.can_keep_row() => {
                let cells = (0..row.len()).map(|place| cell(&row, place)).collect::<Result<_, _>>()?;
                table.push(cells, context.redactor());
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
