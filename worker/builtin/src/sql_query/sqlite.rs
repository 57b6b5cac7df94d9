//! A statement on SQLite.
//!
//! SQLite runs every statement of a text and lets one open other files, so a text is looked through first: one statement,
//! and none that attaches. It runs on a thread of its own, which asks every few thousand steps whether it is to go on.

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

/// How long a lock of somebody else is waited for.
const SQLITE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How many steps of SQLite's machine lie between two looks at the flag; some microseconds.
const PROGRESS_HANDLER_STEPS: i32 = 4_000;
/// How long an interrupted statement may take to notice.
const SQLITE_INTERRUPT_TIMEOUT: Duration = Duration::from_millis(800);

pub(super) async fn run(
    options: &SqliteConnectOptions,
    input: &SqlQueryInput,
    context: &BuiltinContext,
) -> Result<ResultTable, BuiltinError> {
    one_statement(&input.query)?;
    let options = options.clone().read_only(input.read_only).busy_timeout(SQLITE_BUSY_TIMEOUT);
    let mut connection =
        options.connect().await.map_err(|error| classify_error(error).with_context("the database cannot be opened"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    connection
        .lock_handle()
        .await
        .map_err(classify_error)?
        .set_progress_handler(PROGRESS_HANDLER_STEPS, move || !asked.load(Ordering::Relaxed));
    let patience = Duration::from_secs(input.timeout_seconds.into());
    let ended = {
        let working = statement(&mut connection, input, context);
        tokio::pin!(working);
        let ended = tokio::select! {
            done = &mut working => None.ok_or(done),
            () = sleep(patience) => Ok(format!(
                "the statement was ended after {} s; give timeoutSeconds a larger value if it needs longer", patience.as_secs()
            )),
            () = context.cancelled().cancelled() => Ok("the statement was ended because the run was to end".to_owned()),
        };
        if ended.is_ok() {
            stop.store(true, Ordering::Relaxed);
            // What it says now is that it was interrupted.
            drop(timeout(SQLITE_INTERRUPT_TIMEOUT, working).await);
        }
        ended
    };
    match ended {
        Ok(text) => Err(BuiltinError::retry(text)),
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
    for (place, value) in input.parameters.iter().enumerate() {
        add(&mut arguments, value)
            .map_err(|reason| BuiltinError::permanent(format!("`parameters[{place}]` cannot be bound: {reason}")))?;
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
                    let cells = (0..row.len()).map(|place| cell(&row, place)).collect::<Result<_, _>>()?;
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
            _ => return Err("SQLite has no number that large; give it as a text".to_owned()),
        },
        Value::String(text) => arguments.add(text.clone()),
        // As SQLite's own JSON functions take it.
        deep @ (Value::Array(_) | Value::Object(_)) => arguments.add(deep.to_string()),
    };
    added.map_err(|error| error.to_string())
}

/// A cell by the type it has itself: a column's type is only a wish in SQLite.
fn cell(row: &SqliteRow, place: usize) -> Result<Value, BuiltinError> {
    let raw = row.try_get_raw(place).map_err(classify_error)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let kind = raw.type_info().name().to_owned();
    match kind.as_str() {
        "INTEGER" => row.try_get_unchecked::<i64, _>(place).map(Value::from),
        "REAL" => row.try_get_unchecked::<f64, _>(place).map(Value::from),
        "BLOB" => row.try_get_unchecked::<Vec<u8>, _>(place).map(|bytes| BASE64_STANDARD.encode(bytes).into()),
        _ => row.try_get_unchecked::<String, _>(place).map(Value::from),
    }
    .map_err(classify_error)
}

/// The statements that reach beyond the database, or would have to be followed by another.
const FORBIDDEN_STATEMENTS: [&str; 8] =
    ["ATTACH", "DETACH", "BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"];

/// Refuses more than one statement, and those that are not for jobs.
fn one_statement(sql: &str) -> Result<(), BuiltinError> {
    // To SQLite the first is a blank, and the second may hide quotes in a parameter's name.
    if sql.contains('\u{feff}') {
        return Err(BuiltinError::permanent(
            "`query` has a byte order mark in it, which SQLite takes for a blank; remove it",
        ));
    }
    if names_a_parameter_with_brackets(sql) {
        return Err(BuiltinError::permanent(
            "`query` has a parameter's mark, a name and a bracket in a row, such as $name(; give parameters plain names",
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
        return Err(BuiltinError::permanent(format!("`query` begins with {first}, which jobs may not do on SQLite")));
    }
    Ok(())
}

/// Whether `$`, `@`, `:` or `#` is followed by a name and `(`, which SQLite reads up to the closing bracket.
fn names_a_parameter_with_brackets(sql: &str) -> bool {
    let mut in_name = false;
    sql.chars().any(|c| {
        let is_end = in_name && c == '(';
        in_name = matches!(c, '$' | '@' | ':' | '#') || (in_name && (c.is_alphanumeric() || c == '_' || !c.is_ascii()));
        is_end
    })
}

/// The words of a statement in capitals and its other marks, without comments and without what stands in quotes, of which
/// only a mark is left.
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
                // A doubled quote ends one text and begins the next, which comes to the same.
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
    fn one_statement_is_told_from_several() {
        for sql in [
            "select 1",
            "select 1;",
            "select ';'; -- and no more; really",
            "/* a; b */ select 1 /* c; */",
            "select \"a;b\", [c;d], `e;f`, 'it''s; fine'",
            "-- first\nselect 1",
            "select abs(:number), count(*) from t where x = $1",
        ] {
            assert!(one_statement(sql).is_ok(), "{sql}");
        }
        for (sql, told) in [
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
            let failure = one_statement(sql).expect_err(sql);
            assert!(failure.is_permanent() && failure.to_string().contains(told), "{sql}: {failure}");
        }
    }
}
