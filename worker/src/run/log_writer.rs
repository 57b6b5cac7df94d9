//! From what a job writes to a numbered, bounded line.
//!
//! A [`LogWriter`] belongs to one attempt. Its lines go to the [`log_buffer`](crate::reporting::log_buffer).

use std::sync::atomic::{AtomicI64, Ordering};

use milvaion_protocol::message::{LogLevel, LogLine, MAX_LOG_LINE_BYTES, first_log_seq, truncate_text};
use serde_json::{Value, json};

use crate::{api::outcome::strip_nul, clock};

/// The most lines of one attempt.
const MAX_ATTEMPT_LINES: i64 = 10_000;

/// Numbers and bounds the lines of one attempt.
pub(crate) struct LogWriter {
    first: i64,
    next: AtomicI64,
}

impl LogWriter {
    pub(crate) fn new(attempt: u32) -> Self {
        Self { first: first_log_seq(attempt), next: AtomicI64::new(0) }
    }

    /// The next line, or none once the attempt has used up its lines; the last one says so.
    pub(crate) fn line(&self, level: LogLevel, message: String, data: Option<Value>) -> Option<LogLine> {
        let place = self.next.fetch_add(1, Ordering::Relaxed);
        let seq = self.first + place;
        if place < MAX_ATTEMPT_LINES {
            let data = data.map(bounded);
            return Some(LogLine {
                seq,
                at: clock::now(),
                level,
                message: truncate_text(strip_nul(message), MAX_LOG_LINE_BYTES),
                data,
            });
        }
        (place == MAX_ATTEMPT_LINES).then(|| LogLine {
            seq,
            at: clock::now(),
            level: LogLevel::Warn,
            message: format!("this attempt has written {MAX_ATTEMPT_LINES} lines; further ones are not kept"),
            data: None,
        })
    }
}

/// The fields of a line, or how many bytes of them are not kept.
fn bounded(data: Value) -> Value {
    match data.to_string().len() {
        len if len <= MAX_LOG_LINE_BYTES => data,
        len => json!({ "notKept": format!("{len} bytes of fields; {MAX_LOG_LINE_BYTES} are the most") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_too_long_leave_a_mark() {
        let log_writer = LogWriter::new(1);
        let data = |len: usize| {
            log_writer.line(LogLevel::Info, "x".to_owned(), Some(json!("y".repeat(len)))).and_then(|line| line.data)
        };
        assert_eq!(data(MAX_LOG_LINE_BYTES - 2), Some(json!("y".repeat(MAX_LOG_LINE_BYTES - 2))));
        let mark = data(MAX_LOG_LINE_BYTES - 1).expect("a mark").to_string();
        assert!(mark.contains(&format!("{} bytes", MAX_LOG_LINE_BYTES + 1)), "{mark}");
    }

    #[test]
    fn an_attempt_has_a_last_line() {
        let log_writer = LogWriter::new(1);
        let lines = (0..MAX_ATTEMPT_LINES + 5)
            .filter_map(|_| log_writer.line(LogLevel::Info, "x".to_owned(), None))
            .collect::<Vec<_>>();
        assert_eq!(lines.len() as i64, MAX_ATTEMPT_LINES + 1);
        assert!(lines.last().is_some_and(|line| line.message.contains("not kept")));
    }
}
