//! The error of the store, with the distinctions that callers act on.

use thiserror::Error;

use crate::error::chain;

/// A failure of PostgreSQL, or a value in it that cannot be read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The driver failed to reach PostgreSQL, or PostgreSQL returned an error.
    #[error("the PostgreSQL query failed")]
    Driver(#[from] sqlx::Error),
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
    /// The database was not prepared by a server of this version; the text names the cause and the remedy.
    #[error("{0}")]
    Schema(&'static str),
}

/// The result of a store function.
pub type Result<T> = std::result::Result<T, StoreError>;

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

    /// Returns true if PostgreSQL is unreachable, shutting down or out of resources.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Driver(sqlx::Error::Database(error)) => error
                .code()
                .is_some_and(|code| code.starts_with("57P") || code.starts_with("08") || code.starts_with("53")),
            Self::Driver(
                sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Tls(_),
            ) => true,
            _ => false,
        }
    }
}

impl From<StoreError> for milvaion_app::error::AppError {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = %chain(&error), "a user's request failed in PostgreSQL");
        if error.is_outage() {
            Self::Unavailable("PostgreSQL is unreachable. Nothing was changed; try again in a moment.".into())
        } else {
            Self::Failed("The database query failed. The server's log has the details.".into())
        }
    }
}
