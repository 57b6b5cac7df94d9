//! The log lines on a page, each once, in blocks that keep the layout of a long log cheap.
//!
//! Lines come from reads that overlap: of new lines, of earlier ones and of gaps. A line's `seq` identifies it and gives
//! its position, so a read may repeat lines of another.
//!
//! After a pause or a lost connection a read returns only the newest of the missed lines, and the number of the ones
//! before them. The page compares this number with the lines it has. If it has fewer, the difference is a [`LogGap`],
//! which is shown at its position and can be loaded. Numbers alone do not show a gap, because a worker may leave numbers
//! out.

use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_protocol::message::{LogLine, first_log_seq};

/// The number of lines in a full block.
pub const LOG_BLOCK_LINES: usize = 200;
/// The maximum number of lines on the page. Following a log for hours drops its oldest lines from the page only.
const MAX_LOG_LINES: usize = 20_000;

/// The number of lines that a read repeats. A line that another server stored late is among them.
const READ_OVERLAP_LINES: usize = LOG_BLOCK_LINES;
/// The start of a range that contains the whole log. Each `seq` is greater.
const LOG_START: i64 = -1;
/// The number of `seq` values of one attempt.
const ATTEMPT_SEQ_RANGE: i64 = first_log_seq(1);

/// A range of stored lines that are not on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGap {
    /// The `seq` of the last line before the range.
    pub after: i64,
    /// The `seq` of the first line after the range.
    pub before: i64,
    /// The number of lines in the range. `None` if the page cannot tell which of several ranges lacks lines.
    pub count: Option<i64>,
}

/// Consecutive lines.
#[derive(Clone)]
pub struct LogBlock {
    /// Unique key for rendering.
    pub key: u64,
    /// The lines in order of `seq`.
    pub lines: ArcRwSignal<Vec<LogLine>>,
    /// The gap between the previous block and this one.
    pub gap: ArcRwSignal<Option<LogGap>>,
}

impl LogBlock {
    fn new(lines: Vec<LogLine>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { key: NEXT.fetch_add(1, Ordering::Relaxed), lines: ArcRwSignal::new(lines), gap: ArcRwSignal::new(None) }
    }

    fn first(&self) -> i64 {
        self.lines.read_untracked().first().map_or(i64::MAX, |line| line.seq)
    }

    fn last(&self) -> i64 {
        self.lines.read_untracked().last().map_or(i64::MIN, |line| line.seq)
    }
}

/// The lines of one log.
#[derive(Clone, Copy)]
pub struct LogLines {
    blocks: RwSignal<Vec<LogBlock>>,
    has_earlier: RwSignal<bool>,
    count: RwSignal<usize>,
    /// The last line of the newest read. Up to it, every line is on the page, in a gap or before the first line.
    read_to: StoredValue<Option<i64>>,
    /// The maximum number of lines on the page.
    limit: StoredValue<usize>,
}

impl LogLines {
    /// Creates the log from its first lines in order. `has_earlier` is true if the log has lines before them.
    #[must_use]
    pub fn new(lines: Vec<LogLine>, has_earlier: bool) -> Self {
        let count = lines.len();
        let read_to = lines.last().map(|line| line.seq);
        let blocks = in_blocks(lines);
        Self {
            blocks: RwSignal::new(blocks),
            has_earlier: RwSignal::new(has_earlier),
            count: RwSignal::new(count),
            read_to: StoredValue::new(read_to),
            limit: StoredValue::new(MAX_LOG_LINES),
        }
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

    /// Returns the time of the first line on the page.
    #[must_use]
    pub fn first_at(self) -> Option<DateTime<Utc>> {
        self.blocks
            .with(|blocks| blocks.first().and_then(|block| block.lines.with(|lines| lines.first().map(|l| l.at))))
    }

    /// Returns true if lines are missing between the first and the last line on the page.
    #[must_use]
    pub fn has_gap(self) -> bool {
        self.blocks.with(|blocks| blocks.iter().any(|block| block.gap.get().is_some()))
    }

    /// Returns the `seq` after which the next read starts, so that it returns the lines that the page may lack.
    #[must_use]
    pub fn read_start(self) -> i64 {
        let Some(read_to) = self.read_to.get_value() else { return LOG_START };
        self.blocks.with_untracked(|blocks| {
            let mut rest = READ_OVERLAP_LINES;
            for block in blocks.iter().rev() {
                let lines = block.lines.read_untracked();
                let known = lines.partition_point(|line| line.seq <= read_to);
                if known > rest {
                    return lines[known - rest - 1].seq;
                }
                rest -= known;
                // The user loads a known gap; no read repeats it.
                if known > 0 && block.gap.read_untracked().is_some() {
                    return block.first() - 1;
                }
            }
            blocks.first().map_or(LOG_START, |block| block.first() - 1)
        })
    }

    /// Inserts the lines of a read that started after `after`. `skipped` is the number of lines between `after` and the
    /// first of `lines`; a gap marks those that are not on the page.
    pub fn merge_read(self, lines: &[LogLine], after: i64, skipped: i64) {
        self.insert(lines);
        if let (Some(first), true) = (lines.first(), skipped > 0) {
            self.mark_gaps(after, first.seq, skipped);
        }
        if let Some(last) = lines.last() {
            self.read_to.set_value(self.read_to.get_value().max(Some(last.seq)));
        }
        self.drop_oldest();
    }

    /// Inserts the first lines of the gap before the block `key`. `is_complete` is true if the gap has no further lines.
    pub fn fill_gap(self, key: u64, lines: Vec<LogLine>, is_complete: bool) {
        let found = self.blocks.with_untracked(|blocks| {
            let index = blocks.iter().position(|block| block.key == key)?;
            let previous = index.checked_sub(1).map_or(i64::MIN, |index| blocks[index].last());
            Some((index, previous, blocks[index].clone()))
        });
        let Some((index, previous, block)) = found else { return };
        let before = block.first();
        let loaded_to = lines.last().map(|line| line.seq);
        // Lines that another read found late are at the end of the previous block already.
        let (late, rest): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.seq <= previous);
        self.insert(&late);
        let rest: Vec<_> = rest.into_iter().filter(|line| line.seq < before).collect();
        let added = rest.len();
        self.count.update(|count| *count += added);
        self.limit.update_value(|limit| *limit += added);
        block.gap.update(|gap| {
            *gap = gap.filter(|_| !is_complete).map(|gap| LogGap {
                after: loaded_to.unwrap_or(gap.after),
                before,
                count: gap.count.map(|count| count - count_of(added)),
            });
            *gap = gap.filter(|gap| gap.count.is_none_or(|count| count > 0));
        });
        self.blocks.update(|blocks| {
            blocks.splice(index..index, in_blocks(rest));
        });
    }

    /// Prepends a page of earlier lines. `has_earlier` is true if the log has lines before those.
    pub fn prepend(self, lines: Vec<LogLine>, has_earlier: bool) {
        let first = self.blocks.with_untracked(|blocks| blocks.first().map_or(i64::MAX, LogBlock::first));
        let lines: Vec<LogLine> = lines.into_iter().filter(|line| line.seq < first).collect();
        self.count.update(|count| *count += lines.len());
        // The next line must not remove what the user has just loaded.
        self.limit.update_value(|limit| *limit += lines.len());
        self.blocks.update(|blocks| {
            blocks.splice(0..0, in_blocks(lines));
        });
        self.has_earlier.set(has_earlier);
    }

    fn insert(self, lines: &[LogLine]) -> usize {
        let added = lines.iter().filter(|line| self.merge_line(line)).count();
        if added > 0 {
            self.count.update(|count| *count += added);
        }
        added
    }

    /// Marks the lines that the page lacks between `after` and `before`, where `stored` lines exist.
    fn mark_gaps(self, after: i64, before: i64, stored: i64) {
        let known: Vec<i64> = self.blocks.with_untracked(|blocks| {
            let lines = blocks.iter().map(|block| block.lines.read_untracked());
            lines
                .flat_map(|lines| lines.iter().map(|line| line.seq).collect::<Vec<_>>())
                .filter(|seq| *seq > after && *seq < before)
                .collect()
        });
        let missing = stored - count_of(known.len());
        if missing <= 0 {
            return;
        }
        let starts = std::iter::once(after).chain(known.iter().copied());
        let ends = known.iter().copied().chain(std::iter::once(before));
        let mut jumps: Vec<(i64, i64)> = starts.zip(ends).filter(|(start, end)| end - start > 1).collect();
        let first = self.blocks.with_untracked(|blocks| blocks.first().map_or(i64::MAX, LogBlock::first));
        if jumps.first().is_some_and(|(_, end)| *end == first) {
            // These lines are before the first one on the page.
            jumps.remove(0);
            self.has_earlier.set(true);
        }
        let counts = gap_counts(&jumps, missing);
        for ((after, before), count) in jumps.into_iter().zip(counts) {
            self.set_gap(LogGap { after, before, count });
        }
    }

    /// Shows a gap before the line with the `seq` `gap.before`, which becomes the first line of its block.
    fn set_gap(self, gap: LogGap) {
        let found = self.blocks.with_untracked(|blocks| {
            let index = blocks.partition_point(|block| block.first() <= gap.before).checked_sub(1)?;
            Some((index, blocks[index].clone()))
        });
        let Some((index, block)) = found else { return };
        if block.first() == gap.before {
            block.gap.set(Some(gap));
            return;
        }
        let split = block.lines.read_untracked().partition_point(|line| line.seq < gap.before);
        let rest = block.lines.try_update(|lines| lines.split_off(split)).unwrap_or_default();
        let rest = LogBlock::new(rest);
        rest.gap.set(Some(gap));
        self.blocks.update(|blocks| blocks.insert(index + 1, rest));
    }

    fn merge_line(self, line: &LogLine) -> bool {
        // The block for this line is the last one that starts at or before it.
        let block = self.blocks.with_untracked(|blocks| {
            let after = blocks.partition_point(|block| block.first() <= line.seq);
            let block = blocks.get(after.saturating_sub(1)).cloned()?;
            Some((block, blocks.get(after).filter(|_| after > 0).cloned()))
        });
        let Some((block, next)) = block else {
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
        if let Some(next) = &next
            && let Some(gap) = next.gap.get_untracked()
            && line.seq > gap.after
        {
            // A line of a gap that arrived late.
            let count = gap.count.map(|count| count - 1);
            next.gap.set(Some(LogGap { count, ..gap }).filter(|gap| gap.count != Some(0)));
        }
        if full && next.is_none() && at_end {
            self.blocks.update(|blocks| blocks.push(LogBlock::new(vec![line.clone()])));
        } else {
            block.lines.update(|lines| lines.insert(index, line.clone()));
        }
        true
    }

    fn drop_oldest(self) {
        while self.count.get_untracked() > self.limit.get_value()
            && self.blocks.with_untracked(|blocks| blocks.len() > 1)
        {
            let dropped = self.blocks.try_update(|blocks| blocks.remove(0));
            let lines = dropped.map_or(0, |block| block.lines.read_untracked().len());
            self.count.update(|count| *count = count.saturating_sub(lines));
            self.has_earlier.set(true);
            // A gap before the first line is part of the earlier lines.
            self.blocks.with_untracked(|blocks| blocks.iter().take(1).for_each(|block| block.gap.set(None)));
        }
    }
}

/// Returns the number of missing lines of each jump in the sequence, where it is certain: if only one jump can lack
/// lines, or if the lines of all jumps are exactly the missing ones.
fn gap_counts(jumps: &[(i64, i64)], missing: i64) -> Vec<Option<i64>> {
    let lines = |(start, end): &(i64, i64)| end - start - 1;
    let in_one_attempt = |(start, end): &(i64, i64)| start / ATTEMPT_SEQ_RANGE == end / ATTEMPT_SEQ_RANGE;
    let is_exact = jumps.iter().all(in_one_attempt) && jumps.iter().map(lines).sum::<i64>() == missing;
    match jumps {
        [_] => vec![Some(missing)],
        _ if is_exact => jumps.iter().map(|jump| Some(lines(jump))).collect(),
        _ => vec![None; jumps.len()],
    }
}

fn count_of(lines: usize) -> i64 {
    i64::try_from(lines).unwrap_or(i64::MAX)
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

    /// Inserts lines of which no read is recorded. Returns the number of new ones.
    fn merge(log: LogLines, lines: &[LogLine]) -> usize {
        let added = log.insert(lines);
        log.drop_oldest();
        added
    }

    fn in_owner(check: impl FnOnce()) {
        Owner::new().with(check);
    }

    #[test]
    fn repeated_line_is_shown_once() {
        in_owner(|| {
            let log = LogLines::new(lines([1, 2, 3]), false);
            assert_eq!(merge(log, &lines([2, 3, 4, 5])), 2);
            assert_eq!(seqs(log), [1, 2, 3, 4, 5]);
        });
    }

    #[test]
    fn late_line_is_inserted_in_order() {
        in_owner(|| {
            let log = LogLines::new(lines([10, 12]), false);
            merge(log, &lines([20, 11, 9]));
            assert_eq!(seqs(log), [9, 10, 11, 12, 20]);
        });
    }

    #[test]
    fn full_block_starts_a_new_one() {
        in_owner(|| {
            let log = LogLines::new(vec![], false);
            merge(log, &lines(0..450));
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

    fn gaps(log: LogLines) -> Vec<LogGap> {
        log.blocks.with_untracked(|blocks| blocks.iter().filter_map(|block| block.gap.get_untracked()).collect())
    }

    fn key_before_gap(log: LogLines) -> u64 {
        log.blocks
            .with_untracked(|blocks| blocks.iter().find(|b| b.gap.get_untracked().is_some()).map(|b| b.key))
            .expect("a gap")
    }

    const fn gap(after: i64, before: i64, count: i64) -> LogGap {
        LogGap { after, before, count: Some(count) }
    }

    #[test]
    fn missed_lines_are_a_gap_with_their_number() {
        in_owner(|| {
            let log = LogLines::new(lines(0..300), false);
            assert_eq!(log.read_start(), 99, "the read repeats the last lines");
            // 1,500 lines were stored during a pause; the read returns the last 500 of the 1,700 after line 99.
            log.merge_read(&lines(1_300..1_800), 99, 1_200);
            assert_eq!(gaps(log), [gap(299, 1_300, 1_000)]);
            assert_eq!(log.count(), 800);
            assert!(log.has_gap());
            assert!(!log.has_earlier());
        });
    }

    #[test]
    fn gap_is_filled_page_by_page() {
        in_owner(|| {
            let log = LogLines::new(lines(0..100), false);
            log.merge_read(&lines(800..1_300), log.read_start(), 800);
            assert_eq!(gaps(log), [gap(99, 800, 700)]);
            let key = key_before_gap(log);
            log.fill_gap(key, lines(100..600), false);
            assert_eq!(gaps(log), [gap(599, 800, 200)]);
            log.fill_gap(key, lines(600..800), true);
            assert_eq!(gaps(log), []);
            assert_eq!(seqs(log), (0..1_300).collect::<Vec<_>>());
            assert_eq!(log.count(), 1_300);
        });
    }

    #[test]
    fn known_lines_leave_no_gap() {
        in_owner(|| {
            let log = LogLines::new(lines(0..10), false);
            merge(log, &lines(10..900));
            let start = log.read_start();
            assert_eq!(start, -1);
            log.merge_read(&lines(400..900), start, 400);
            assert_eq!(gaps(log), []);
            assert!(!log.has_earlier());
        });
    }

    #[test]
    fn numbers_that_a_worker_left_out_are_no_gap() {
        in_owner(|| {
            let log = LogLines::new(lines((0..200).map(|n| n * 10)), false);
            let start = log.read_start();
            merge(log, &lines((200..800).map(|n| n * 10)));
            log.merge_read(&lines((300..800).map(|n| n * 10)), start, 300);
            assert_eq!(gaps(log), []);
        });
    }

    #[test]
    fn gap_across_attempts_counts_stored_lines() {
        in_owner(|| {
            let log = LogLines::new(lines(1_000_000..1_000_010), false);
            log.merge_read(&lines(2_000_100..2_000_600), log.read_start(), 150);
            assert_eq!(gaps(log), [gap(1_000_009, 2_000_100, 140)]);
        });
    }

    #[test]
    fn several_jumps_have_no_certain_number() {
        in_owner(|| {
            let log = LogLines::new(lines(1_000_000..1_000_010), false);
            merge(log, &lines(2_000_000..2_000_010));
            log.merge_read(&lines(2_000_100..2_000_600), log.read_start(), 60);
            let counts: Vec<_> = gaps(log).iter().map(|gap| gap.count).collect();
            assert_eq!(counts, [None, None]);
            log.fill_gap(key_before_gap(log), vec![], true);
            assert_eq!(gaps(log).len(), 1, "a gap without lines disappears when it is loaded");
        });
    }

    #[test]
    fn late_line_of_a_gap_reduces_its_number() {
        in_owner(|| {
            let log = LogLines::new(lines(0..10), false);
            log.merge_read(&lines(12..20), log.read_start(), 12);
            assert_eq!(gaps(log), [gap(9, 12, 2)]);
            merge(log, &lines([11]));
            assert_eq!(gaps(log), [gap(9, 12, 1)]);
            log.fill_gap(key_before_gap(log), lines([10, 11]), true);
            assert_eq!(seqs(log), (0..20).collect::<Vec<_>>());
            assert_eq!((gaps(log), log.count()), (vec![], 20));
        });
    }

    #[test]
    fn next_read_starts_after_a_gap() {
        in_owner(|| {
            let log = LogLines::new(lines(0..10), false);
            log.merge_read(&lines(100..150), log.read_start(), 100);
            assert_eq!(log.read_start(), 99);
            log.merge_read(&lines(100..150), 99, 0);
            assert_eq!(gaps(log), [gap(9, 100, 90)]);
        });
    }

    #[test]
    fn read_of_an_empty_log_finds_earlier_lines() {
        in_owner(|| {
            let log = LogLines::new(vec![], false);
            assert_eq!(log.read_start(), -1);
            log.merge_read(&lines(1_000_700..1_001_200), -1, 700);
            assert_eq!(gaps(log), []);
            assert!(log.has_earlier());
        });
    }

    #[test]
    fn loaded_lines_are_not_dropped_by_the_next_one() {
        in_owner(|| {
            let most = i64::try_from(MAX_LOG_LINES).expect("fits");
            let log = LogLines::new(lines(500..most + 500), true);
            log.prepend(lines(0..500), false);
            merge(log, &lines([most + 500]));
            assert_eq!(log.first_seq(), Some(200), "one block is dropped");
        });
    }

    #[test]
    fn oldest_lines_are_dropped_above_the_limit() {
        in_owner(|| {
            let log = LogLines::new(vec![], false);
            let most = i64::try_from(MAX_LOG_LINES).expect("fits");
            merge(log, &lines(0..most + 10));
            assert!(log.count() <= MAX_LOG_LINES);
            assert!(log.has_earlier());
            assert_eq!(seqs(log).last(), Some(&(most + 9)));
        });
    }
}
