//! The end of a log that a stream has sent.
//!
//! A stream reads the lines after those that it has sent. Servers store the batches of a run side by side, so a line may be
//! stored after lines with higher numbers. Each read therefore repeats the last lines, and the stream leaves out those that
//! it has sent.

use std::collections::BTreeSet;

use milvaion_protocol::message::LogLine;

/// The number of lines that a read repeats.
const READ_OVERLAP_LINES: usize = 200;

/// The last lines that a stream has sent.
#[derive(Debug, Default)]
pub(super) struct LogTail {
    /// The line up to which nothing is read again.
    start: i64,
    /// The numbers of the lines after it that were sent.
    sent: BTreeSet<i64>,
}

impl LogTail {
    /// Creates the tail of a stream that begins after a line.
    pub(super) const fn after(seq: i64) -> Self {
        Self { start: seq, sent: BTreeSet::new() }
    }

    /// Returns the line after which the next read begins.
    pub(super) const fn read_start(&self) -> i64 {
        self.start
    }

    /// Returns the last line that was sent, or the one after which the stream begins.
    pub(super) fn last(&self) -> i64 {
        self.sent.last().copied().unwrap_or(self.start)
    }

    /// Returns those lines of a read that were not sent, and records them as sent.
    pub(super) fn unsent(&mut self, read: Vec<LogLine>) -> Vec<LogLine> {
        let unsent = read.into_iter().filter(|line| line.seq > self.start && self.sent.insert(line.seq)).collect();
        while self.sent.len() > READ_OVERLAP_LINES
            && let Some(first) = self.sent.pop_first()
        {
            self.start = first;
        }
        unsent
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use milvaion_protocol::message::LogLevel;

    use super::*;

    /// Returns the numbers of the unsent lines of a read.
    fn unsent(tail: &mut LogTail, seqs: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let line = |seq| LogLine {
            seq,
            at: DateTime::UNIX_EPOCH,
            level: LogLevel::default(),
            message: String::new(),
            data: None,
        };
        tail.unsent(seqs.into_iter().map(line).collect()).iter().map(|line| line.seq).collect()
    }

    #[test]
    fn late_line_is_sent_and_none_is_repeated() {
        let mut tail = LogTail::after(2);
        assert_eq!((tail.read_start(), tail.last()), (2, 2));
        assert_eq!(unsent(&mut tail, [1, 2, 3, 5]), [3, 5]);
        assert_eq!(unsent(&mut tail, [3, 4, 5, 6]), [4, 6]);
        assert_eq!((tail.read_start(), tail.last()), (2, 6));
        assert!(unsent(&mut tail, [3, 4, 5, 6]).is_empty());
    }

    #[test]
    fn read_repeats_a_bounded_number_of_lines() {
        let mut tail = LogTail::after(0);
        assert_eq!(unsent(&mut tail, 1..=500).len(), 500);
        assert_eq!((tail.read_start(), tail.last()), (300, 500));
        assert_eq!(unsent(&mut tail, 300..=502), [501, 502]);
    }
}
