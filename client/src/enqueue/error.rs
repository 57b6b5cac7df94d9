//! Everything that can go wrong when occurrences are enqueued.

use milvaion_protocol::{
    id::OccurrenceId,
    message::{IngestResult, MAX_JOB_DATA_BYTES, MAX_UNIQUENESS_KEY_CHARS, NewOccurrence},
};

/// A failure to enqueue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The input cannot be written as JSON.
    #[error("The input cannot be written as JSON: {reason}. Use maps whose keys are texts.")]
    UnwritableInput {
        /// The reason.
        reason: String,
    },

    /// The input is too long.
    #[error(
        "The input has {bytes} bytes of JSON. It takes at most {MAX_JOB_DATA_BYTES} bytes: store the data elsewhere, and pass its address."
    )]
    InputTooLong {
        /// Its length.
        bytes: usize,
    },

    /// The priority is out of its bounds.
    #[error("The priority {priority} is not one of 1 (idle) to 5 (critical).")]
    InvalidPriority {
        /// The priority.
        priority: u8,
    },

    /// The uniqueness key is empty or too long.
    #[error("The uniqueness key has {chars} characters. Give one with 1 to {MAX_UNIQUENESS_KEY_CHARS} characters.")]
    InvalidUniquenessKey {
        /// Its length.
        chars: usize,
    },

    /// The environment variable `AMQP_URL` is not set.
    #[error(
        "Set the environment variable AMQP_URL to the address of the broker, such as amqp://user:passphrase@127.0.0.1:5672/%2f."
    )]
    MissingAddress,

    /// The text is not the address of a broker.
    #[error(
        "The address of the broker cannot be used: {reason}. Give one such as amqp://user:passphrase@127.0.0.1:5672/%2f."
    )]
    InvalidAddress {
        /// The reason.
        reason: String,
    },

    /// The server does not accept the occurrence.
    #[error("Occurrence {id} was rejected: {reason}")]
    Rejected {
        /// The occurrence.
        id: OccurrenceId,
        /// The reason and the remedy.
        reason: String,
        /// True if the same occurrence may be accepted later, such as when its job is resumed.
        is_retryable: bool,
    },

    /// The server answered without a result for the occurrence.
    #[error("The answer of the server contains no result for occurrence {id}. Enqueue it again with the same id.")]
    NoResult {
        /// The occurrence.
        id: OccurrenceId,
    },

    /// The server did not answer for all occurrences in time.
    #[error("{0}")]
    Unanswered(Box<Unanswered>),

    /// The REST API refused the request as a whole.
    #[cfg(feature = "rest")]
    #[error(transparent)]
    Api(#[from] crate::ClientError),
}

impl EnqueueError {
    /// Returns true if the same occurrences may be accepted later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unanswered(_) | Self::NoResult { .. } | Self::Rejected { is_retryable: true, .. })
    }

    /// Returns the error of an input that cannot be written.
    pub(crate) fn unwritable(error: &serde_json::Error) -> Self {
        Self::UnwritableInput { reason: error.to_string() }
    }
}

/// The occurrences without an answer. They may exist: enqueue the same ones again, each as `Enqueue::from(occurrence)`, which
/// keeps its id, to find out.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unanswered {
    /// The occurrences without an answer.
    pub occurrences: Vec<NewOccurrence>,
    /// The results of the others. `publish` over the broker has none.
    pub results: Vec<IngestResult>,
    /// The number of all occurrences of the call.
    pub total: usize,
    /// The time that was waited, in seconds.
    pub seconds: u64,
    /// The last failure.
    pub reason: String,
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { occurrences, total, seconds, reason, .. } = self;
        write!(
            f,
            "{} of {total} occurrences have no answer after {seconds} s: {reason}. They may have been created; enqueue the same \
             ones again, with the same ids.",
            occurrences.len()
        )
    }
}

/// Joins the texts of an error and its causes.
#[cfg(any(feature = "broker", feature = "rest"))]
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
