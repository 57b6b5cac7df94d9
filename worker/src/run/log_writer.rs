//! Numbers and bounds the log lines of an attempt.
//!
//! A [`LogWriter`] belongs to one attempt. Its lines go to the [`log_buffer`](crate::reporting::log_buffer).
//!
//! The first lines, up to the bounds of an attempt, are sent at once. Later ones are held: the newest of them are sent every
//! [`HELD_LINES_INTERVAL`] and before the end of the attempt. So a run that writes without pause costs a bounded number of
//! lines per interval, its log can still be followed, and its last lines are never the ones that are missing. The server keeps
//! the first and the last lines of all.
//!
//! A dropped line keeps its number, so the numbers show how many lines are missing. An attempt has
//! [`MAX_ATTEMPT_LINES`] numbers. When they run short, the rest of them is kept for the lines of the end.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use milvaion_protocol::{
    message::{
        AttemptLogBounds, LogLevel, LogLine, MAX_ATTEMPT_LINES, MAX_LOG_LINE_BYTES, first_log_seq, truncate_text,
    },
    storable::clean_text,
};
use serde_json::{Value, json};

use crate::clock;

/// Interval at which the held lines of a run are sent.
pub(crate) const HELD_LINES_INTERVAL: Duration = Duration::from_secs(10);
/// Number of lines after which the remaining numbers are kept for the end of the attempt.
const MAX_LINES_BEFORE_END: i64 = MAX_ATTEMPT_LINES - 10_000;

/// A line that was written.
pub(crate) enum WrittenLine {
    /// The caller sends it at once.
    Due(LogLine),
    /// It is held until [`LogWriter::send_held`]. If `is_first`, no other line was held, so the caller schedules that.
    Held { is_first: bool },
}

/// Creates the log lines of one attempt, with consecutive numbers and bounded size.
pub(crate) struct LogWriter {
    first: i64,
    bounds: AttemptLogBounds,
    lines: Mutex<WrittenLines>,
    /// Locked while held lines are sent, so that all of them are sent before the end is reported.
    sending: Mutex<()>,
}

/// The lines of one attempt.
#[derive(Default)]
struct WrittenLines {
    /// Number of all lines.
    count: i64,
    /// Size of all lines.
    bytes: i64,
    /// Value of `count` up to which lines were sent or dropped.
    sent: i64,
    /// The newest lines, each with its size. They get their numbers when they are sent.
    held: VecDeque<(LogLine, i64)>,
    held_bytes: i64,
}

impl LogWriter {
    pub(crate) fn new(attempt: u32, bounds: AttemptLogBounds) -> Self {
        Self { first: first_log_seq(attempt), bounds, lines: Mutex::default(), sending: Mutex::default() }
    }

    /// Writes a line. Returns it if it is due, and otherwise holds it.
    pub(crate) fn write(&self, level: LogLevel, message: String, data: Option<Value>) -> WrittenLine {
        let message = truncate_text(clean_text(message), MAX_LOG_LINE_BYTES);
        let (data, data_bytes) = data.map(bounded).unzip();
        let bytes = (message.len() + data_bytes.unwrap_or(0)) as i64;
        let line = LogLine { seq: self.first, at: clock::now(), level, message, data };
        let mut lines = self.lock();
        let index = lines.count;
        lines.count += 1;
        lines.bytes += bytes;
        if lines.count <= self.bounds.lines.min(MAX_LINES_BEFORE_END) && lines.bytes <= self.bounds.bytes {
            lines.sent = lines.count;
            return WrittenLine::Due(LogLine { seq: self.first + index, ..line });
        }
        let is_first = lines.held.is_empty();
        lines.hold(line, bytes, self.bounds.tail());
        WrittenLine::Held { is_first }
    }

    /// Sends the held lines with `send`, after a note about those that were dropped. Unless `is_end`, it keeps the last
    /// numbers of the attempt.
    pub(crate) fn send_held(&self, is_end: bool, send: impl FnMut(LogLine)) {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = self.lock();
        if is_end || lines.count <= MAX_LINES_BEFORE_END {
            let held = lines.take_held(self.first);
            // The run continues to write meanwhile.
            drop(lines);
            held.for_each(send);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WrittenLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WrittenLines {
    fn hold(&mut self, line: LogLine, bytes: i64, tail: AttemptLogBounds) {
        self.held.push_back((line, bytes));
        self.held_bytes += bytes;
        while self.held_count() > tail.lines || self.held_bytes > tail.bytes {
            self.drop_oldest();
        }
    }

    fn held_count(&self) -> i64 {
        self.held.len() as i64
    }

    /// Returns the number of lines that were dropped since lines were last sent.
    fn dropped(&self) -> i64 {
        self.count - self.sent - self.held_count()
    }

    fn drop_oldest(&mut self) {
        if let Some((_, bytes)) = self.held.pop_front() {
            self.held_bytes -= bytes;
        }
    }

    /// Takes the held lines, numbered up to the last line that was written. A note about dropped lines has the number of the
    /// last of them, so it is sorted before all later lines.
    fn take_held(&mut self, first: i64) -> impl Iterator<Item = LogLine> + use<> {
        let end = self.count.min(MAX_ATTEMPT_LINES);
        let free = end - self.sent.min(MAX_ATTEMPT_LINES);
        // More lines were written than have numbers. The note needs one too.
        while !self.held.is_empty() && self.held_count() + i64::from(self.dropped() > 0) > free {
            self.drop_oldest();
        }
        let (dropped, seq) = (self.dropped(), first + end - self.held_count());
        let at = self.held.front().map_or_else(clock::now, |(line, _)| line.at);
        let note = (dropped > 0 && free > 0).then(|| LogLine {
            seq: seq - 1,
            at,
            level: LogLevel::Warn,
            message: format!(
                "{dropped} lines before this one are not kept: beyond MILVAION_LOG_LINES and MILVAION_LOG_MEGABYTES, the worker sends only the newest lines of every {} seconds",
                HELD_LINES_INTERVAL.as_secs()
            ),
            data: None,
        });
        self.sent = self.count;
        self.held_bytes = 0;
        let held = std::mem::take(&mut self.held).into_iter().zip(seq..);
        note.into_iter().chain(held.map(|((line, _), seq)| LogLine { seq, ..line }))
    }
}

/// Returns the fields of a line, or a note of their size if they are too long, and the size of what it returns.
fn bounded(data: Value) -> (Value, usize) {
    match data.to_string().len() {
        len if len <= MAX_LOG_LINE_BYTES => (data, len),
        len => {
            let note = format!("{len} bytes of fields; the maximum is {MAX_LOG_LINE_BYTES}");
            let bytes = note.len();
            (json!({ "notKept": note }), bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LogWriter {
        /// Writes a line that is due.
        pub(crate) fn due_line(&self, message: String) -> LogLine {
            match self.write(LogLevel::Info, message, None) {
                WrittenLine::Due(line) => line,
                WrittenLine::Held { .. } => panic!("the line is beyond the bounds"),
            }
        }
    }

    /// Writes lines with their indexes as texts. Returns the due ones.
    fn write(writer: &LogWriter, indexes: std::ops::Range<i64>) -> Vec<LogLine> {
        indexes
            .filter_map(|index| match writer.write(LogLevel::Info, index.to_string(), None) {
                WrittenLine::Due(line) => Some(line),
                WrittenLine::Held { .. } => None,
            })
            .collect()
    }

    fn held(writer: &LogWriter, is_end: bool) -> Vec<LogLine> {
        let mut sent = Vec::new();
        writer.send_held(is_end, |line| sent.push(line));
        sent
    }

    /// Continues as if `count` lines were written and sent.
    fn continue_after(writer: &LogWriter, count: i64) {
        let mut lines = writer.lock();
        (lines.count, lines.sent) = (count, count);
    }

    /// Returns the numbers of lines within attempt 1, each with its text.
    fn numbered(lines: &[LogLine]) -> Vec<(i64, &str)> {
        lines.iter().map(|line| (line.seq - first_log_seq(1), line.message.as_str())).collect()
    }

    #[test]
    fn oversized_fields_are_replaced_by_a_note() {
        let data = |len: usize| bounded(json!("y".repeat(len)));
        assert_eq!(data(MAX_LOG_LINE_BYTES - 2), (json!("y".repeat(MAX_LOG_LINE_BYTES - 2)), MAX_LOG_LINE_BYTES));
        let note = data(MAX_LOG_LINE_BYTES - 1).0.to_string();
        assert!(note.contains(&format!("{} bytes", MAX_LOG_LINE_BYTES + 1)), "{note}");
    }

    #[test]
    fn newest_lines_beyond_the_bound_are_held_and_the_others_counted() {
        let writer = LogWriter::new(1, AttemptLogBounds { lines: 10, bytes: 1_000_000 });
        let due = write(&writer, 0..10);
        assert_eq!(numbered(&due).last(), Some(&(9, "9")));
        assert!(matches!(writer.write(LogLevel::Info, "10".into(), None), WrittenLine::Held { is_first: true }));
        assert!(matches!(writer.write(LogLevel::Info, "11".into(), None), WrittenLine::Held { is_first: false }));
        assert_eq!(numbered(&held(&writer, false)), [(10, "10"), (11, "11")], "none was dropped");
        assert_eq!(held(&writer, false), []);

        assert_eq!(write(&writer, 12..40), []);
        let sent = held(&writer, true);
        let note = &sent[0];
        assert_eq!((note.seq - first_log_seq(1), note.level), (31, LogLevel::Warn));
        assert!(note.message.starts_with("20 lines before this one are not kept"), "{}", note.message);
        let texts: Vec<String> = (32..40).map(|index| index.to_string()).collect();
        assert_eq!(numbered(&sent[1..]), (32..).zip(texts.iter().map(String::as_str)).collect::<Vec<_>>());
        assert_eq!(write(&writer, 40..41), [], "a line after the end is held too");
        assert_eq!(numbered(&held(&writer, true)), [(40, "40")]);
    }

    #[test]
    fn lines_are_bounded_by_bytes_too() {
        let writer = LogWriter::new(1, AttemptLogBounds { lines: 1_000, bytes: 100 });
        let wide = |text: &str| writer.write(LogLevel::Info, text.repeat(30), None);
        for _ in 0..3 {
            assert!(matches!(wide("a"), WrittenLine::Due(_)));
        }
        (0..7).for_each(|_| drop(wide("b")));
        assert_eq!(write(&writer, 0..1), [], "a short line is held too");
        let sent = held(&writer, true);
        let sizes: Vec<_> = sent[1..].iter().map(|line| (line.seq - first_log_seq(1), line.message.len())).collect();
        assert_eq!(sizes, [(8, 30), (9, 30), (10, 1)], "80 bytes are held");
        assert!(sent[0].message.starts_with("5 lines before"), "{}", sent[0].message);
    }

    #[test]
    fn last_numbers_of_an_attempt_are_kept_for_its_end() {
        let writer = LogWriter::new(1, AttemptLogBounds { lines: 10, bytes: 1_000_000 });
        continue_after(&writer, MAX_LINES_BEFORE_END - 1);
        write(&writer, 0..1);
        assert_eq!(numbered(&held(&writer, false)), [(MAX_LINES_BEFORE_END - 1, "0")]);
        write(&writer, MAX_LINES_BEFORE_END..MAX_ATTEMPT_LINES + 500);
        assert_eq!(held(&writer, false), []);
        let sent = held(&writer, true);
        assert!(sent[0].message.starts_with("10492 lines before"), "{}", sent[0].message);
        assert_eq!(numbered(&sent).last(), Some(&(MAX_ATTEMPT_LINES - 1, "1000499")));
        assert_eq!(sent.len(), 9);
        write(&writer, 0..5);
        assert_eq!(held(&writer, true), [], "no numbers are left, and those of the next attempt are not used");
    }

    #[test]
    fn more_lines_than_numbers_keep_the_newest() {
        let writer = LogWriter::new(1, AttemptLogBounds::new(1_000_000, 256));
        continue_after(&writer, MAX_LINES_BEFORE_END);
        assert_eq!(write(&writer, MAX_LINES_BEFORE_END..MAX_ATTEMPT_LINES + 7), []);
        let sent = held(&writer, true);
        assert_eq!(sent.len(), 10_000);
        assert!(sent[0].message.starts_with("8 lines before"), "{}", sent[0].message);
        assert_eq!(numbered(&sent[1..2]), [(MAX_LINES_BEFORE_END + 1, "990008")]);
        assert_eq!(numbered(&sent).last(), Some(&(MAX_ATTEMPT_LINES - 1, "1000006")));
    }
}
