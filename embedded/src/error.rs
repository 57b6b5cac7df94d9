//! Errors of private services: messages for the user at the terminal.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::child::ChildProcess;

/// A failure to start a private service, or its unexpected end. Each message names the cause and the remedy and leaves
/// out the text of its source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// The caller stopped the start.
    #[error("The start of the private services was stopped. Start the program again.")]
    Stopped,

    /// A program, or the system user it runs as, is not installed.
    #[error("{what} was not found on this machine. Install it with `apt-get install {package}` or run `make install`.")]
    Missing {
        /// The missing program or user, written as the start of a sentence.
        what: String,
        /// The Debian package that contains it.
        package: &'static str,
    },

    /// The data folder is locked by another server.
    #[error(
        "Another Milvaion{} already uses the data folder {}. Stop it first, or start this one with another folder.",
        .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default(), .folder.display()
    )]
    Busy {
        /// The data folder.
        folder: PathBuf,
        /// The process that holds the lock, if the lock file names it.
        pid: Option<u32>,
    },

    /// A file or folder below the data folder cannot be created, read or written.
    #[error(
        "{} cannot be {doing}. Check its owner and the free disk space, or choose another data folder.", .path.display()
    )]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// The attempted operation, as a participle ("written").
        doing: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The data was written by a PostgreSQL version that is not installed here.
    #[error(
        "The data in {} was written by PostgreSQL {written_by}, which is not installed here (found: {installed}). \
         Install postgresql-{written_by}, or move the folder away to start with empty data.", .folder.display()
    )]
    Version {
        /// The folder with the data.
        folder: PathBuf,
        /// The major version that wrote the data.
        written_by: String,
        /// The major versions that are installed, joined by commas.
        installed: String,
    },

    /// Another program took the port after it was chosen and before the service bound it.
    #[error(
        "{service} cannot listen on 127.0.0.1:{port}, because another program took the port. Start again; a free port \
         is then chosen."
    )]
    PortTaken {
        /// The readable name of the service.
        service: String,
        /// The port on the loopback address.
        port: u16,
    },

    /// The stored password is not the one that the data was created with.
    #[error(
        "{service} refuses the password in {}. Restore the file with the original password, or move {} away to start \
         with empty data.", .secret.display(), .folder.display()
    )]
    Password {
        /// The readable name of the service.
        service: &'static str,
        /// The file with the password.
        secret: PathBuf,
        /// The folder with the data of the service.
        folder: PathBuf,
    },

    /// A program cannot be executed.
    #[error("{service} cannot be started. Check that {} is an executable program.", .program.display())]
    Spawn {
        /// The readable name of the service.
        service: String,
        /// The path of the program.
        program: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// A service ended without being stopped.
    #[error("{service} ended unexpectedly ({exit}){}. Read {} and start again.", log_suffix(.tail), .log.display())]
    Ended {
        /// The readable name of the service.
        service: String,
        /// The exit status or signal.
        exit: ExitStatus,
        /// The last lines of the log.
        tail: String,
        /// The path of the log.
        log: PathBuf,
    },

    /// A service runs but does not respond.
    #[error(
        "{service} did not become healthy within {seconds} s{}. Read {} and start again.",
        log_suffix(.tail), .log.display()
    )]
    Slow {
        /// The readable name of the service.
        service: String,
        /// The time limit in seconds.
        seconds: u64,
        /// The last lines of the log.
        tail: String,
        /// The path of the log.
        log: PathBuf,
    },

    /// A service responds but fails to execute the statements that prepare it.
    #[error("{service} cannot be prepared. Read {} and start again.", .log.display())]
    Prepare {
        /// The readable name of the service.
        service: &'static str,
        /// The path of the log.
        log: PathBuf,
        /// The error of the service.
        source: sqlx::Error,
    },
}

impl EmbeddedError {
    /// Builds the error of a child that has ended, with the end of its log.
    pub(super) fn ended(child: &ChildProcess, exit: ExitStatus) -> Self {
        Self::Ended { service: child.name().to_owned(), exit, tail: child.log_excerpt(), log: child.log().to_owned() }
    }

    /// Builds the error of a child that has ended while starting. The cause may be that `port` is in use.
    pub(super) fn ended_at_start(child: &ChildProcess, exit: ExitStatus, port: u16) -> Self {
        if names_a_taken_port(&child.log_tail()) {
            return Self::PortTaken { service: child.name().to_owned(), port };
        }
        Self::ended(child, exit)
    }

    /// Builds the error of a child that runs but did not respond in time.
    pub(super) fn slow(child: &ChildProcess, within: Duration) -> Self {
        Self::Slow {
            service: child.name().to_owned(),
            seconds: within.as_secs(),
            tail: child.log_excerpt(),
            log: child.log().to_owned(),
        }
    }

    /// Returns a function for `map_err` of a file operation.
    pub(super) fn folder(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Folder { path, doing, source }
    }
}

fn log_suffix(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!("; its log ends with \"{tail}\"") }
}

/// Returns true if a log reports a port in use: "Address already in use" (PostgreSQL, Redis) or "eaddrinuse" (Erlang).
fn names_a_taken_port(log: &str) -> bool {
    let log = log.to_ascii_lowercase();
    log.contains("address already in use") || log.contains("eaddrinuse")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_recognized_in_each_log() {
        assert!(names_a_taken_port("LOG:  could not bind IPv4 address \"127.0.0.1\": Address already in use"));
        assert!(names_a_taken_port(
            "Warning: Could not create server TCP listening socket: bind: Address already in use"
        ));
        assert!(names_a_taken_port("{listen_error,undefined,{'EXIT',eaddrinuse}}"));
        assert!(!names_a_taken_port("database system is ready to accept connections"));
    }

    #[test]
    fn messages_name_cause_and_remedy() {
        let missing = EmbeddedError::Missing { what: "Redis (redis-server)".into(), package: "redis-server" };
        assert_eq!(
            missing.to_string(),
            "Redis (redis-server) was not found on this machine. \
             Install it with `apt-get install redis-server` or run `make install`."
        );
        let busy = EmbeddedError::Busy { folder: "data".into(), pid: Some(7) };
        assert!(
            busy.to_string().starts_with("Another Milvaion (process 7) already uses the data folder data. Stop it")
        );
    }
}
