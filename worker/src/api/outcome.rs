//! The ways in which an attempt can end, and the report of each.

use std::{error::Error, fmt, time::Duration};

use milvaion_protocol::{
    message::{MAX_RESULT_BYTES, truncate_text},
    status::OccurrenceStatus,
    storable::clean_text,
};

use crate::api::error::chain;

/// The error of a job that did not do its work.
///
/// `?` converts any error into a `JobError`, also one of `anyhow` or `eyre`, a `Box<dyn Error + Send + Sync>` and a text, with
/// the texts of its causes appended. A `Box<dyn Error>` must not leave its thread and becomes a text first:
/// `.map_err(|error| error.to_string())?`. Such an error is a retryable failure: as long as the job has retries left, the
/// server sends the occurrence again after the job's backoff. A pending retry uses no resources of this process. The other
/// constructors have other consequences:
///
/// | Constructor | Counts as a failure | Consequence |
/// |---|---|---|
/// | `?`, [`new`](Self::new) | yes | the next attempt after the job's backoff, if a retry is left |
/// | [`retry_after`](Self::retry_after) | yes | the next attempt after the given delay, if a retry is left |
/// | [`timed_out`](Self::timed_out) | yes | the same, but the attempt is *Timed out* |
/// | [`permanent`](Self::permanent) | yes | none: the occurrence has failed |
/// | [`snooze`](Self::snooze) | no | the next attempt after the given delay, up to 10,000 attempts per occurrence |
/// | [`cancelled`](Self::cancelled) | no | none: the occurrence is cancelled |
pub struct JobError {
    text: String,
    kind: JobErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobErrorKind {
    Retryable(Option<Duration>),
    TimedOut,
    Permanent,
    Snooze(Duration),
    Cancelled,
}

impl JobError {
    /// Creates a retryable failure.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Retryable(None) }
    }

    /// Creates a retryable failure whose retry starts `pause` from now at the earliest, such as the delay that a server
    /// requests with *Retry-After*. At most 30 days.
    #[must_use]
    pub fn retry_after(pause: Duration, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Retryable(Some(pause)) }
    }

    /// Creates a retryable failure of a job that has exceeded a time limit of its own, such as one in its input. The attempt
    /// ends as if the timeout of the job had expired, so that alert rules and lists of timeouts contain it.
    #[must_use]
    pub fn timed_out(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::TimedOut }
    }

    /// Creates a failure that a retry cannot fix, such as an invalid input or a closed account.
    #[must_use]
    pub fn permanent(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Permanent }
    }

    /// Creates a delay, which is not a failure: something that the job needs is not available yet. The occurrence runs
    /// again after `pause`, at most 30 days, and uses no permit until then.
    #[must_use]
    pub fn snooze(pause: Duration, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Snooze(pause) }
    }

    /// Creates a cancellation: nothing is left to do and no user needs to react, for example because the order was
    /// withdrawn.
    #[must_use]
    pub fn cancelled(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Cancelled }
    }

    /// Converts the error into a failure that is not retried.
    #[must_use]
    pub fn into_permanent(self) -> Self {
        Self { kind: JobErrorKind::Permanent, ..self }
    }

    /// Returns true if the failure is not retried.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        matches!(self.kind, JobErrorKind::Permanent)
    }

    /// Returns true for a [time limit](Self::timed_out) that the job has exceeded.
    #[must_use]
    pub const fn is_timed_out(&self) -> bool {
        matches!(self.kind, JobErrorKind::TimedOut)
    }

    /// Returns true for a [`snooze`](Self::snooze), which is not a failure.
    #[must_use]
    pub const fn is_snooze(&self) -> bool {
        matches!(self.kind, JobErrorKind::Snooze(_))
    }

    /// Returns true for a [cancellation](Self::cancelled), which is not a failure.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        matches!(self.kind, JobErrorKind::Cancelled)
    }

    /// Returns the delay that the job requests before the next attempt; `None` if it requests none, so that the backoff of
    /// the job applies to a failure.
    #[must_use]
    pub const fn delay(&self) -> Option<Duration> {
        match self.kind {
            JobErrorKind::Retryable(delay) => delay,
            JobErrorKind::Snooze(delay) => Some(delay),
            JobErrorKind::TimedOut | JobErrorKind::Permanent | JobErrorKind::Cancelled => None,
        }
    }
}

// Like other catch-all error types, `JobError` does not implement `Error`: this conversion would overlap with `From<T>
// for T`. Through the box it takes every error, those of `anyhow` and `eyre`, boxed errors, and texts.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for JobError {
    fn from(error: E) -> Self {
        Self { text: chain(&*error.into(), ": "), kind: JobErrorKind::Retryable(None) }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError").field("text", &self.text).field("kind", &self.kind).finish()
    }
}

/// The end of an attempt. An attempt cannot end in any other way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The job has done its work.
    Done {
        /// The return value as text; `None` for `()`.
        result: Option<String>,
    },
    /// The job failed, panicked, or could not read its input.
    Failed {
        /// True if the failure is not retried.
        permanent: bool,
        /// The delay that the job requests before the retry; `None` means the job's backoff.
        retry_after: Option<Duration>,
        /// The text of the error, for users.
        exception: String,
    },
    /// The job asked to run again later.
    Snoozed {
        /// The delay before the next attempt.
        pause: Duration,
        /// The reason, for users.
        reason: String,
    },
    /// A user cancelled the run, or the job reported that nothing is left to do.
    Cancelled {
        /// The reason, for users.
        reason: String,
    },
    /// The timeout, or a time limit of the job itself, expired.
    TimedOut {
        /// The text of the error, for users.
        exception: String,
    },
    /// The worker stopped before the run ended.
    Interrupted,
}

/// The content of the final report of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutcomeReport {
    /// The final status.
    pub status: OccurrenceStatus,
    /// The return value, at most [`MAX_RESULT_BYTES`] bytes.
    pub result: Option<String>,
    /// The text of a failure, or the reason of another end, at most [`MAX_RESULT_BYTES`] bytes.
    pub exception: Option<String>,
    /// True if a failure is not retried.
    pub permanent: bool,
    /// The delay before the next attempt; `None` means the job's backoff.
    pub retry_after: Option<Duration>,
}

impl Outcome {
    /// Converts the outcome into the report that the server receives. This is the only place that decides what an
    /// outcome means to the server. It does not decide whether a retry follows, because only the server has the number
    /// of retries that are left. *Queued* hands the attempt back, which is not a failure.
    #[must_use]
    pub(crate) fn into_report(self) -> OutcomeReport {
        let fit = |text: String| Some(truncate_text(clean_text(text), MAX_RESULT_BYTES));
        let blank =
            |status| OutcomeReport { status, result: None, exception: None, permanent: false, retry_after: None };
        match self {
            Self::Done { result } => {
                OutcomeReport { result: result.and_then(fit), ..blank(OccurrenceStatus::Completed) }
            }
            Self::Failed { permanent, retry_after, exception } => {
                OutcomeReport { exception: fit(exception), permanent, retry_after, ..blank(OccurrenceStatus::Failed) }
            }
            Self::Snoozed { pause, reason } => OutcomeReport {
                exception: fit(format!("snoozed: {reason}")),
                retry_after: Some(pause),
                ..blank(OccurrenceStatus::Queued)
            },
            Self::Cancelled { reason } => {
                OutcomeReport { exception: fit(reason), ..blank(OccurrenceStatus::Cancelled) }
            }
            Self::TimedOut { exception } => {
                OutcomeReport { exception: fit(exception), ..blank(OccurrenceStatus::TimedOut) }
            }
            Self::Interrupted => OutcomeReport {
                exception: fit("interrupted: the worker stopped".to_owned()),
                ..blank(OccurrenceStatus::Queued)
            },
        }
    }
}

impl From<Result<Option<String>, JobError>> for Outcome {
    fn from(returned: Result<Option<String>, JobError>) -> Self {
        match returned {
            Ok(result) => Self::Done { result },
            Err(JobError { text, kind }) => match kind {
                JobErrorKind::Retryable(retry_after) => Self::Failed { permanent: false, retry_after, exception: text },
                JobErrorKind::TimedOut => Self::TimedOut { exception: text },
                JobErrorKind::Permanent => Self::Failed { permanent: true, retry_after: None, exception: text },
                JobErrorKind::Snooze(pause) => Self::Snoozed { pause, reason: text },
                JobErrorKind::Cancelled => Self::Cancelled { reason: text },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot send")]
    struct OuterError(#[source] std::io::Error);

    #[test]
    fn errors_keep_the_texts_of_their_causes() {
        let error = JobError::from(OuterError(std::io::Error::other("line is dead")));
        assert_eq!(error.to_string(), "cannot send: line is dead");
        assert!(!error.is_permanent());
        assert!(error.into_permanent().is_permanent());
    }

    #[test]
    fn layer_can_read_what_follows_an_error() {
        let minute = Duration::from_secs(60);
        let read = |error: JobError| (error.is_permanent(), error.is_snooze(), error.is_cancelled(), error.delay());
        assert_eq!(read(JobError::new("later")), (false, false, false, None));
        assert_eq!(read(JobError::retry_after(minute, "later")), (false, false, false, Some(minute)));
        assert_eq!(read(JobError::timed_out("slow")), (false, false, false, None));
        assert!(JobError::timed_out("slow").is_timed_out() && !JobError::new("later").is_timed_out());
        assert_eq!(read(JobError::permanent("never")), (true, false, false, None));
        assert_eq!(read(JobError::snooze(minute, "not yet")), (false, true, false, Some(minute)));
        assert_eq!(read(JobError::cancelled("not needed")), (false, false, true, None));
    }

    #[test]
    fn handed_back_attempts_are_not_failures() {
        let snoozed =
            Outcome::from(Err(JobError::snooze(Duration::from_secs(90), "the file is not there"))).into_report();
        assert_eq!((snoozed.status, snoozed.retry_after), (OccurrenceStatus::Queued, Some(Duration::from_secs(90))));
        assert_eq!(snoozed.exception.as_deref(), Some("snoozed: the file is not there"));
        assert_eq!(Outcome::Interrupted.into_report().status, OccurrenceStatus::Queued);
        let gone = Outcome::from(Err(JobError::cancelled("the order was withdrawn"))).into_report();
        assert_eq!(gone.status, OccurrenceStatus::Cancelled);
    }

    #[test]
    fn own_time_limit_ends_as_timed_out() {
        let report = Outcome::from(Err(JobError::timed_out("the program took longer than 5 s"))).into_report();
        assert_eq!((report.status, report.permanent), (OccurrenceStatus::TimedOut, false));
        assert_eq!(report.exception.as_deref(), Some("the program took longer than 5 s"));
    }

    #[test]
    fn long_results_are_truncated() {
        let settled = Outcome::Done { result: Some("x".repeat(MAX_RESULT_BYTES + 1)) }.into_report();
        assert!(settled.result.is_some_and(|text| text.len() <= MAX_RESULT_BYTES && text.ends_with("bytes cut]")));
    }
}
