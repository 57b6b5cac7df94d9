//! What can go wrong with the truth, sorted by who can do something about it.

use thiserror::Error;

use crate::error::chain;

/// A failure of PostgreSQL or of what it holds.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database did not answer, or answered with an error of its own.
    #[error("the database did not do what was asked")]
    Driver(#[from] sqlx::Error),
    /// A row holds what this version cannot read.
    #[error("{table}.{column} holds something unreadable: {detail}")]
    Corrupt {
        /// Which table.
        table: &'static str,
        /// Which column.
        column: &'static str,
        /// What is wrong with it.
        detail: String,
    },
}

/// The room's result.
pub type Result<T> = std::result::Result<T, StoreError>;

impl StoreError {
    /// The name of the constraint that refused, if that is what happened.
    #[must_use]
    pub fn constraint(&self) -> Option<&str> {
        match self {
            Self::Driver(sqlx::Error::Database(error)) => error.constraint(),
            _ => None,
        }
    }

    /// Whether the database refuses the values themselves, so that the same once more cannot fare better.
    #[must_use]
    pub fn is_about_values(&self) -> bool {
        match self {
            // Data exceptions, limits of the program, violated constraints: those that have a name. A partition that is
            // missing violates one without, and may be made in a moment.
            Self::Driver(sqlx::Error::Database(error)) => error.code().is_some_and(|code| {
                code.starts_with("22")
                    || code.starts_with("54")
                    || (code.starts_with("23") && (error.constraint().is_some() || code == "23502"))
            }),
            Self::Driver(sqlx::Error::Encode(_)) => true,
            _ => false,
        }
    }

    /// Whether the database is away, rather than displeased.
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
        tracing::error!(error = %chain(&error), "the database did not do what a person asked for");
        if error.is_outage() {
            Self::Unavailable("The database does not answer. Nothing was changed; try again in a moment.".into())
        } else {
            Self::Failed("Something went wrong in the database. The server's log has the details.".into())
        }
    }
}
