//! How an attempt can end, and what is told about it.

use std::{error::Error, fmt};

use protocol::{
    message::{MAX_RESULT, cut},
    status::OccurrenceStatus,
};

/// What a job returns when it did not do its work.
///
/// Any error turns into one by `?`, with the texts of its causes behind it, and counts as worth another try. Say
/// [`permanent`](Self::permanent) when another try cannot help: the input is wrong, the account is closed.
pub struct JobError {
    text: String,
    permanent: bool,
}

impl JobError {
    /// A failure that another attempt may not meet.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), permanent: false }
    }

    /// A failure that every attempt would meet.
    #[must_use]
    pub fn permanent(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), permanent: true }
    }

    /// The same failure, not to be tried again.
    #[must_use]
    pub fn into_permanent(self) -> Self {
        Self { permanent: true, ..self }
    }

    /// Whether another attempt is useless.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.permanent
    }
}

// As with other catch-all error types, `JobError` itself is no `Error`: this conversion would overlap with the identity.
impl<E: Error> From<E> for JobError {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let next = error.to_string();
            // Many errors repeat their cause in their own text.
            if !text.ends_with(&next) {
                text.push_str(": ");
                text.push_str(&next);
            }
            cause = error.source();
        }
        Self { text, permanent: false }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError").field("text", &self.text).field("permanent", &self.permanent).finish()
    }
}

/// How an attempt ended. Nothing else can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The work is done.
    Done {
        /// What the job returned, as text; none for `()`.
        result: Option<String>,
    },
    /// The job failed, panicked, or could not read its input.
    Failed {
        /// Whether another attempt is useless.
        permanent: bool,
        /// What went wrong, for people.
        exception: String,
    },
    /// Somebody asked for it to end.
    Cancelled {
        /// Why, for people.
        reason: String,
    },
    /// Its time was up.
    TimedOut {
        /// How many seconds it had.
        seconds: u64,
    },
    /// The worker had to stop before the run was over.
    Interrupted,
}

/// What is reported about an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The final status.
    pub status: OccurrenceStatus,
    /// At most [`MAX_RESULT`] bytes.
    pub result: Option<String>,
    /// At most [`MAX_RESULT`] bytes.
    pub exception: Option<String>,
}

impl Outcome {
    /// The one place that decides what an outcome means to the server. Every failure is final here; whoever brings
    /// retries makes a failure that is not permanent, and an interruption, into a next attempt at this place.
    #[must_use]
    pub fn settle(self) -> Settlement {
        let (status, result, exception) = match self {
            Self::Done { result } => (OccurrenceStatus::Completed, result, None),
            Self::Failed { exception, .. } => (OccurrenceStatus::Failed, None, Some(exception)),
            Self::Cancelled { reason } => (OccurrenceStatus::Cancelled, None, Some(reason)),
            Self::TimedOut { seconds } => {
                let exception = format!(
                    "timed out: the run was ended after {seconds} s; give the job a longer timeout if it needs one"
                );
                (OccurrenceStatus::TimedOut, None, Some(exception))
            }
            Self::Interrupted => (OccurrenceStatus::Failed, None, Some("interrupted: the worker stopped".to_owned())),
        };
        let fit = |text| cut(storable(text), MAX_RESULT);
        Settlement { status, result: result.map(fit), exception: exception.map(fit) }
    }
}

/// A text without NUL, the one character PostgreSQL has no place for.
pub(crate) fn storable(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

impl From<Result<Option<String>, JobError>> for Outcome {
    fn from(returned: Result<Option<String>, JobError>) -> Self {
        match returned {
            Ok(result) => Self::Done { result },
            Err(error) => Self::Failed { permanent: error.permanent, exception: error.text },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot send")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn an_error_is_told_with_its_causes() {
        let error = JobError::from(Outer(std::io::Error::other("line is dead")));
        assert_eq!(error.to_string(), "cannot send: line is dead");
        assert!(!error.is_permanent());
        assert!(error.into_permanent().is_permanent());
    }

    #[test]
    fn a_long_result_is_cut() {
        let settled = Outcome::Done { result: Some("x".repeat(MAX_RESULT + 1)) }.settle();
        assert!(settled.result.is_some_and(|text| text.len() <= MAX_RESULT && text.ends_with("bytes cut]")));
    }
}
