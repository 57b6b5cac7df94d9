//! How an error is told in a log line.
//!
//! Each room has an error type of its own; what they share is only this: the chain of causes, and the start of a body
//! that is to blame. It belongs to no room, so that the rooms that never call each other need not meet here either.

use std::error::Error;

/// An error with everything that caused it, on one line.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(source) = at {
        text.push_str(": ");
        text.push_str(&source.to_string());
        at = source.source();
    }
    text.replace('\n', " ")
}

/// The first characters of a body, on one line, for a log that says what was let go.
#[must_use]
pub fn body_excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(120).flat_map(char::escape_default).collect()
}
