//! The failure of a case, and the errors that stop the kit itself.

use std::{fmt, io};

/// The difference between the expected and the observed behaviour of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseFailure {
    /// The expected behaviour.
    pub expected: String,
    /// The observed behaviour.
    pub seen: String,
    /// True if the case cannot judge this worker or these services, and `seen` is the reason.
    is_skipped: bool,
}

impl CaseFailure {
    pub(crate) fn new(expected: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { expected: expected.into(), seen: seen.into(), is_skipped: false }
    }

    /// Returns the end of a case that cannot judge, because the worker leaves out an optional part.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Self { expected: String::new(), seen: reason.into(), is_skipped: true }
    }

    /// Splits the end of a case into its failure and the reason why it did not judge.
    pub(crate) fn split(outcome: Result<(), Self>) -> (Option<Self>, Option<String>) {
        match outcome {
            Ok(()) => (None, None),
            Err(end) if end.is_skipped => (None, Some(end.seen)),
            Err(failure) => (Some(failure), None),
        }
    }
}

impl fmt::Display for CaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected: {}; seen: {}", self.expected, self.seen)
    }
}

/// An error that stops the kit, because it could judge nothing.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// The broker does not answer.
    #[error("RabbitMQ does not answer. Check AMQP_URL and that the service runs.")]
    Broker(#[from] lapin::Error),
    /// Redis does not answer.
    #[error("Redis does not answer. Check REDIS_URL and that the service runs.")]
    Redis(#[from] redis::RedisError),
    /// A URL has no host and port of this machine, or uses TLS.
    #[error(
        "{variable} cannot be used. Give the URL of a service without TLS, such as amqp://user:password@127.0.0.1:5672/%2f."
    )]
    InvalidUrl {
        /// The variable with the URL.
        variable: &'static str,
    },
    /// A name of a case is unknown.
    #[error("There is no case {0}. The option --list prints the names of all cases.")]
    UnknownCase(String),
    /// A file or a port of this machine cannot be used.
    #[error("The kit cannot write its temporary files or open a port on the loopback address. Check TMPDIR.")]
    Machine(#[from] io::Error),
    /// The report cannot be written as JSON, or a schema cannot be compiled.
    #[error("The kit is defective: {0}")]
    Defect(String),
}

// What fails between the kit and its own services fails the case with the reason, so that other cases continue.
impl From<lapin::Error> for CaseFailure {
    fn from(error: lapin::Error) -> Self {
        Self::new("an answer of RabbitMQ to the kit", error.to_string())
    }
}

impl From<redis::RedisError> for CaseFailure {
    fn from(error: redis::RedisError) -> Self {
        Self::new("an answer of Redis to the kit", error.to_string())
    }
}

impl From<io::Error> for CaseFailure {
    fn from(error: io::Error) -> Self {
        Self::new("a file or a process of the kit", error.to_string())
    }
}
