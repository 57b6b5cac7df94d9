//! The lines of one log as a page holds them: in blocks, so that a long log costs little to lay out, each line once.
//!
//! Lines come from three sides that overlap: the page's first reading, earlier pages, and the stream. Their `seq` says
//! which is which and where it belongs, so every source may bring what another brought before.

use std::sync::atomic::{AtomicU64, Ordering};

use leptos::prelude::*;
use milvaion_protocol::message::LogLine;

/// How many lines lie in one block.
pub const LOG_BLOCK_LINES: usize = 200;
/// The most lines kept on the page. Following a log for hours drops its oldest lines from the page, not from the store.
const MAX_LOG_LINES: usize = 20_000;

/// A run of lines.
#[derive(Clone)]
pub struct LogBlock {
    /// Tells blocks apart.
    pub key: u64,
    /// In order of `seq`.
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

/// The log.
#[derive(Clone, Copy)]
pub struct LogLines {
    blocks: RwSignal<Vec<LogBlock>>,
    has_earlier: RwSignal<bool>,
    count: RwSignal<usize>,
}

impl LogLines {
    /// The log a page begins with: `lines` in order, and whether there are lines before them.
    #[must_use]
    pub fn new(lines: Vec<LogLine>, has_earlier: bool) -> Self {
        let count = lines.len();
        let blocks = in_blocks(lines);
        Self { blocks: RwSignal::new(blocks), has_earlier: RwSignal::new(has_earlier), count: RwSignal::new(count) }
    }

    /// The blocks, in order.
    #[must_use]
    pub fn blocks(self) -> RwSignal<Vec<LogBlock>> {
        self.blocks
    }

    /// How many lines are on the page.
    #[must_use]
    pub fn count(self) -> usize {
        self.count.get()
    }

    /// Whether there are lines before the first one on the page.
    #[must_use]
    pub fn has_earlier(self) -> bool {
        self.has_earlier.get()
    }

    /// The first line's place.
    #[must_use]
    pub fn first_seq(self) -> Option<i64> {
        self.blocks.with(|blocks| blocks.first().map(LogBlock::first)).filter(|seq| *seq != i64::MAX)
    }

    /// Takes lines in wherever they belong and returns how many were not known.
    pub fn merge(self, lines: &[LogLine]) -> usize {
        let added = lines.iter().filter(|line| self.merge_line(line)).count();
        if added > 0 {
            self.count.update(|count| *count += added);
            self.drop_oldest();
        }
        added
    }

    /// Puts a page of earlier lines in front; `has_earlier` says whether there are lines before those.
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
        // The block whose range holds the line: the last one that begins at or before it.
        let block = self.blocks.with_untracked(|blocks| {
            let after = blocks.partition_point(|block| block.first() <= line.seq);
            let is_last = after == blocks.len();
            blocks.get(after.saturating_sub(1)).cloned().map(|block| (block, is_last))
        });
        let Some((block, is_last)) = block else {
            self.blocks.update(|blocks| blocks.push(LogBlock::new(vec![line.clone()])));
            return true;
        };
        let (place, known, full) = {
            let lines = block.lines.read_untracked();
            let place = lines.partition_point(|other| other.seq < line.seq);
            (place, lines.get(place).is_some_and(|other| other.seq == line.seq), lines.len() >= LOG_BLOCK_LINES)
        };
        if known {
            return false;
        }
        let at_end = place == block.lines.read_untracked().len();
        if full && is_last && at_end {
            self.blocks.update(|blocks| blocks.push(LogBlock::new(vec![line.clone()])));
        } else {
            block.lines.update(|lines| lines.insert(place, line.clone()));
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
    fn a_line_told_twice_is_shown_once() {
        in_owner(|| {
            let log = LogLines::new(lines([1, 2, 3]), false);
            assert_eq!(log.merge(&lines([2, 3, 4, 5])), 2);
            assert_eq!(seqs(log), [1, 2, 3, 4, 5]);
        });
    }

    #[test]
    fn a_late_line_finds_its_place() {
        in_owner(|| {
            let log = LogLines::new(lines([10, 12]), false);
            log.merge(&lines([20, 11, 9]));
            assert_eq!(seqs(log), [9, 10, 11, 12, 20]);
        });
    }

    #[test]
    fn blocks_stay_small_while_a_log_grows() {
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
    fn earlier_lines_come_in_front() {
        in_owner(|| {
            let log = LogLines::new(lines([500, 501]), true);
            log.prepend(lines([498, 499, 500]), false);
            assert_eq!(seqs(log), [498, 499, 500, 501]);
            assert_eq!(log.first_seq(), Some(498));
            assert!(!log.has_earlier());
        });
    }

    #[test]
    fn the_page_forgets_the_oldest_lines_of_an_endless_log() {
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
