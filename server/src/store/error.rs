//! The error of the store, with the distinctions that callers act on.

use thiserror::Error;

use crate::error::chain;

/// The text for a user whose request waited too long for a connection.
const EXHAUSTED_TEXT: &str = "The server has no free connection to PostgreSQL for this request, because other requests use \
                              all of them. Nothing was changed; try again in a moment.";
/// The text for a user whose request was stopped.
const TOO_SLOW_TEXT: &str = "PostgreSQL did not complete this request within 3 s, so it was stopped and nothing was \
                             changed: narrow the search, for example to a job or a shorter period, or select less";

/// A failure of PostgreSQL, or a value in it that cannot be read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The driver failed to reach PostgreSQL, or PostgreSQL returned an error.
    #[error("the PostgreSQL query failed")]
    Driver(#[source] sqlx::Error),
    /// No connection became free in time. PostgreSQL may be well.
    #[error("{EXHAUSTED_TEXT}")]
    Exhausted,
    /// A column holds a value that this version cannot read.
    #[error("column {table}.{column} holds an unreadable value: {detail}")]
    Corrupt {
        /// Table name.
        table: &'static str,
        /// Column name.
        column: &'static str,
        /// Description of the problem.
        detail: String,
    },
    /// A part of a job holds a value that this version cannot read, because a newer server has written it.
    #[error("this server cannot read {0}, which a newer server has written; upgrade it")]
    Unreadable(String),
    /// The database was not prepared by a server of this version; the text names the cause and the remedy.
    #[error("{0}")]
    Schema(&'static str),
}

/// The error of a request for which no place in the pool became free. It passes through the error type of sqlx, which cannot
/// tell it from an unreachable PostgreSQL.
#[derive(Debug, Error)]
#[error("all connections of the pool were in use")]
pub(super) struct PoolExhausted;

/// The result of a store function.
pub type Result<T> = std::result::Result<T, StoreError>;

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::AnyDriverError(error) if error.is::<PoolExhausted>() => Self::Exhausted,
            error => Self::Driver(error),
        }
    }
}

impl StoreError {
    /// Returns the name of the violated constraint, if the error is a constraint violation.
    #[must_use]
    pub fn constraint(&self) -> Option<&str> {
        match self {
            Self::Driver(sqlx::Error::Database(error)) => error.constraint(),
            _ => None,
        }
    }

    /// Returns true if PostgreSQL rejects the values themselves, so that a retry with the same values cannot succeed.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            // Data exceptions, exceeded program limits and violations of named constraints. A missing partition
            // violates a constraint without a name, and may be created in a moment.
            Self::Driver(sqlx::Error::Database(error)) => error.code().is_some_and(|code| {
                code.starts_with("22")
                    || code.starts_with("54")
                    || (code.starts_with("23") && (error.constraint().is_some() || code == "23502"))
            }),
            Self::Driver(sqlx::Error::Encode(_)) => true,
            _ => false,
        }
    }

    /// Returns true if PostgreSQL has ended a transaction because it and another one waited for each other.
    #[must_use]
    pub fn is_deadlock(&self) -> bool {
        matches!(self, Self::Driver(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code == "40P01"))
    }

    /// Returns true if a row belongs to a partition that does not exist.
    #[must_use]
    pub fn is_missing_partition(&self) -> bool {
        match self {
            Self::Driver(sqlx::Error::Database(error)) => {
                error.code().is_some_and(|code| code == "23514") && error.constraint().is_none()
            }
            _ => false,
        }
    }

    /// Returns true if no answer arrived, so that the statement may have changed rows or not.
    #[must_use]
    pub const fn is_unanswered(&self) -> bool {
        matches!(self, Self::Driver(sqlx::Error::Io(_) | sqlx::Error::Protocol(_)))
    }

    /// Returns true if PostgreSQL has stopped the statement at its time limit.
    #[must_use]
    pub fn is_too_slow(&self) -> bool {
        // SQLSTATE query_canceled. No part of the server cancels a statement in another way.
        matches!(self, Self::Driver(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code == "57014"))
    }

    /// Returns true if PostgreSQL is unreachable, read-only, shutting down or out of resources, or if no connection to it is
    /// free.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Driver(error) if is_read_only(error) => true,
            Self::Driver(sqlx::Error::Database(error)) => error
                .code()
                .is_some_and(|code| code.starts_with("57P") || code.starts_with("08") || code.starts_with("53")),
            Self::Exhausted => true,
            Self::Driver(
                sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Tls(_),
            ) => true,
            _ => false,
        }
    }
}

/// Returns true if PostgreSQL has refused a change because the session is read-only: its server has become a standby, or an
/// operator has stopped changes. The same change succeeds later, or over a connection to another server.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    // SQLSTATE read_only_sql_transaction.
    error.as_database_error().is_some_and(|error| error.code().is_some_and(|code| code == "25006"))
}

impl From<StoreError> for milvaion_app::error::AppError {
    fn from(error: StoreError) -> Self {
        if matches!(error, StoreError::Exhausted) {
            tracing::warn!(
                "a user's request waited too long for a connection to PostgreSQL; if this repeats, raise \
                 DATABASE_CONNECTIONS or look for slow searches"
            );
            return Self::Unavailable(error.to_string());
        }
        if error.is_too_slow() {
            tracing::warn!("a user's request took PostgreSQL longer than its time limit and was stopped");
            // Not `Unavailable`: pages repeat such a request by themselves.
            return Self::field("filter", TOO_SLOW_TEXT);
        }
        if let StoreError::Unreadable(part) = error {
            return Self::Conflict(format!(
                "This server cannot read {part} of this job, which a newer server has saved. Nothing was changed; upgrade this server."
            ));
        }
        tracing::error!(error = %chain(&error), "a user's request failed in PostgreSQL");
        if error.is_outage() {
            Self::Unavailable("PostgreSQL is unreachable. Nothing was changed; try again in a moment.".into())
        } else {
            Self::Failed("The database query failed. The server's log has the details.".into())
        }
    }
}
