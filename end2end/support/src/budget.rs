//! Counts of what the tests start, which `make test` compares with its budget.
//!
//! Each event appends one line to `target/budget/counts`. `make test` creates the folder; without it, nothing is counted.

use std::{fs::OpenOptions, io::Write};

use crate::paths;

/// An expensive step of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedEvent {
    /// The start of a server, in the process of the test or in one of its own.
    Server,
    /// The creation of a database.
    Database,
}

/// Counts an event. A file that cannot be written is ignored, because the count is no part of the test.
pub fn count(event: CountedEvent) {
    let line: &[u8] = match event {
        CountedEvent::Server => b"server\n",
        CountedEvent::Database => b"database\n",
    };
    let path = paths::repository_root().join("target/budget/counts");
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
        // One write, so that the lines of tests that run at once do not mix.
        let _ = file.write_all(line);
    }
}
