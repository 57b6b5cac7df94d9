//! Why a worker could not start or had to stop.

use std::fmt;

/// What keeps a worker from running. A lost broker or Redis is not among them: those are waited for.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The configuration is wrong; all errors are told at once.
    #[error("{0}")]
    Config(ConfigErrors),
    /// The operating system refused to tell us about signals.
    #[error("cannot listen for SIGTERM and SIGINT: {0}")]
    Signals(std::io::Error),
    /// The thread of the heartbeats and reports could not be started.
    #[error("cannot start the thread that sends heartbeats and reports: {0}")]
    ControlThread(std::io::Error),
    /// The outbox cannot be opened, or is another process's.
    #[error("{0}")]
    Outbox(String),
    /// The address for health and metrics cannot be used.
    #[error("cannot answer at MILVAION_HEALTH {address}: {source}; give another address, or leave it out")]
    Health {
        /// Which.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The configuration file cannot be used.
    #[error("cannot use the configuration file {path:?}: {reason}")]
    File {
        /// Which.
        path: std::path::PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// Redis's address cannot be used.
    #[error("cannot use REDIS_URL: {0}")]
    Redis(redis::RedisError),
    /// The thread of the heartbeats and reports ended though nobody asked it to; without it no report reaches the server.
    #[error("the thread that sends heartbeats and reports has died; see the lines above and start the worker again")]
    ControlThreadDied,
}

/// Everything that is wrong with a configuration, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors(Vec<String>);

impl ConfigErrors {
    /// Notes one mistake: a sentence that names the setting and the remedy.
    pub(crate) fn add(&mut self, sentence: impl Into<String>) {
        self.0.push(sentence.into());
    }

    /// The messages, in the order the settings were looked at.
    #[must_use]
    pub fn messages(&self) -> &[String] {
        &self.0
    }

    /// `value` if nothing is wrong, the errors otherwise.
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
