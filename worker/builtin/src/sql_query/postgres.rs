//! Statements on PostgreSQL.
//!
//! A statement is sent through the extended protocol, which takes one statement and no more. The server reports the
//! types of the parameters, and they are bound with these types. Dropping a connection does not end its statement on
//! the server, so a run that has to end asks the server, over a second connection, to cancel the statement.

use std::time::{Duration, Instant};

use futures::StreamExt;
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions, Connection, Either, Executor, PgConnection, Row, SqlSafeStr, Statement,
    TypeInfo, postgres::PgConnectOptions,
};
use tokio::time::{sleep, timeout};

use super::{
    error_class::{classify_error, is_cancelled},
    input::SqlQueryInput,
    postgres_cells::cell,
    postgres_parameters::bind,
    result_table::{ResultColumn, ResultTable},
};
use crate::context::{BuiltinContext, BuiltinError};

/// Timeout of connecting to the server, authentication included.
const POSTGRES_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after the server's own timeout from which on the statement is cancelled over a second connection.
const STATEMENT_TIMEOUT_MARGIN: Duration = Duration::from_secs(2);
/// Time for which a run waits for its cancellation, out of the one second that it has. A slower cancellation continues
/// without the run.
const POSTGRES_CANCEL_TIMEOUT: Duration = Duration::from_millis(800);

/// Runs the statement and reads its result.
///
/// # Errors
/// Returns a retryable error if the run has to end or the connection fails, and the classified error of the statement.
pub(super) async fn run(
    options: &PgConnectOptions,
    input: &SqlQueryInput,
    context: &BuiltinContext,
) -> Result<ResultTable, BuiltinError> {
    let mut connection = context.unless_cancelled("connecting to the database", connect(options)).await?;
    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await.map_err(classify_error)?;
    let limit = Duration::from_secs(input.timeout_seconds.into());
    let stopped = tokio::select! {
        done = statement(&mut connection, input, context) => {
            let table = done?;
            // The result is complete, so a connection that does not close in time does not matter.
            drop(timeout(POSTGRES_CANCEL_TIMEOUT, connection.close()).await);
            return Ok(table);
        }
        () = sleep(limit + STATEMENT_TIMEOUT_MARGIN) => {
            let seconds = limit.as_secs();
            BuiltinError::timed_out(format!(
                "the statement was cancelled after {seconds} s; increase timeoutSeconds if it needs longer"
            ))
        }
        () = context.cancelled().cancelled() => {
            BuiltinError::retry("the statement was cancelled because the run had to end")
        }
    };
    // A task of its own, which continues when the run is dropped.
    let cancelling = tokio::spawn(cancel(options.clone(), pid));
    match timeout(POSTGRES_CANCEL_TIMEOUT, cancelling).await {
        Ok(Ok(Ok(()))) => Err(stopped),
        Ok(Ok(Err(error))) => Err(stopped.with_remark(format!("the server did not receive the cancellation: {error}"))),
        Ok(Err(_)) | Err(_) => Err(stopped.with_remark("the server has not confirmed the cancellation yet")),
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, BuiltinError> {
    timeout(POSTGRES_CONNECT_TIMEOUT, options.connect())
        .await
        .map_err(|_| {
            BuiltinError::retry(format!("the database did not respond within {} s", POSTGRES_CONNECT_TIMEOUT.as_secs()))
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
    let (started, limit) = (Instant::now(), Duration::from_secs(input.timeout_seconds.into()));
    let set_limit = format!("SET statement_timeout = {}", limit.as_millis());
    connection.execute(AssertSqlSafe(set_limit)).await.map_err(classify_error)?;
    if input.read_only {
        // The transaction is ours, so the statement cannot end it and start one that writes.
        connection.execute("BEGIN READ ONLY").await.map_err(classify_error)?;
    }
    // The text comes from the job on purpose. The rights of the database account are the limit.
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
        let result = result.map_err(|error| {
            // PostgreSQL reports the same code for a statement that an admin cancels.
            let is_over_limit = started.elapsed() >= limit && is_cancelled(&error);
            let error = classify_error(error);
            if is_over_limit {
                BuiltinError::timed_out(error).with_remark("increase timeoutSeconds if it needs longer")
            } else {
                error
            }
        });
        match result? {
            Either::Left(done) => table.add_affected(done.rows_affected()),
            Either::Right(row) if table.can_keep_row() => {
                let cells = (0..row.len()).map(|index| cell(&row, index)).collect::<Result<_, _>>()?;
                table.push(cells, context.redactor());
            }
            Either::Right(_) => {
                table.skip();
                // A statement that only reads need not be read to its end. One that writes must run to its end.
                if input.read_only {
                    break;
                }
            }
        }
    }
    Ok(table)
}
