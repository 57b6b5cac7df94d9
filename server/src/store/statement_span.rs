//! The span of each statement.
//!
//! Where no spans are recorded, a statement passes as it is. Otherwise its text is read first, which names the span; the
//! driver gives the text away only with the statement, so the parts are put together again. Parameters are not recorded.

use milvaion_telemetry::SPANS;
use sqlx::{Execute, Postgres, SqlStr, error::BoxDynError, postgres::PgArguments, postgres::PgStatement};
use tracing::{Level, Span, field::Empty};

/// The longest text of a statement in a span, in bytes.
const MAX_TEXT_BYTES: usize = 2_000;

/// A statement whose text may have been read.
pub(super) enum ReadStatement<E> {
    /// It was not read.
    Unread(E),
    /// It was read.
    Read {
        /// Its text.
        sql: SqlStr,
        /// Its parameters, until they are taken.
        arguments: Option<Result<Option<PgArguments>, BoxDynError>>,
        /// True if its plan is kept.
        is_persistent: bool,
    },
}

impl<'q, E: Execute<'q, Postgres>> ReadStatement<E> {
    /// Returns a statement and its span, which is disabled if no spans are recorded.
    pub(super) fn of(mut statement: E) -> (Self, Span) {
        let is_recorded = tracing::span_enabled!(target: SPANS, Level::INFO);
        if !is_recorded || statement.statement().is_some() {
            return (Self::Unread(statement), Span::none());
        }
        let (arguments, is_persistent) = (Some(statement.take_arguments()), statement.persistent());
        let sql = statement.sql();
        let text = sql.as_str();
        let span = tracing::info_span!(
            target: SPANS,
            "statement",
            otel.name = name(text),
            otel.kind = "client",
            otel.status_code = Empty,
            db.system.name = "postgresql",
            db.query.text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)],
        );
        (Self::Read { sql, arguments, is_persistent }, span)
    }
}

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for ReadStatement<E> {
    fn sql(self) -> SqlStr {
        match self {
            Self::Unread(statement) => statement.sql(),
            Self::Read { sql, .. } => sql,
        }
    }

    fn statement(&self) -> Option<&PgStatement> {
        match self {
            Self::Unread(statement) => statement.statement(),
            Self::Read { .. } => None,
        }
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        match self {
            Self::Unread(statement) => statement.take_arguments(),
            Self::Read { arguments, .. } => arguments.take().unwrap_or(Ok(None)),
        }
    }

    fn persistent(&self) -> bool {
        match self {
            Self::Unread(statement) => statement.persistent(),
            Self::Read { is_persistent, .. } => *is_persistent,
        }
    }
}

/// Marks a span as failed if the answer is an error.
pub(super) fn note_failure<T>(span: &Span, answer: &sqlx::Result<T>) {
    if answer.is_err() {
        span.record("otel.status_code", "ERROR");
    }
}

/// Returns a short name of a statement: its comment up to the first colon, or its verb and its first table.
fn name(sql: &str) -> String {
    if let Some(comment) = sql.trim_start().strip_prefix("-- ") {
        let end = comment.find([':', '.', '\n']).unwrap_or(comment.len());
        return comment[..end].to_owned();
    }
    let mut words = sql.split_whitespace();
    let verb = words.next().unwrap_or_default();
    let is_before_table = |word: &str| ["FROM", "INTO", "UPDATE"].contains(&word);
    if is_before_table(verb) {
        return format!("{verb} {}", words.next().unwrap_or_default());
    }
    let table = words.skip_while(|word| !is_before_table(word)).nth(1).unwrap_or_default();
    let table = table.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
    format!("{verb} {table}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_has_a_short_name() {
        for (sql, expected) in [
            (include_str!("create.sql"), "Creates occurrences"),
            ("SELECT id FROM jobs WHERE id = $1", "SELECT jobs"),
            ("UPDATE runs\n SET note = $1", "UPDATE runs"),
            ("DELETE FROM trigger_keys WHERE created_at < $1", "DELETE trigger_keys"),
            ("WITH a AS (SELECT * FROM unnest($1)) SELECT 1", "WITH unnest($1"),
            ("SELECT 1", "SELECT"),
            ("", ""),
        ] {
            assert_eq!(name(sql), expected);
        }
    }
}
