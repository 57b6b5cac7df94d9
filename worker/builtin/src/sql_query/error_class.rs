//! The distinction between retryable and permanent errors of a database.

use sqlx::{Error, error::DatabaseError, postgres::PgDatabaseError};

use crate::context::BuiltinError;

/// Converts an error of a database to a retryable or a permanent one.
pub(super) fn classify_error(error: Error) -> BuiltinError {
    let is_retryable = match &error {
        Error::Database(error) => match error.try_downcast_ref::<PgDatabaseError>() {
            Some(error) => is_retryable_sqlstate(error.code()),
            None => is_retryable_in_sqlite(error.as_ref()),
        },
        // The connection was lost or never made.
        Error::Io(_)
        | Error::Tls(_)
        | Error::Protocol(_)
        | Error::PoolTimedOut
        | Error::PoolClosed
        | Error::WorkerCrashed => true,
        _ => false,
    };
    let text = error_text(&error);
    if is_retryable { BuiltinError::retry(text) } else { BuiltinError::permanent(text) }
}

/// Returns true if PostgreSQL has cancelled the statement, at its timeout or because it was asked to.
pub(super) fn is_cancelled(error: &Error) -> bool {
    let Error::Database(error) = error else { return false };
    error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| error.code() == "57014")
}

/// Returns true if an attempt after this SQLSTATE (PostgreSQL, appendix A) may succeed.
fn is_retryable_sqlstate(state: &str) -> bool {
    let class = state.get(..2).unwrap_or_default();
    match state {
        // Serialization failure, deadlock, lock not available, query cancelled.
        "40001" | "40P01" | "55P03" | "57014" => true,
        // Administrator shutdown, crash shutdown, cannot connect now, idle session timeout.
        "57P01" | "57P02" | "57P03" | "57P05" => true,
        // Connections, resources (too many connections, disk full) and system errors. Also authentication, because an
        // admin may correct an account while the job waits.
        _ => matches!(class, "08" | "28" | "53" | "58"),
    }
}

/// Returns true if an attempt after this error may succeed. The primary result code is the last byte of an extended
/// one.
fn is_retryable_in_sqlite(error: &dyn DatabaseError) -> bool {
    let code = error.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff);
    // Busy, locked, interrupted, I/O error, disk full, cannot open.
    matches!(code, Some(5 | 6 | 9 | 10 | 13 | 14))
}

fn error_text(error: &Error) -> String {
    let Error::Database(inner) = error else { return error.to_string() };
    let Some(error) = inner.try_downcast_ref::<PgDatabaseError>() else { return inner.to_string() };
    let mut text = format!("{} (SQLSTATE {})", error.message(), error.code());
    for (word, more) in [("detail", error.detail()), ("hint", error.hint())] {
        if let Some(more) = more {
            text.push_str(&format!("; {word}: {more}"));
        }
    }
    if error.code() == "25006" {
        text.push_str("; set readOnly to false if the statement is intended to write");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_are_classified() {
        for (state, is_retryable) in [
            ("08006", true),
            ("28P01", true),
            ("40001", true),
            ("40P01", true),
            ("53300", true),
            ("55P03", true),
            ("57014", true),
            ("57P01", true),
            ("22P02", false),
            ("23505", false),
            ("25006", false),
            ("42601", false),
            ("42P01", false),
            ("42501", false),
        ] {
            assert_eq!(is_retryable_sqlstate(state), is_retryable, "{state}");
        }
    }
}
