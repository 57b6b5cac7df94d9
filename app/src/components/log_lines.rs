//! The log lines on a page, each once, in blocks that keep the layout of a long log cheap.
//!
//! Lines come from three sources that overlap: the page's first read, earlier pages and the stream. A line's `seq`
//! identifies it and gives its position, so a source may repeat lines of another.

use std::sync::atomic::{AtomicU64, Ordering};

use leptos::prelude::*;
use milvaion_protocol::message::LogLine;

/// The number of lines in a full block.
pub const LOG_BLOCK_LINES: usize = 200;
/// The maximum number of lines on the page. Following a log for hours drops its oldest lines from the page only.
const MAX_LOG_LINES: usize = 20_000;

/// A contiguous range of lines.
#[derive(Clone)]
pub struct LogBlock {
    /// Unique key for rendering.
    pub key: u64,
    /// The lines in order of `seq`.
    pub lines: ArcRwSignal<Vec<LogLine>>,
}

impl LogBlock {
    fn new(lines: Vec<LogLine>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { key: NEXT.fetch_add(1, Ordering::Relaxed), lines: ArcRwSignal::new(lines) }
    }

    fn first(&self) -> i64 {
        self.lines.read_untracked().first().map_or(i64::MAX, |line| line.seq)
    }
}

/// The lines of one log.
#[derive(Clone, Copy)]
pub struct LogLines {
    blocks: RwSignal<Vec<LogBlock>>,
    has_earlier: RwSignal<bool>,
    count: RwSignal<usize>,
}

impl LogLines {
    /// Creates the log from its first lines in order. `has_earlier` is true if the log has lines before them.
    #[must_use]
    pub fn new(lines: Vec<LogLine>, has_earlier: bool) -> Self {
        let count = lines.len();
        let blocks = in_blocks(lines);
        Self { blocks: RwSignal::new(blocks), has_earlier: RwSignal::new(has_earlier), count: RwSignal::new(count) }
    }

    /// Returns the blocks in order.
    #[must_use]
    pub fn blocks(self) -> RwSignal<Vec<LogBlock>> {
        self.blocks
    }

    /// Returns the number of lines on the page.
    #[must_use]
    pub fn count(self) -> usize {
        self.count.get()
    }

    /// Returns true if the log has lines before the first one on the page.
    #[must_use]
    pub fn has_earlier(self) -> bool {
        self.has_earlier.get()
    }

    /// Returns the first line's `seq`.
    #[must_use]
    pub fn first_seq(self) -> Option<i64> {
        self.blocks.with(|blocks| blocks.first().map(LogBlock::first)).filter(|seq| *seq != i64::MAX)
    }

    /// Inserts lines at their positions and returns the number of new ones.
    pub fn merge(self, lines: &[LogLine]) -> usize {
        let added = lines.iter().filter(|line| self.merge_line(line)).count();
        if added > 0 {
            self.count.update(|count| *count += added);
            self.drop_oldest();
        }
        added
    }

    /// Prepends a page of earlier lines. `has_earlier` is true if the log has lines before those.
    pub fn prepend(self, lines: Vec<LogLine>, has_earlier: bool) {
        let first = self.blocks.with_untracked(|blocks| blocks.first().map_or(i64::MAX, LogBlock::first));
        let lines: Vec<LogLine> = lines.into_iter().filter(|line| line.seq < first).collect();
        self.count.update(|count| *count += lines.len());
        self.blocks.update(|blocks| {
            blocks.splice(0..0, in_blocks(lines));
        });
        self.has_earlier.set(has_earlier);
    }

    fn merge_line(self, line: &LogLine) -> bool {
        // The block for this line is the last one that starts at or before it.
        let block = self.blocks.with_untracked(|blocks| {
            let after = blocks.partition_point(|block| block.first() <= line.seq);
            let is_last = after == blocks.len();
            blocks.get(after.saturating_sub(1)).cloned().map(|block| (block, is_last))
        });
        let Some((block, is_last)) = block else {
            self.blocks.update(|blocks| blocks.push(LogBlock::new(vec![line.clone()])));
            return true;
        };
        let (index, known, full) = {
            let lines = block.lines.read_untracked();
            let index = lines.partition_point(|other| other.seq < line.seq);
            (index, lines.get(index).is_some_and(|other| other.seq == line.seq), lines.len() >= LOG_BLOCK_LINES)
        };
        if known {
            return false;
        }
        let at_end = index == block.lines.read_untracked().len();
        if full && is_last && at_end {
            self.blocks.update(|blocks| blocks.push(LogBlock::new(vec![line.clone()])));
        } else {
            block.lines.update(|lines| lines.insert(index, line.clone()));
        }
        true
    }

    fn drop_oldest(self) {
        while self.count.get_untracked() > MAX_LOG_LINES && self.blocks.with_untracked(|blocks| blocks.len() > 1) {
            let dropped = self.blocks.try_update(|blocks| blocks.remove(0));
            let lines = dropped.map_or(0, |block| block.lines.read_untracked().len());
            self.count.update(|count| *count = count.saturating_sub(lines));
            self.has_earlier.set(true);
        }
    }
}

fn in_blocks(lines: Vec<LogLine>) -> Vec<LogBlock> {
    lines.chunks(LOG_BLOCK_LINES).map(|chunk| LogBlock::new(chunk.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use milvaion_protocol::message::LogLevel;

    use super::*;

    fn line(seq: i64) -> LogLine {
        LogLine { seq, at: DateTime::UNIX_EPOCH, level: LogLevel::Info, message: format!("line {seq}"), data: None }
    }

    fn lines(seqs: impl IntoIterator<Item = i64>) -> Vec<LogLine> {
        seqs.into_iter().map(line).collect()
    }

    fn seqs(log: LogLines) -> Vec<i64> {
        log.blocks.with_untracked(|blocks| {
            blocks.iter().flat_map(|block| block.lines.get_untracked()).map(|line| line.seq).collect()
        })
    }

    fn in_owner(check: impl FnOnce()) {
        Owner::new().with(check);
    }

    #[test]
    fn repeated_line_is_shown_once() {
        in_owner(|| {
            let log = LogLines::new(lines([1, 2, 3]), false);
            assert_eq!(log.merge(&lines([2, 3, 4, 5])), 2);
            assert_eq!(seqs(log), [1, 2, 3, 4, 5]);
        });
    }

    #[test]
    fn late_line_is_inserted_in_order() {
        in_owner(|| {
            let log = LogLines::new(lines([10, 12]), false);
            log.merge(&lines([20, 11, 9]));
            assert_eq!(seqs(log), [9, 10, 11, 12, 20]);
        });
    }

    #[test]
    fn full_block_starts_a_new_one() {
        in_owner(|| {
            let log = LogLines::new(vec![], false);
            log.merge(&lines(0..450));
            assert_eq!(seqs(log), (0..450).collect::<Vec<_>>());
            let sizes: Vec<usize> =
                log.blocks.with_untracked(|blocks| blocks.iter().map(|b| b.lines.get_untracked().len()).collect());
            assert_eq!(sizes, [200, 200, 50]);
        });
    }

    #[test]
    fn earlier_lines_are_prepended() {
        in_owner(|| {
            let log = LogLines::new(lines([500, 501]), true);
            log.prepend(lines([498, 499, 500]), false);
            assert_eq!(seqs(log), [498, 499, 500, 501]);
            assert_eq!(log.first_seq(), Some(498));
            assert!(!log.has_earlier());
        });
    }

    #[test]
    fn oldest_lines_are_dropped_above_the_limit() {
        in_owner(|| {
            let log = LogLines::new(vec![], false);
            let most = i64::try_from(MAX_LOG_LINES).expect("fits");
            log.merge(&lines(0..most + 10));
            assert!(log.count() <= MAX_LOG_LINES);
            assert!(log.has_earlier());
            assert_eq!(seqs(log).last(), Some(&(most + 9)));
        });
    }
}
