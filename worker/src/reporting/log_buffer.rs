//! The log lines that the broker has not confirmed.
//!
//! Lines are collected by occurrence, so that a job that logs a lot costs one message every 20 ms and not one per line.
//! This is also where lines, unlike reports, may be dropped if the broker is unavailable for long. The outbox mirrors
//! the buffer on disk: each line that enters is recorded there, and each line that leaves is erased.
//!
//! The bound on the number of lines applies while the broker is unavailable. As long as the broker accepts lines, the
//! buffer empties by itself, and only its size is bounded: a burst of short lines must not lose any.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine},
};
use tokio::time::Instant;

use crate::{
    clock,
    reporting::outbox::{DroppedLines, EntryId, OutboxJournal, RecoveredReports},
};

/// Maximum time that a line waits for further lines.
const LOG_BATCH_DELAY: Duration = Duration::from_millis(20);
/// Maximum number of lines in one message.
const MAX_BATCH_LINES: usize = 200;
/// Maximum size of the lines in one message, well below the maximum message size.
const MAX_BATCH_BYTES: usize = 512 * 1024;

/// Bounds of the lines that are kept while the broker is unavailable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogBounds {
    pub(crate) lines: usize,
    pub(crate) bytes: usize,
}

/// A line, encoded as JSON, and its number.
pub(crate) struct EncodedLine {
    pub(crate) seq: i64,
    pub(crate) text: Arc<str>,
}

impl From<&LogLine> for EncodedLine {
    fn from(line: &LogLine) -> Self {
        Self { seq: line.seq, text: json(line).into() }
    }
}

/// A line that waits.
struct BufferedLine {
    id: EntryId,
    seq: i64,
    text: Arc<str>,
}

/// Lines of one occurrence for one message.
pub(crate) struct LogBatch {
    pub(crate) occurrence: OccurrenceId,
    lines: VecDeque<BufferedLine>,
    bytes: usize,
    due: Instant,
    /// The lines that were dropped before the first line of this batch.
    dropped: Option<DroppedLines>,
}

impl LogBatch {
    fn new(occurrence: OccurrenceId, due: Instant) -> Self {
        Self { occurrence, lines: VecDeque::new(), bytes: 0, due, dropped: None }
    }

    fn push(&mut self, line: BufferedLine) {
        self.bytes += line.text.len();
        self.lines.push_back(line);
    }

    /// Returns the size of the lines.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Builds the body of the message: a `LogMessage`, concatenated from its lines because they are JSON already.
    pub(crate) fn body(&self) -> String {
        let mut body = String::with_capacity(self.bytes + self.lines.len() + 300);
        body.push_str(&format!(r#"{{"occurrenceId":"{}","lines":["#, self.occurrence));
        let notice = self.dropped.map(drop_notice);
        let lines = notice.as_deref().into_iter().chain(self.lines.iter().map(|line| &*line.text));
        for (index, text) in lines.enumerate() {
            if index > 0 {
                body.push(',');
            }
            body.push_str(text);
        }
        body.push_str("]}");
        body
    }
}

/// Builds the line that replaces dropped lines. It has the number of the last dropped line, so it is sorted before all
/// later lines.
fn drop_notice((count, seq): DroppedLines) -> String {
    let message = format!(
        "{count} lines before this one were dropped: more waited for the broker than MILVAION_OUTBOX_LINES and MILVAION_OUTBOX_MEGABYTES allow"
    );
    json(&LogLine { seq, at: clock::now(), level: LogLevel::Warn, message, data: None })
}

fn json(line: &LogLine) -> String {
    serde_json::to_string(line).expect("a log line is plain data")
}

/// The lines that the broker has not confirmed, except those in flight.
pub(crate) struct LogBuffer {
    open: HashMap<OccurrenceId, LogBatch>,
    ready: VecDeque<LogBatch>,
    buffered: LogBounds,
    bounds: LogBounds,
    /// True while the broker accepts lines, so that the number of lines is not bounded.
    is_draining: bool,
    /// The number of dropped lines of each occurrence, and the number of the last of them.
    dropped_lines: HashMap<OccurrenceId, DroppedLines>,
}

impl LogBuffer {
    /// Creates an empty buffer.
    pub(crate) fn new(bounds: LogBounds) -> Self {
        Self {
            open: HashMap::new(),
            ready: VecDeque::new(),
            buffered: LogBounds { lines: 0, bytes: 0 },
            bounds,
            is_draining: false,
            dropped_lines: HashMap::new(),
        }
    }

    /// Returns the number of waiting lines.
    pub(crate) fn len(&self) -> usize {
        self.buffered.lines
    }

    /// Returns true if neither lines nor drop notices wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.ready.is_empty() && self.dropped_lines.is_empty()
    }

    /// Adds a line.
    pub(crate) fn push(
        &mut self,
        occurrence: OccurrenceId,
        line: impl Into<EncodedLine>,
        journal: &mut OutboxJournal,
        now: Instant,
    ) {
        let EncodedLine { seq, text } = line.into();
        let id = journal.line(occurrence, &text, now);
        self.add(occurrence, BufferedLine { id, seq, text }, now);
        self.enforce_bounds(journal, now);
    }

    /// Records whether the broker accepts lines. If it does not, lines beyond their maximum number are dropped.
    pub(crate) fn set_draining(&mut self, is_draining: bool, journal: &mut OutboxJournal, now: Instant) {
        if std::mem::replace(&mut self.is_draining, is_draining) && !is_draining {
            self.enforce_bounds(journal, now);
        }
    }

    /// Counts lines that were dropped before they reached the buffer.
    pub(crate) fn add_dropped(
        &mut self,
        occurrence: OccurrenceId,
        dropped: DroppedLines,
        journal: &mut OutboxJournal,
        now: Instant,
    ) {
        let dropped = self.count_dropped(occurrence, dropped);
        journal.lines_dropped(occurrence, Some(dropped), now);
    }

    /// Adds the lines that an earlier process left.
    pub(crate) fn recover(&mut self, recovered: &mut RecoveredReports, journal: &mut OutboxJournal, now: Instant) {
        for (occurrence, dropped) in recovered.dropped_lines.drain(..) {
            match dropped {
                Some(dropped) => drop(self.dropped_lines.insert(occurrence, dropped)),
                None => journal.lines_dropped(occurrence, None, now),
            }
        }
        for (id, occurrence, line, text) in recovered.lines.drain(..) {
            self.add(occurrence, BufferedLine { id, seq: line.seq, text }, now);
        }
        self.enforce_bounds(journal, now);
    }

    fn add(&mut self, occurrence: OccurrenceId, line: BufferedLine, now: Instant) {
        let batch = self.open.entry(occurrence).or_insert_with(|| LogBatch::new(occurrence, now + LOG_BATCH_DELAY));
        self.buffered.lines += 1;
        self.buffered.bytes += line.text.len();
        batch.push(line);
        if batch.lines.len() >= MAX_BATCH_LINES || batch.bytes >= MAX_BATCH_BYTES {
            self.close(occurrence);
        }
    }

    fn enforce_bounds(&mut self, journal: &mut OutboxJournal, now: Instant) {
        let max_lines = if self.is_draining { usize::MAX } else { self.bounds.lines };
        while self.buffered.lines > max_lines || self.buffered.bytes > self.bounds.bytes {
            self.drop_oldest(journal, now);
        }
    }

    /// Returns the time at which the next batch is due, or `None` if nothing waits. A time in the past means now.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if let Some(batch) = self.ready.front() {
            return Some(batch.due);
        }
        self.open.values().map(|batch| batch.due).min()
    }

    /// Takes the next batch to send, if one is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<LogBatch> {
        if self.ready.is_empty() {
            let due: Vec<OccurrenceId> =
                self.open.values().filter(|batch| batch.due <= now).map(|batch| batch.occurrence).collect();
            due.into_iter().for_each(|occurrence| self.close(occurrence));
        }
        let batch = self.ready.pop_front();
        if batch.is_none()
            && let Some(&occurrence) = self.dropped_lines.keys().next()
        {
            return Some(self.attach_drop_notice(LogBatch::new(occurrence, now)));
        }
        batch.map(|batch| self.prepare_to_send(batch))
    }

    /// Takes all lines of one occurrence, due or not, because its end is about to be reported.
    pub(crate) fn take_all_of(&mut self, occurrence: OccurrenceId) -> Vec<LogBatch> {
        let mut taken = Vec::new();
        if self.ready.iter().any(|batch| batch.occurrence == occurrence) {
            for batch in std::mem::take(&mut self.ready) {
                if batch.occurrence == occurrence {
                    let batch = self.prepare_to_send(batch);
                    taken.push(batch);
                } else {
                    self.ready.push_back(batch);
                }
            }
        }
        if let Some(batch) = self.open.remove(&occurrence) {
            let batch = self.prepare_to_send(batch);
            taken.push(batch);
        }
        taken
    }

    /// Puts back a batch that could not be sent.
    pub(crate) fn put_back(&mut self, mut batch: LogBatch, journal: &mut OutboxJournal, now: Instant) {
        self.buffered.lines += batch.lines.len();
        self.buffered.bytes += batch.bytes;
        if let Some(dropped) = batch.dropped.take() {
            self.count_dropped(batch.occurrence, dropped);
        }
        if !batch.lines.is_empty() {
            self.ready.push_front(batch);
        }
        self.enforce_bounds(journal, now);
    }

    /// Erases a batch that the broker has confirmed from the outbox.
    pub(crate) fn delivered(&self, batch: LogBatch, journal: &mut OutboxJournal, now: Instant) {
        for line in batch.lines {
            journal.erase(line.id, now);
        }
        if batch.dropped.is_some() {
            journal.lines_dropped(batch.occurrence, self.dropped_lines.get(&batch.occurrence).copied(), now);
        }
    }

    /// Removes a batch that is about to be sent from the counts, and attaches its drop notice.
    fn prepare_to_send(&mut self, batch: LogBatch) -> LogBatch {
        self.buffered.lines -= batch.lines.len();
        self.buffered.bytes -= batch.bytes;
        self.attach_drop_notice(batch)
    }

    /// Attaches the count of dropped lines to a batch of the same occurrence.
    fn attach_drop_notice(&mut self, mut batch: LogBatch) -> LogBatch {
        batch.dropped = self.dropped_lines.remove(&batch.occurrence);
        batch
    }

    fn close(&mut self, occurrence: OccurrenceId) {
        if let Some(batch) = self.open.remove(&occurrence) {
            self.ready.push_back(batch);
        }
    }

    fn drop_oldest(&mut self, journal: &mut OutboxJournal, now: Instant) {
        let Some(front) = self.ready.front_mut() else {
            // There are so many occurrences that no batch is ready: close the oldest one.
            if let Some(oldest) = self.open.values().min_by_key(|batch| batch.due).map(|batch| batch.occurrence) {
                self.close(oldest);
            }
            return;
        };
        if let Some(line) = front.lines.pop_front() {
            front.bytes -= line.text.len();
            self.buffered.lines -= 1;
            self.buffered.bytes -= line.text.len();
            let (occurrence, is_empty) = (front.occurrence, front.lines.is_empty());
            if is_empty {
                self.ready.pop_front();
            }
            journal.erase(line.id, now);
            let dropped = self.count_dropped(occurrence, (1, line.seq));
            journal.lines_dropped(occurrence, Some(dropped), now);
        } else {
            self.ready.pop_front();
        }
    }

    /// Adds to the dropped lines of an occurrence. Lines that come back from a failed send are older than lines that
    /// were dropped in the meantime, so the highest number is kept.
    fn count_dropped(&mut self, occurrence: OccurrenceId, (count, last): DroppedLines) -> DroppedLines {
        let total = self.dropped_lines.entry(occurrence).or_default();
        *total = (total.0 + count, total.1.max(last));
        *total
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::{AttemptLogBounds, LogMessage};

    use super::*;
    use crate::run::log_writer::LogWriter;

    const MAX_KEPT: usize = 5_000;

    fn occurrence(n: u8) -> OccurrenceId {
        OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [n; 10])
    }

    fn log_writer(attempt: u32) -> LogWriter {
        LogWriter::new(attempt, AttemptLogBounds::default())
    }

    fn line(log_writer: &LogWriter) -> LogLine {
        log_writer.due_line("a".to_owned())
    }

    fn log_buffer() -> (LogBuffer, OutboxJournal) {
        (LogBuffer::new(LogBounds { lines: MAX_KEPT, bytes: 10_000_000 }), OutboxJournal::off())
    }

    fn read(batch: &LogBatch) -> LogMessage {
        serde_json::from_str(&batch.body()).expect("a body is a LogMessage")
    }

    #[test]
    fn lines_are_batched_in_order() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), log_writer(2), Instant::now());
        log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now);
        log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now);
        assert!(log_buffer.take_due(now).is_none());
        let message = read(&log_buffer.take_due(now + LOG_BATCH_DELAY).expect("due"));
        assert_eq!(message.occurrence_id, occurrence(1));
        assert_eq!(message.lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [2_000_000, 2_000_001]);
        assert!(log_buffer.is_empty());
    }

    #[test]
    fn full_batch_is_due_at_once() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), log_writer(1), Instant::now());
        (0..MAX_BATCH_LINES).for_each(|_| log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now));
        assert_eq!(read(&log_buffer.take_due(now).expect("full")).lines.len(), MAX_BATCH_LINES);
    }

    #[test]
    fn oldest_lines_are_dropped_and_counted() {
        let ((mut log_buffer, mut journal), now) = (log_buffer(), Instant::now());
        let log_writers = [log_writer(1), log_writer(1)];
        for n in 0..MAX_KEPT + 30 {
            let index = n % 2;
            log_buffer.push(occurrence(index as u8), &line(&log_writers[index]), &mut journal, now);
        }
        assert_eq!(log_buffer.buffered.lines, MAX_KEPT);
        let first = read(&log_buffer.take_due(now).expect("full batches are due"));
        assert!(first.lines[0].message.starts_with("30 lines before this one"), "{}", first.lines[0].message);
        assert_eq!(first.lines[0].seq + 1, first.lines[1].seq);
    }

    #[test]
    fn returned_batch_is_dropped_beyond_the_bound() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), log_writer(1), Instant::now());
        (0..MAX_BATCH_LINES).for_each(|_| log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now));
        let in_flight = log_buffer.take_due(now).expect("full");
        (0..MAX_KEPT - 50).for_each(|_| log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now));
        log_buffer.put_back(in_flight, &mut journal, now);
        assert_eq!(log_buffer.buffered.lines, MAX_KEPT);
        let first = read(&log_buffer.take_due(now).expect("full batches are due"));
        assert!(first.lines[0].message.starts_with("150 lines before this one"), "{}", first.lines[0].message);
        assert_eq!(first.lines[0].seq + 1, first.lines[1].seq);
        let rest = std::iter::from_fn(|| log_buffer.take_due(now + LOG_BATCH_DELAY)).map(|batch| batch.lines.len());
        assert_eq!(rest.sum::<usize>() + first.lines.len() - 1, MAX_KEPT);
    }

    #[test]
    fn number_of_lines_is_bounded_only_without_a_broker() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), log_writer(1), Instant::now());
        log_buffer.set_draining(true, &mut journal, now);
        (0..MAX_KEPT + 30).for_each(|_| log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now));
        assert_eq!(log_buffer.len(), MAX_KEPT + 30);
        log_buffer.set_draining(false, &mut journal, now);
        assert_eq!(log_buffer.len(), MAX_KEPT);
        assert!(read(&log_buffer.take_due(now).expect("due")).lines[0].message.starts_with("30 lines before this one"));
    }

    #[test]
    fn lines_dropped_before_the_buffer_are_in_the_notice() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), log_writer(1), Instant::now());
        log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now);
        log_buffer.add_dropped(occurrence(1), (7, 1_000_008), &mut journal, now);
        let message = read(&log_buffer.take_all_of(occurrence(1)).pop().expect("a batch"));
        assert!(message.lines[0].message.starts_with("7 lines before this one were dropped"), "{message:?}");
        assert_eq!(message.lines[0].seq, 1_000_008);
    }

    #[test]
    fn size_bound_is_enforced() {
        let (mut journal, log_writer, now) = (OutboxJournal::off(), log_writer(1), Instant::now());
        let mut log_buffer = LogBuffer::new(LogBounds { lines: MAX_KEPT, bytes: 100_000 });
        for _ in 0..100 {
            let long = log_writer.due_line("x".repeat(5_000));
            log_buffer.push(occurrence(1), &long, &mut journal, now);
        }
        assert!(log_buffer.buffered.bytes <= 100_000 && log_buffer.buffered.lines == 19, "{:?}", log_buffer.buffered);
    }

    #[test]
    fn returned_batch_is_sent_first() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), log_writer(1), Instant::now());
        log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now);
        let batch = log_buffer.take_all_of(occurrence(1)).pop().expect("one batch");
        log_buffer.push(occurrence(2), &line(&log_writer), &mut journal, now);
        log_buffer.put_back(batch, &mut journal, now);
        assert_eq!(log_buffer.take_due(now + LOG_BATCH_DELAY).expect("due").occurrence, occurrence(1));
    }
}
