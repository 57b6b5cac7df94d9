//! Which errors of a database another attempt may not meet.

use sqlx::{Error, error::DatabaseError, postgres::PgDatabaseError};

use crate::context::BuiltinError;

/// A database's error as a failure.
pub(super) fn classify_error(error: Error) -> BuiltinError {
    let is_worth_it = match &error {
        Error::Database(error) => match error.try_downcast_ref::<PgDatabaseError>() {
            Some(error) => postgres(error.code()),
            None => sqlite(error.as_ref()),
        },
        // The line is dead, or was never there.
        Error::Io(_)
        | Error::Tls(_)
        | Error::Protocol(_)
        | Error::PoolTimedOut
        | Error::PoolClosed
        | Error::WorkerCrashed => true,
        _ => false,
    };
    let text = told(&error);
    if is_worth_it { BuiltinError::retry(text) } else { BuiltinError::permanent(text) }
}

/// By class of SQLSTATE (PostgreSQL, appendix A).
fn postgres(state: &str) -> bool {
    let class = state.get(..2).unwrap_or_default();
    match state {
        // Serialization failure, deadlock, a lock that is not to be had, ended from outside.
        "40001" | "40P01" | "55P03" | "57014" => true,
        // Going down, crashed, not up yet, database dropped under us.
        "57P01" | "57P02" | "57P03" | "57P05" => true,
        // Connections, resources (too many connections, disk full), the system below; and accounts, which somebody may
        // be putting right while the job waits.
        _ => matches!(class, "08" | "28" | "53" | "58"),
    }
}

/// By the primary result code, the last byte of an extended one.
fn sqlite(error: &dyn DatabaseError) -> bool {
    let code = error.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff);
    // Busy, locked, interrupted, input or output, full, cannot open.
    matches!(code, Some(5 | 6 | 9 | 10 | 13 | 14))
}

fn told(error: &Error) -> String {
    let Error::Database(inner) = error else { return error.to_string() };
    let Some(error) = inner.try_downcast_ref::<PgDatabaseError>() else { return inner.to_string() };
    let mut text = format!("{} (SQLSTATE {})", error.message(), error.code());
    for (word, more) in [("detail", error.detail()), ("hint", error.hint())] {
        if let Some(more) = more {
            text.push_str(&format!("; {word}: {more}"));
        }
    }
    if error.code() == "25006" {
        text.push_str("; set readOnly to false if the statement is to change something");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart() {
        for (state, is_worth_it) in [
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
            assert_eq!(postgres(state), is_worth_it, "{state}");
        }
    }
}
