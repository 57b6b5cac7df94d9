//! Errors that end a command. The text of a variant leaves out the text of its source.

use std::{error::Error, io, iter, path::PathBuf};

use milvaion_client::ClientError;

use super::exit;

/// A failure of a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// A request failed.
    #[error(transparent)]
    Client(#[from] ClientError),

    /// There is no address of a server.
    #[error("No server is given. Sign in with `milvaion login`, or set MILVAION_URL or --url.")]
    NoServer,

    /// There is no token.
    #[error("You are not signed in. Sign in with `milvaion login`, or set MILVAION_TOKEN.")]
    NotSignedIn,

    /// The stored token belongs to another server. It is never sent elsewhere.
    #[error(
        "The stored token belongs to {stored}, not to {requested}. Set MILVAION_TOKEN to a token of that server, or sign in \
         with `milvaion login --url {requested}`."
    )]
    OtherServer {
        /// The address that was stored with the token.
        stored: String,
        /// The address of this command.
        requested: String,
    },

    /// The environment names no home folder.
    #[error("There is no folder for the credentials. Set HOME or XDG_CONFIG_HOME to an absolute path.")]
    NoConfigFolder,

    /// The file of the credentials cannot be read or written.
    #[error("The credentials in {} cannot be {action}. Check the permissions of the file and its folder.", path.display())]
    CredentialsFile {
        /// The file.
        path: PathBuf,
        /// The failed action, as in `read`.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The file of the credentials has another content.
    #[error("The credentials in {} are damaged. Sign in again with `milvaion login`.", path.display())]
    DamagedCredentials {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: toml::de::Error,
    },

    /// Other users of this machine can read the token.
    #[error(
        "Other users can read the token in {}. Run `chmod 600` on the file; if the machine has other users, rotate the token.",
        path.display()
    )]
    ExposedCredentials {
        /// The file.
        path: PathBuf,
    },

    /// An argument is invalid.
    #[error("{0}")]
    Usage(String),

    /// Documents of files are invalid. Each has a line with its file, its number and its line.
    #[error("{0}")]
    Documents(String),

    /// The server does not accept a new occurrence.
    #[error("{0}")]
    Rejected(String),

    /// Files were not compared with the server.
    #[error(transparent)]
    NotCompared(Box<CliError>),

    /// A file that an argument names cannot be read.
    #[error("{name} cannot be read. Check its path and its permissions.")]
    Input {
        /// The file, or `standard input`.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The user answered a question with no.
    #[error("Nothing was changed.")]
    Declined,

    /// Ctrl-C ended the command.
    #[error("Stopped.")]
    Interrupted,

    /// A result cannot be written as a document.
    #[error("The result cannot be written as {format}: {reason}. Choose another format with -o.")]
    Format {
        /// The format.
        format: &'static str,
        /// The reason.
        reason: String,
    },

    /// Standard output does not accept the result.
    #[error("The result cannot be written to standard output. Check the pipe or the file it is redirected to.")]
    Output(#[source] io::Error),
}

impl CliError {
    /// Returns the exit code.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Client(error) => exit::of_error(error),
            Self::NoServer | Self::NotSignedIn | Self::OtherServer { .. } | Self::ExposedCredentials { .. } => {
                exit::NOT_ALLOWED
            }
            Self::Usage(_) => exit::USAGE,
            Self::NotCompared(error) => match error.exit_code() {
                exit::DIFFERENT => exit::USAGE,
                code => code,
            },
            Self::Interrupted => exit::INTERRUPTED,
            _ => exit::FAILED,
        }
    }

    /// Returns true if the reader of standard output has ended, as `head` does once it has read enough.
    pub(super) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Formats an error for the terminal: its message, and then each cause on a line of its own.
pub(super) fn report(error: &dyn Error) -> String {
    let mut text = error.to_string().replace('\n', "\n          ");
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text.push_str("\n  caused by: ");
            text.push_str(&cause);
        }
    }
    text
}
