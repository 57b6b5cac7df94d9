//! Errors that end `milvaion` with a failure.

use std::{io, path::PathBuf};

use milvaion_conformance::ConformanceError;
use milvaion_server::{embedded::EmbeddedError, lifecycle::ServerError, store::StoreError};

/// A failure of a subcommand. The message leaves out the text of its source.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The server or a private service failed.
    #[error(transparent)]
    Server(#[from] ServerError),

    /// The conformance kit could judge nothing.
    #[error(transparent)]
    Conformance(#[from] ConformanceError),

    /// `milvaion services` was called without a command.
    #[error("No command is given. Add the command to run after `--`.")]
    NoCommand,

    /// The command of `milvaion services` cannot be executed.
    #[error("{program} cannot be started. Check the command after `--`.")]
    StartCommand {
        /// The name or path of the program.
        program: String,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The exit status of the command of `milvaion services` cannot be read.
    #[error("The exit status of {program} cannot be read. Run the command again.")]
    WaitForCommand {
        /// The name or path of the program.
        program: String,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The data folder holds no private PostgreSQL, and `DATABASE_URL` is not set.
    #[error(
        "The folder {} holds no data of Milvaion. Set DATABASE_URL, or name the data folder of the server with --data.",
        folder.display()
    )]
    NoInstallation {
        /// The data folder.
        folder: PathBuf,
    },

    /// PostgreSQL does not answer.
    #[error("The users cannot be read or changed. Check DATABASE_URL and that PostgreSQL runs.")]
    Database(#[source] StoreError),

    /// Standard output does not accept the result.
    #[error("The result cannot be written to standard output. Check the pipe or the file it is redirected to.")]
    Output(#[source] io::Error),
}

impl From<EmbeddedError> for CliError {
    fn from(error: EmbeddedError) -> Self {
        Self::Server(error.into())
    }
}
