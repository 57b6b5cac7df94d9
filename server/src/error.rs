//! Error texts for log lines.
//!
//! Each module has its own error type. This module holds the functions they share: the text of an error with its
//! causes, the text of a panic, and an excerpt of the message body that caused it. It depends on no other module, so that
//! modules which must not depend on each other can all use it.

use std::any::Any;

pub use milvaion_telemetry::chain;

/// Returns the text of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

/// Returns the first 120 characters of a body on one line, for a log line about a rejected message.
#[must_use]
pub fn body_excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(120).flat_map(char::escape_default).collect()
}
