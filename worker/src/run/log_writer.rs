//! Numbers and bounds the log lines of an attempt.
//!
//! A [`LogWriter`] belongs to one attempt. Its lines go to the [`log_buffer`](crate::reporting::log_buffer).

use std::sync::atomic::{AtomicI64, Ordering};

use milvaion_protocol::message::{LogLevel, LogLine, MAX_LOG_LINE_BYTES, first_log_seq, truncate_text};
use serde_json::{Value, json};

use crate::{api::outcome::strip_nul, clock};

/// Maximum number of lines of an attempt.
const MAX_ATTEMPT_LINES: i64 = 10_000;

/// Creates the log lines of one attempt, with consecutive numbers and bounded size.
pub(crate) struct LogWriter {
    first: i64,
    next: AtomicI64,
}

impl LogWriter {
    pub(crate) fn new(attempt: u32) -> Self {
        Self { first: first_log_seq(attempt), next: AtomicI64::new(0) }
    }

    /// Returns the next line, or `None` if the attempt has used up its lines. The last line is a note about that.
    pub(crate) fn line(&self, level: LogLevel, message: String, data: Option<Value>) -> Option<LogLine> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let seq = self.first + index;
        if index < MAX_ATTEMPT_LINES {
            let data = data.map(bounded);
            return Some(LogLine {
                seq,
                at: clock::now(),
                level,
                message: truncate_text(strip_nul(message), MAX_LOG_LINE_BYTES),
                data,
            });
        }
        (index == MAX_ATTEMPT_LINES).then(|| LogLine {
            seq,
            at: clock::now(),
            level: LogLevel::Warn,
            message: format!("this attempt has written {MAX_ATTEMPT_LINES} lines; further ones are not kept"),
            data: None,
        })
    }
}

/// Returns the fields of a line, or a note of their size if they are too long.
fn bounded(data: Value) -> Value {
    match data.to_string().len() {
        len if len <= MAX_LOG_LINE_BYTES => data,
        len => json!({ "notKept": format!("{len} bytes of fields; the maximum is {MAX_LOG_LINE_BYTES}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_fields_are_replaced_by_a_note() {
        let log_writer = LogWriter::new(1);
        let data = |len: usize| {
            log_writer.line(LogLevel::Info, "x".to_owned(), Some(json!("y".repeat(len)))).and_then(|line| line.data)
        };
        assert_eq!(data(MAX_LOG_LINE_BYTES - 2), Some(json!("y".repeat(MAX_LOG_LINE_BYTES - 2))));
        let note = data(MAX_LOG_LINE_BYTES - 1).expect("a note").to_string();
        assert!(note.contains(&format!("{} bytes", MAX_LOG_LINE_BYTES + 1)), "{note}");
    }

    #[test]
    fn lines_beyond_the_maximum_are_dropped_with_a_note() {
        let log_writer = LogWriter::new(1);
        let lines = (0..MAX_ATTEMPT_LINES + 5)
            .filter_map(|_| log_writer.line(LogLevel::Info, "x".to_owned(), None))
            .collect::<Vec<_>>();
        assert_eq!(lines.len() as i64, MAX_ATTEMPT_LINES + 1);
        assert!(lines.last().is_some_and(|line| line.message.contains("not kept")));
    }
}
