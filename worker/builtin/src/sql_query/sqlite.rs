//! Statements on SQLite.
//!
//! SQLite runs every statement of a text, and a statement can open other files. A text is therefore checked first: it
//! must be one statement, and must not attach a file. It runs on a thread of its own, which checks every few thousand
//! steps whether it has to stop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures::StreamExt;
use serde_json::Value;
use sqlx::{
    Arguments, AssertSqlSafe, Column as _, ConnectOptions, Connection, Either, Executor, Row, SqliteConnection,
    TypeInfo, ValueRef,
    sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow},
};
use tokio::time::{sleep, timeout};

use super::{
    error_class::classify_error,
    input::SqlQueryInput,
    result_table::{ResultColumn, ResultTable},
};
use crate::context::{BuiltinContext, BuiltinError};

/// Timeout of waiting for a lock that another connection holds.
const SQLITE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Steps of SQLite's virtual machine between two checks of the stop flag. They take some microseconds.
const PROGRESS_HANDLER_STEPS: i32 = 4_000;
/// Time for which a run waits for an interrupted statement to stop.
const SQLITE_INTERRUPT_TIMEOUT: Duration = Duration::from_millis(800);

/// Runs the statement and reads its result.
///
/// # Errors
/// Returns a permanent error for a text that jobs must not run, a retryable error if the run has to end, and the
/// classified error of the statement.
pub(super) async fn run(
    options: &SqliteConnectOptions,
    input: &SqlQueryInput,
    context: &BuiltinContext,
) -> Result<ResultTable, BuiltinError> {
    check_statement(&input.query)?;
    let options = options.clone().read_only(input.read_only).busy_timeout(SQLITE_BUSY_TIMEOUT);
    let mut connection =
        options.connect().await.map_err(|error| classify_error(error).with_context("the database cannot be opened"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stop_flag = stop.clone();
    connection
        .lock_handle()
        .await
        .map_err(classify_error)?
        .set_progress_handler(PROGRESS_HANDLER_STEPS, move || !stop_flag.load(Ordering::Relaxed));
    let limit = Duration::from_secs(input.timeout_seconds.into());
    let ended = {
        let working = statement(&mut connection, input, context);
        tokio::pin!(working);
        let ended = tokio::select! {
            done = &mut working => None.ok_or(done),
            () = sleep(limit) => Ok(BuiltinError::timed_out(format!(
                "the statement was cancelled after {} s; increase timeoutSeconds if it needs longer", limit.as_secs()
            ))),
            () = context.cancelled().cancelled() => {
                Ok(BuiltinError::retry("the statement was cancelled because the run had to end"))
            }
        };
        if ended.is_ok() {
            stop.store(true, Ordering::Relaxed);
            // Its result is only that it was interrupted.
            drop(timeout(SQLITE_INTERRUPT_TIMEOUT, working).await);
        }
        ended
    };
    match ended {
        Ok(error) => Err(error),
        Err(done) => {
            let table = done?;
            connection.close().await.map_err(classify_error)?;
            Ok(table)
        }
    }
}

async fn statement(
    connection: &mut SqliteConnection,
    input: &SqlQueryInput,
    context: &BuiltinContext,
) -> Result<ResultTable, BuiltinError> {
    let mut arguments = SqliteArguments::default();
    for (index, value) in input.parameters.iter().enumerate() {
        add(&mut arguments, value)
            .map_err(|reason| BuiltinError::permanent(format!("`parameters[{index}]` cannot be bound: {reason}")))?;
    }
    let mut table = ResultTable::new(input.max_rows);
    let query = sqlx::query_with(AssertSqlSafe(input.query.clone()), arguments);
    let mut results = connection.fetch_many(query);
    while let Some(result) = results.next().await {
        match result.map_err(classify_error)? {
            Either::Left(done) => table.add_affected(done.rows_affected()),
            Either::Right(row) => {
                table.describe(row.columns().iter().map(|column| ResultColumn {
                    name: column.name().to_owned(),
                    kind: column.type_info().name().to_lowercase(),
                }));
                if table.can_keep_row() {
                    let cells = (0..row.len()).map(|index| cell(&row, index)).collect::<Result<_, _>>()?;
                    table.push(cells, context.redactor());
                } else {
                    table.skip();
                    if input.read_only {
                        break;
                    }
                }
            }
        }
    }
    Ok(table)
}

fn add(arguments: &mut SqliteArguments, value: &Value) -> Result<(), String> {
    let added = match value {
        Value::Null => arguments.add(None::<i64>),
        Value::Bool(value) => arguments.add(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => arguments.add(whole),
            (None, Some(float)) if !number.is_u64() => arguments.add(float),
            _ => return Err("SQLite has no number that large; give it as a string".to_owned()),
        },
        Value::String(text) => arguments.add(text.clone()),
        // SQLite's own JSON functions take this form.
        deep @ (Value::Array(_) | Value::Object(_)) => arguments.add(deep.to_string()),
    };
    added.map_err(|error| error.to_string())
}

/// Returns a cell as JSON, by the cell's own type: in SQLite a column's type is only a preference.
fn cell(row: &SqliteRow, index: usize) -> Result<Value, BuiltinError> {
    let raw = row.try_get_raw(index).map_err(classify_error)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let kind = raw.type_info().name().to_owned();
    match kind.as_str() {
        "INTEGER" => row.try_get_unchecked::<i64, _>(index).map(Value::from),
        "REAL" => row.try_get_unchecked::<f64, _>(index).map(Value::from),
        "BLOB" => row.try_get_unchecked::<Vec<u8>, _>(index).map(|bytes| BASE64_STANDARD.encode(bytes).into()),
        _ => row.try_get_unchecked::<String, _>(index).map(Value::from),
    }
    .map_err(classify_error)
}

/// The statements that reach beyond the database, or that have no use without a second statement.
const FORBIDDEN_STATEMENTS: [&str; 8] =
    ["ATTACH", "DETACH", "BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"];

/// Refuses more than one statement, and statements that jobs must not run.
///
/// # Errors
/// Returns a permanent error with the reason.
fn check_statement(sql: &str) -> Result<(), BuiltinError> {
    // SQLite treats a byte order mark as a space, and a parameter's name with a bracket may hide quotes.
    if sql.contains('\u{feff}') {
        return Err(BuiltinError::permanent(
            "`query` contains a byte order mark, which SQLite treats as a space; remove it",
        ));
    }
    if has_parameter_with_bracket(sql) {
        return Err(BuiltinError::permanent(
            "`query` contains a parameter whose name has a bracket, such as $name(; give parameters plain names",
        ));
    }
    let words = bare_words(sql);
    let mut ended = false;
    for word in &words {
        match word.as_str() {
            ";" => ended = true,
            _ if ended => {
                return Err(BuiltinError::permanent(
                    "`query` has more than one statement; run each in a job of its own",
                ));
            }
            _ => {}
        }
    }
    let first = words.first().map(String::as_str).unwrap_or_default();
    let writes_a_file = first == "VACUUM" && words.iter().any(|word| word == "INTO");
    if FORBIDDEN_STATEMENTS.contains(&first) || writes_a_file {
        return Err(BuiltinError::permanent(format!("`query` starts with {first}, which jobs may not run on SQLite")));
    }
    Ok(())
}

/// Returns true if `$`, `@`, `:` or `#` is followed by a name and `(`. SQLite reads such a name up to the closing
/// bracket.
fn has_parameter_with_bracket(sql: &str) -> bool {
    let mut in_name = false;
    sql.chars().any(|c| {
        let is_end = in_name && c == '(';
        in_name = matches!(c, '$' | '@' | ':' | '#') || (in_name && (c.is_alphanumeric() || c == '_' || !c.is_ascii()));
        is_end
    })
}

/// Returns the words of a statement in upper case, and its other characters. Comments are left out. Of a quoted text
/// only the opening quote remains.
fn bare_words(sql: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut letters = sql.chars().peekable();
    while let Some(c) = letters.next() {
        if c.is_alphanumeric() || c == '_' {
            word.extend(c.to_uppercase());
            continue;
        }
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        match (c, letters.peek()) {
            ('-', Some('-')) => skip_past(&mut letters, |c| c == '\n'),
            ('/', Some('*')) => {
                letters.next();
                let mut before = ' ';
                skip_past(&mut letters, |c| std::mem::replace(&mut before, c) == '*' && c == '/');
            }
            ('\'' | '"' | '`' | '[', _) => {
                // A doubled quote ends one text and starts the next, with the same effect.
                let close = if c == '[' { ']' } else { c };
                skip_past(&mut letters, |c| c == close);
                words.push(c.to_string());
            }
            (c, _) if c.is_whitespace() => {}
            (c, _) => words.push(c.to_string()),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

fn skip_past(letters: &mut impl Iterator<Item = char>, mut is_end: impl FnMut(char) -> bool) {
    let _ = letters.find(|c| is_end(*c));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_statements_are_refused() {
        for sql in [
            "select 1",
            "select 1;",
            "select ';'; -- and no more; really",
            "/* a; b */ select 1 /* c; */",
            "select \"a;b\", [c;d], `e;f`, 'it''s; fine'",
            "-- first\nselect 1",
            "select abs(:number), count(*) from t where x = $1",
        ] {
            assert!(check_statement(sql).is_ok(), "{sql}");
        }
        for (sql, message) in [
            ("select 1; select 2", "more than one"),
            ("select 1;;delete from t", "more than one"),
            ("select ''';'; drop table t", "more than one"),
            ("select 1 -- ;\n; drop table t", "more than one"),
            ("attach '/etc/x' as y", "ATTACH"),
            ("/* */ AtTaCh'/etc/x' as y", "ATTACH"),
            ("begin", "BEGIN"),
            ("\u{feff}VACUUM INTO '/tmp/x'", "byte order mark"),
            ("select $1('); attach '/etc/x' as y; --", "bracket"),
            ("select :a::b('); attach '/etc/x' as y; --", "bracket"),
            ("vacuum main into '/tmp/x'", "VACUUM"),
        ] {
            let failure = check_statement(sql).expect_err(sql);
            assert!(failure.is_permanent() && failure.to_string().contains(message), "{sql}: {failure}");
        }
    }
}
