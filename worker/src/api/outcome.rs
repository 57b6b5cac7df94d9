//! How an attempt can end, and what is told about it.

use std::{error::Error, fmt, time::Duration};

use milvaion_protocol::{
    message::{MAX_RESULT_BYTES, truncate_text},
    status::OccurrenceStatus,
};

/// What a job returns when it did not do its work.
///
/// Any error turns into one by `?`, with the texts of its causes behind it, and counts as worth another try: as long as
/// the job has retries left, the server sends the occurrence again after the job's backoff, and nothing of it stays in
/// this process meanwhile. The other constructors say that it is something else:
///
/// | | Counts as a failure | What follows |
/// |---|---|---|
/// | `?`, [`new`](Self::new) | yes | the next attempt after the job's backoff, if a retry is left |
/// | [`retry_after`](Self::retry_after) | yes | the same, after the pause given here |
/// | [`permanent`](Self::permanent) | yes | nothing: the occurrence has failed |
/// | [`snooze`](Self::snooze) | no | the next attempt after the pause given here, however often |
/// | [`cancelled`](Self::cancelled) | no | nothing: the occurrence is cancelled |
pub struct JobError {
    text: String,
    kind: JobErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobErrorKind {
    Retryable(Option<Duration>),
    Permanent,
    Snooze(Duration),
    Cancelled,
}

impl JobError {
    /// A failure that another attempt may not meet.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Retryable(None) }
    }

    /// A failure that another attempt may not meet, but not before `pause` is over: what a server asks for with
    /// *Retry-After*. At most 30 days.
    #[must_use]
    pub fn retry_after(pause: Duration, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Retryable(Some(pause)) }
    }

    /// A failure that every attempt would meet: the input is wrong, the account is closed.
    #[must_use]
    pub fn permanent(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Permanent }
    }

    /// No failure, only too early: what the job waits for is not there yet. It runs again after `pause`, at most 30 days,
    /// and holds no place until then.
    #[must_use]
    pub fn snooze(pause: Duration, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Snooze(pause) }
    }

    /// There is nothing left to do, and nobody needs to look: the customer is gone, the order was withdrawn.
    #[must_use]
    pub fn cancelled(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: JobErrorKind::Cancelled }
    }

    /// The same, not to be tried again.
    #[must_use]
    pub fn into_permanent(self) -> Self {
        Self { kind: JobErrorKind::Permanent, ..self }
    }

    /// Whether another attempt is useless.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        matches!(self.kind, JobErrorKind::Permanent)
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
        Self { text, kind: JobErrorKind::Retryable(None) }
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
        /// The pause the job asks for before the next one; none means the job's backoff.
        retry_after: Option<Duration>,
        /// What went wrong, for people.
        exception: String,
    },
    /// It was too early.
    Snoozed {
        /// For how long.
        pause: Duration,
        /// What it waits for, for people.
        reason: String,
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
        /// Whether it went on when it was told to end, and was dropped where it stood.
        ignored: bool,
    },
    /// The worker had to stop before the run was over.
    Interrupted,
}

/// What is reported about an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeReport {
    /// The final status.
    pub status: OccurrenceStatus,
    /// At most [`MAX_RESULT_BYTES`] bytes.
    pub result: Option<String>,
    /// At most [`MAX_RESULT_BYTES`] bytes.
    pub exception: Option<String>,
    /// Whether another attempt is useless.
    pub permanent: bool,
    /// The pause before the next attempt, where it is not the job's backoff.
    pub retry_after: Option<Duration>,
}

impl Outcome {
    /// The one place that decides what an outcome means to the server. Whether a failure is followed by another attempt
    /// is not decided here: the server knows what the job has left. *Queued* hands the attempt back, which is no failure.
    #[must_use]
    pub fn into_report(self) -> OutcomeReport {
        let fit = |text| Some(truncate_text(strip_nul(text), MAX_RESULT_BYTES));
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
            Self::TimedOut { seconds, ignored } => {
                let how = if ignored { "; it did not end when it was told to and was dropped" } else { "" };
                let exception = format!(
                    "timed out: the run was ended after {seconds} s{how}; give the job a longer timeout if it needs one"
                );
                OutcomeReport { exception: fit(exception), ..blank(OccurrenceStatus::TimedOut) }
            }
            Self::Interrupted => OutcomeReport {
                exception: fit("interrupted: the worker stopped".to_owned()),
                ..blank(OccurrenceStatus::Queued)
            },
        }
    }
}

/// A text without NUL, the one character PostgreSQL has no place for.
pub(crate) fn strip_nul(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

impl From<Result<Option<String>, JobError>> for Outcome {
    fn from(returned: Result<Option<String>, JobError>) -> Self {
        match returned {
            Ok(result) => Self::Done { result },
            Err(JobError { text, kind }) => match kind {
                JobErrorKind::Retryable(retry_after) => Self::Failed { permanent: false, retry_after, exception: text },
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
    fn an_error_is_told_with_its_causes() {
        let error = JobError::from(OuterError(std::io::Error::other("line is dead")));
        assert_eq!(error.to_string(), "cannot send: line is dead");
        assert!(!error.is_permanent());
        assert!(error.into_permanent().is_permanent());
    }

    #[test]
    fn what_is_handed_back_is_no_failure() {
        let snoozed =
            Outcome::from(Err(JobError::snooze(Duration::from_secs(90), "the file is not there"))).into_report();
        assert_eq!((snoozed.status, snoozed.retry_after), (OccurrenceStatus::Queued, Some(Duration::from_secs(90))));
        assert_eq!(snoozed.exception.as_deref(), Some("snoozed: the file is not there"));
        assert_eq!(Outcome::Interrupted.into_report().status, OccurrenceStatus::Queued);
        let gone = Outcome::from(Err(JobError::cancelled("the order was withdrawn"))).into_report();
        assert_eq!(gone.status, OccurrenceStatus::Cancelled);
    }

    #[test]
    fn a_long_result_is_cut() {
        let settled = Outcome::Done { result: Some("x".repeat(MAX_RESULT_BYTES + 1)) }.into_report();
        assert!(settled.result.is_some_and(|text| text.len() <= MAX_RESULT_BYTES && text.ends_with("bytes cut]")));
    }
}
