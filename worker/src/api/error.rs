//! Errors that prevent a worker from starting or make it stop.
//!
//! The `Display` text of an error names the setting and the remedy, and never repeats the text of its
//! [`source`](std::error::Error::source). Callers that print an error must therefore print its sources too. `Debug`
//! does this, because `fn main() -> Result<(), WorkerError>` prints errors with `Debug`, and that is all a user sees.

use std::{error::Error, fmt, io, iter, net::SocketAddr, path::PathBuf};

/// An error that prevents a worker from running.
///
/// A lost connection to RabbitMQ or Redis is not an error: the worker reconnects.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The configuration is invalid. Contains all errors, not only the first one.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The signal handlers cannot be installed.
    #[error("Cannot listen for SIGTERM and SIGINT.")]
    Signals(#[source] io::Error),
    /// The thread that sends heartbeats and reports cannot be started.
    #[error("Cannot start the thread that sends heartbeats and reports.")]
    ControlThread(#[source] io::Error),
    /// `AMQP_URL` cannot be used to enqueue occurrences.
    #[cfg(feature = "client")]
    #[error("AMQP_URL cannot be used to enqueue occurrences.")]
    Enqueue(#[source] milvaion_client::EnqueueError),
    /// The thread of the singleton loops cannot be started.
    #[error("Cannot start the thread of the singleton loops.")]
    LoopThread(#[source] io::Error),
    /// The outbox cannot be opened, or another process uses it.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// The address for health checks and metrics cannot be bound.
    #[error("Cannot listen on MILVAION_HEALTH {address}. Set another address, or leave the variable unset.")]
    Health {
        /// The configured address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The configuration file cannot be used.
    #[error("Cannot use the configuration file {path:?}.")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: ConfigFileError,
    },
    /// The address of Redis cannot be used.
    #[error("Cannot use REDIS_URL.")]
    Redis(#[source] redis::RedisError),
    /// The thread that sends heartbeats and reports ended unexpectedly. Without it no report reaches the server.
    #[error("The thread that sends heartbeats and reports has died. See the log above and restart the worker.")]
    ControlThreadDied,
    /// An inner task of the worker ended unexpectedly, such as the reporter or the heartbeat. The worker has handed back
    /// what it could.
    #[error("The {task} of the worker has failed: {reason}. See the log above and restart the worker.")]
    TaskFailed {
        /// The name of the task.
        task: &'static str,
        /// The cause.
        reason: String,
    },
    /// The thread of the singleton loops ended unexpectedly.
    #[error("The thread of the singleton loops has died. See the log above and restart the worker.")]
    LoopThreadDied,
}

impl fmt::Debug for WorkerError {
    /// Writes the message and, below it, each cause on a line of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self, "\n  caused by: "))
    }
}

/// The cause for which a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFileError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The file is larger than a configuration can be.
    #[error("it has {bytes} bytes; the maximum is {maximum}")]
    TooLarge {
        /// The size of the file.
        bytes: u64,
        /// The largest size that is read.
        maximum: u64,
    },
    /// The file is not valid TOML.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// A key of the file is not a setting.
    #[error("{key:?} is not a setting; use one of {known}")]
    UnknownKey {
        /// The key in the file.
        key: String,
        /// All valid keys, separated by commas.
        known: String,
    },
    /// The value of a setting has the wrong type.
    #[error("{key:?} is of type {found}; use a string or an integer")]
    WrongType {
        /// The key in the file.
        key: String,
        /// The TOML type of the value.
        found: &'static str,
    },
    /// An option of a singleton loop has the wrong type.
    #[error(
        "option {option:?} of singleton loop {singleton:?} is of type {found}; use a string, an integer or a boolean"
    )]
    LoopOptionType {
        /// The name of the loop.
        singleton: String,
        /// The key of the option.
        option: String,
        /// The TOML type of the value.
        found: &'static str,
    },
    /// The concurrency limit of a job type is not an integer.
    #[error("{key:?} of job type {job_type:?} is of type {found}; use an integer")]
    ConcurrencyType {
        /// The key in the file.
        key: String,
        /// The job type.
        job_type: String,
        /// The TOML type of the value.
        found: &'static str,
    },
}

/// The cause for which an outbox cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// Another process uses the file.
    #[error(
        "MILVAION_OUTBOX names {path:?}, which another process holds. Give each process its own file, or set a folder, which processes can share."
    )]
    InUse {
        /// The path of the file.
        path: PathBuf,
    },
    /// Other processes use all files of the folder.
    #[error("Every outbox in {folder:?} is in use. Set MILVAION_OUTBOX to another folder.")]
    FolderFull {
        /// The path of the folder.
        folder: PathBuf,
    },
    /// The file holds the reports of another system.
    #[error(
        "The outbox {path:?} holds reports of another system ({found}); this worker belongs to {own}. Set MILVAION_OUTBOX to another file, or start a worker of that system to send them."
    )]
    OtherSystem {
        /// The path of the file.
        path: PathBuf,
        /// The system whose reports it holds.
        found: String,
        /// The system of this worker.
        own: String,
    },
    /// The folder or the file cannot be created, locked or renamed.
    #[error(
        "The outbox {path:?} cannot be used. Set MILVAION_OUTBOX to a folder that this process may write to, or to off, which loses the unsent reports of a killed process."
    )]
    Unusable {
        /// The path of the file or of the folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// SQLite cannot open or read the file.
    #[error(
        "The outbox {path:?} cannot be opened. Check that its disk has free space and that this process may write to it, or set MILVAION_OUTBOX to another folder or to off."
    )]
    Closed {
        /// The path of the file.
        path: PathBuf,
        /// The error of SQLite.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The file is damaged and could not be replaced.
    #[error("The outbox {path:?} is damaged: {reason}.")]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The finding of SQLite.
        reason: String,
    },
    /// The SDK was built without the feature `outbox`.
    #[error(
        "This worker was built without the feature \"outbox\" of milvaion-worker. Enable the feature, or set MILVAION_OUTBOX to off."
    )]
    NotBuilt,
    /// The file belongs to another program.
    #[error("{path:?} is a SQLite file of another program. Set MILVAION_OUTBOX to another file.")]
    Foreign {
        /// The path of the file.
        path: PathBuf,
    },
    /// A later version of the SDK has written the file.
    #[error(
        "The outbox {path:?} was written by a later version of this program (schema version {version}). Start that version, or move the file away."
    )]
    NewerVersion {
        /// The path of the file.
        path: PathBuf,
        /// The schema version of the file.
        version: i32,
    },
}

/// Formats an error and all its causes for a log line, which stays a single line.
pub(crate) fn log_text(error: &dyn Error) -> String {
    chain(error, " caused by: ")
}

/// Joins the text of an error and of all its causes. A cause is left out if the text already ends with it, because many
/// errors repeat their cause.
pub(crate) fn chain(error: &dyn Error, separator: &str) -> String {
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text.push_str(separator);
            text.push_str(&cause);
        }
    }
    text
}

/// The errors of a configuration, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors(Vec<String>);

impl ConfigErrors {
    /// Adds an error: a sentence that names the setting and the remedy.
    pub(crate) fn add(&mut self, sentence: impl Into<String>) {
        self.0.push(sentence.into());
    }

    /// Returns the sentences, in the order in which the settings were checked.
    #[must_use]
    pub fn messages(&self) -> &[String] {
        &self.0
    }

    /// Returns `value` if there is no error, and the errors otherwise.
    pub(crate) fn into_result<T>(self, value: T) -> Result<T, WorkerError> {
        if self.0.is_empty() { Ok(value) } else { Err(WorkerError::Config(self)) }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, sentence) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            f.write_str(sentence)?;
        }
        Ok(())
    }
}

impl Error for ConfigErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_message_and_its_causes() {
        let source = io::Error::other("address in use");
        let error = WorkerError::Health { address: ([127, 0, 0, 1], 9100).into(), source };
        assert!(!error.to_string().contains("address in use"), "{error}");
        let shown = format!("{error:?}");
        assert!(shown.starts_with("Cannot listen on MILVAION_HEALTH 127.0.0.1:9100"), "{shown}");
        assert!(shown.ends_with("\n  caused by: address in use"), "{shown}");
    }
}
