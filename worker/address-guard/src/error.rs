//! The error of the guard.

use std::fmt;

/// The reason why a request is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardError {
    text: String,
    is_permanent: bool,
}

impl GuardError {
    /// Returns an error that every further attempt would meet too.
    pub(crate) fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_permanent: true }
    }

    /// Returns an error that another attempt may not meet.
    pub(crate) fn retry(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_permanent: false }
    }

    /// Returns true if every further attempt would fail in the same way.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.is_permanent
    }
}

impl fmt::Display for GuardError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for GuardError {}
