//! Why a private service could not be started or went away: sentences for the person at the terminal.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::child::ChildProcess;

/// Each message is one sentence that names the cause and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// A program (or the system user it runs as) is not installed.
    #[error("{what} was not found on this machine: install it with `apt-get install {package}` or run `make install`")]
    Missing {
        /// What is missing, readable at the start of a sentence.
        what: String,
        /// The Debian package that brings it.
        package: &'static str,
    },

    /// The data folder is locked by another server.
    #[error(
        "another Milvaion{} already uses the data folder {}: stop it first, or start this one with a data folder of its own",
        .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default(), .folder.display()
    )]
    Busy {
        /// The data folder.
        folder: PathBuf,
        /// The process that holds the lock, when its lock file says so.
        pid: Option<u32>,
    },

    /// A file or folder of ours cannot be made, read or written.
    #[error("{} cannot be {doing} ({source}): check who owns it and the space left, or choose another data folder", .path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// What was attempted, as a participle ("written").
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },

    /// The data was written by a PostgreSQL that is not installed here.
    #[error(
        "the data in {} was written by PostgreSQL {written_by}, which is not installed here (found: {installed}): \
         install postgresql-{written_by}, or move the folder away to begin with empty data", .folder.display()
    )]
    Version {
        /// The folder with the data.
        folder: PathBuf,
        /// Major version that wrote it.
        written_by: String,
        /// Major versions found, readable.
        installed: String,
    },

    /// Somebody else took the port between our look and the service's start.
    #[error(
        "{service} could not listen on 127.0.0.1:{port} because another program took the port: start again, and a free one is chosen"
    )]
    PortTaken {
        /// Readable name of the service.
        service: String,
        /// The port.
        port: u16,
    },

    /// The remembered password is not the one the data was made with.
    #[error(
        "{service} refuses the password in {}: put back the file its data was made with, or move {} away to begin with empty data",
        .secret.display(), .folder.display()
    )]
    Password {
        /// Readable name of the service.
        service: &'static str,
        /// The file with the password.
        secret: PathBuf,
        /// The service's data.
        folder: PathBuf,
    },

    /// A child could not even be executed.
    #[error("{service} could not be started ({source}): check that {} is an executable program", .program.display())]
    Spawn {
        /// Readable name of the service.
        service: String,
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A service ended although nobody stopped it.
    #[error("{service} ended unexpectedly ({exit}){}: read {} and start again", said(.tail), .log.display())]
    Ended {
        /// Readable name of the service.
        service: String,
        /// Exit status or signal.
        exit: ExitStatus,
        /// Last words of its log.
        tail: String,
        /// The log.
        log: PathBuf,
    },

    /// A service runs but does not answer.
    #[error("{service} did not become healthy within {seconds} s{}: read {} and start again", said(.tail), .log.display())]
    Slow {
        /// Readable name of the service.
        service: String,
        /// How long it was given.
        seconds: u64,
        /// Last words of its log.
        tail: String,
        /// The log.
        log: PathBuf,
    },

    /// A service answers, but with something we did not expect.
    #[error("{service} could not be prepared ({reason}): read {} and start again", .log.display())]
    Prepare {
        /// Readable name of the service.
        service: &'static str,
        /// What it said.
        reason: String,
        /// The log.
        log: PathBuf,
    },
}

impl EmbeddedError {
    /// The child ended; quotes the end of its log.
    pub(super) fn ended(child: &ChildProcess, exit: ExitStatus) -> Self {
        Self::Ended { service: child.name().to_owned(), exit, tail: child.log_excerpt(), log: child.log().to_owned() }
    }

    /// The child ended while it was starting on `port`, which may have been taken meanwhile.
    pub(super) fn ended_at_start(child: &ChildProcess, exit: ExitStatus, port: u16) -> Self {
        if names_a_taken_port(&child.log_tail()) {
            return Self::PortTaken { service: child.name().to_owned(), port };
        }
        Self::ended(child, exit)
    }

    /// The child is alive but did not answer in time.
    pub(super) fn slow(child: &ChildProcess, within: Duration) -> Self {
        Self::Slow {
            service: child.name().to_owned(),
            seconds: within.as_secs(),
            tail: child.log_excerpt(),
            log: child.log().to_owned(),
        }
    }

    /// For `map_err` at a file operation.
    pub(super) fn folder(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Folder { path, doing, source }
    }
}

fn said(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!(", its last words were \"{tail}\"") }
}

/// The three services say it in their own words: "Address already in use" (PostgreSQL, Redis) and "eaddrinuse" (Erlang).
fn names_a_taken_port(log: &str) -> bool {
    let log = log.to_ascii_lowercase();
    log.contains("address already in use") || log.contains("eaddrinuse")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_recognised_in_each_services_words() {
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
            "Redis (redis-server) was not found on this machine: install it with `apt-get install redis-server` or run `make install`"
        );
        let busy = EmbeddedError::Busy { folder: "data".into(), pid: Some(7) };
        assert!(
            busy.to_string().starts_with("another Milvaion (process 7) already uses the data folder data: stop it")
        );
    }
}
