//! Every line that is not with the broker yet.
//!
//! Lines are gathered by occurrence, so that a chatty job costs a message every 20 ms and not one for each line. This is
//! also the place where lines, unlike reports, may be given up when the broker stays away for long. The outbox is its
//! image on disk: what comes in here is noted there, and what goes out is erased.

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
    reporting::outbox::{DroppedLines, EntryId, OutboxJournal, Recovered},
};

/// How long a line may wait for company.
const LOG_BATCH_DELAY: Duration = Duration::from_millis(20);
/// The most lines in one message.
const MAX_BATCH_LINES: usize = 200;
/// The most bytes of lines in one message, well below what a message may have.
const MAX_BATCH_BYTES: usize = 512 * 1024;

/// How much is kept while the broker is away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogBounds {
    pub(crate) lines: usize,
    pub(crate) bytes: usize,
}

/// A line on its way, already JSON.
struct BufferedLine {
    id: EntryId,
    seq: i64,
    text: Arc<str>,
}

/// Lines of one occurrence on their way into one message.
pub(crate) struct LogBatch {
    pub(crate) occurrence: OccurrenceId,
    lines: VecDeque<BufferedLine>,
    bytes: usize,
    due: Instant,
    /// What it says before its first line about lines that were given up.
    notice: Option<DroppedLines>,
}

impl LogBatch {
    fn new(occurrence: OccurrenceId, due: Instant) -> Self {
        Self { occurrence, lines: VecDeque::new(), bytes: 0, due, notice: None }
    }

    fn push(&mut self, line: BufferedLine) {
        self.bytes += line.text.len();
        self.lines.push_back(line);
    }

    /// The message's body: a `LogMessage`, put together from its parts because they are JSON already.
    pub(crate) fn body(&self) -> String {
        let mut body = String::with_capacity(self.bytes + self.lines.len() + 300);
        body.push_str(&format!(r#"{{"occurrenceId":"{}","lines":["#, self.occurrence));
        let notice = self.notice.map(notice);
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

/// The line that stands for those that were given up. It carries the number of the last of them: first place, first number.
fn notice((count, seq): DroppedLines) -> String {
    let message = format!("{count} lines before this one were given up while the broker was away");
    json(&LogLine { seq, at: clock::now(), level: LogLevel::Warn, message, data: None })
}

fn json(line: &LogLine) -> String {
    serde_json::to_string(line).expect("a log line is plain data")
}

/// Every line that is not with the broker yet, apart from those under way.
pub(crate) struct LogBuffer {
    open: HashMap<OccurrenceId, LogBatch>,
    ready: VecDeque<LogBatch>,
    kept: LogBounds,
    bounds: LogBounds,
    /// How many lines of an occurrence were given up, and the number of the last of them.
    given_up: HashMap<OccurrenceId, DroppedLines>,
}

impl LogBuffer {
    pub(crate) fn new(bounds: LogBounds) -> Self {
        Self {
            open: HashMap::new(),
            ready: VecDeque::new(),
            kept: LogBounds { lines: 0, bytes: 0 },
            bounds,
            given_up: HashMap::new(),
        }
    }

    /// How many lines wait.
    pub(crate) fn len(&self) -> usize {
        self.kept.lines
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.ready.is_empty() && self.given_up.is_empty()
    }

    /// Takes a line.
    pub(crate) fn push(&mut self, occurrence: OccurrenceId, line: &LogLine, journal: &mut OutboxJournal, now: Instant) {
        let text: Arc<str> = json(line).into();
        let id = journal.line(occurrence, &text, now);
        self.take(occurrence, BufferedLine { id, seq: line.seq, text }, now);
        self.keep_bounds(journal, now);
    }

    /// Takes the lines that an earlier process left.
    pub(crate) fn recover(&mut self, recovered: &mut Recovered, journal: &mut OutboxJournal, now: Instant) {
        for (occurrence, given_up) in recovered.given_up.drain(..) {
            match given_up {
                Some(given_up) => drop(self.given_up.insert(occurrence, given_up)),
                None => journal.given_up(occurrence, None, now),
            }
        }
        for (id, occurrence, line, text) in recovered.lines.drain(..) {
            self.take(occurrence, BufferedLine { id, seq: line.seq, text }, now);
        }
        self.keep_bounds(journal, now);
    }

    fn take(&mut self, occurrence: OccurrenceId, line: BufferedLine, now: Instant) {
        let batch = self.open.entry(occurrence).or_insert_with(|| LogBatch::new(occurrence, now + LOG_BATCH_DELAY));
        self.kept.lines += 1;
        self.kept.bytes += line.text.len();
        batch.push(line);
        if batch.lines.len() >= MAX_BATCH_LINES || batch.bytes >= MAX_BATCH_BYTES {
            self.close(occurrence);
        }
    }

    fn keep_bounds(&mut self, journal: &mut OutboxJournal, now: Instant) {
        while self.kept.lines > self.bounds.lines || self.kept.bytes > self.bounds.bytes {
            self.give_up_oldest(journal, now);
        }
    }

    /// When the next batch has waited long enough; none if nothing waits. A time in the past means now.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if let Some(batch) = self.ready.front() {
            return Some(batch.due);
        }
        self.open.values().map(|batch| batch.due).min()
    }

    /// The next batch to send, if one is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<LogBatch> {
        if self.ready.is_empty() {
            let due: Vec<OccurrenceId> =
                self.open.values().filter(|batch| batch.due <= now).map(|batch| batch.occurrence).collect();
            due.into_iter().for_each(|occurrence| self.close(occurrence));
        }
        let batch = self.ready.pop_front();
        if batch.is_none()
            && let Some(&occurrence) = self.given_up.keys().next()
        {
            return Some(self.attach_drop_notice(LogBatch::new(occurrence, now)));
        }
        batch.map(|batch| self.hand_out(batch))
    }

    /// All of one occurrence's lines, due or not: its end is about to be reported.
    pub(crate) fn take_all_of(&mut self, occurrence: OccurrenceId) -> Vec<LogBatch> {
        let mut taken = Vec::new();
        if self.ready.iter().any(|batch| batch.occurrence == occurrence) {
            for batch in std::mem::take(&mut self.ready) {
                if batch.occurrence == occurrence {
                    let batch = self.hand_out(batch);
                    taken.push(batch);
                } else {
                    self.ready.push_back(batch);
                }
            }
        }
        if let Some(batch) = self.open.remove(&occurrence) {
            let batch = self.hand_out(batch);
            taken.push(batch);
        }
        taken
    }

    /// Takes back a batch that could not be sent.
    pub(crate) fn put_back(&mut self, mut batch: LogBatch, journal: &mut OutboxJournal, now: Instant) {
        self.kept.lines += batch.lines.len();
        self.kept.bytes += batch.bytes;
        if let Some(given_up) = batch.notice.take() {
            self.note(batch.occurrence, given_up);
        }
        if !batch.lines.is_empty() {
            self.ready.push_front(batch);
        }
        self.keep_bounds(journal, now);
    }

    /// Forgets a batch that the broker has confirmed.
    pub(crate) fn delivered(&self, batch: LogBatch, journal: &mut OutboxJournal, now: Instant) {
        for line in batch.lines {
            journal.erase(line.id, now);
        }
        if batch.notice.is_some() {
            journal.given_up(batch.occurrence, self.given_up.get(&batch.occurrence).copied(), now);
        }
    }

    fn hand_out(&mut self, batch: LogBatch) -> LogBatch {
        self.kept.lines -= batch.lines.len();
        self.kept.bytes -= batch.bytes;
        self.attach_drop_notice(batch)
    }

    /// Says in the batch how many lines before it were given up.
    fn attach_drop_notice(&mut self, mut batch: LogBatch) -> LogBatch {
        batch.notice = self.given_up.remove(&batch.occurrence);
        batch
    }

    fn close(&mut self, occurrence: OccurrenceId) {
        if let Some(batch) = self.open.remove(&occurrence) {
            self.ready.push_back(batch);
        }
    }

    fn give_up_oldest(&mut self, journal: &mut OutboxJournal, now: Instant) {
        let Some(front) = self.ready.front_mut() else {
            // So many occurrences at once that nothing is ready yet: close the oldest.
            if let Some(oldest) = self.open.values().min_by_key(|batch| batch.due).map(|batch| batch.occurrence) {
                self.close(oldest);
            }
            return;
        };
        if let Some(line) = front.lines.pop_front() {
            front.bytes -= line.text.len();
            self.kept.lines -= 1;
            self.kept.bytes -= line.text.len();
            let (occurrence, is_empty) = (front.occurrence, front.lines.is_empty());
            if is_empty {
                self.ready.pop_front();
            }
            journal.erase(line.id, now);
            let given_up = self.note(occurrence, (1, line.seq));
            journal.given_up(occurrence, Some(given_up), now);
        } else {
            self.ready.pop_front();
        }
    }

    /// Adds to what was given up of an occurrence. What comes back from a failed sending was written before what was
    /// given up meanwhile.
    fn note(&mut self, occurrence: OccurrenceId, (count, last): DroppedLines) -> DroppedLines {
        let known = self.given_up.entry(occurrence).or_default();
        *known = (known.0 + count, known.1.max(last));
        *known
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::LogMessage;

    use super::*;
    use crate::run::log_writer::LogWriter;

    const MAX_KEPT: usize = 5_000;

    fn occurrence(n: u8) -> OccurrenceId {
        OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [n; 10])
    }

    fn line(log_writer: &LogWriter) -> LogLine {
        log_writer.line(LogLevel::Info, "a".to_owned(), None).expect("within the bound")
    }

    fn log_buffer() -> (LogBuffer, OutboxJournal) {
        (LogBuffer::new(LogBounds { lines: MAX_KEPT, bytes: 10_000_000 }), OutboxJournal::off())
    }

    fn read(batch: &LogBatch) -> LogMessage {
        serde_json::from_str(&batch.body()).expect("a body is a LogMessage")
    }

    #[test]
    fn lines_wait_for_company_and_keep_their_order() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), LogWriter::new(2), Instant::now());
        log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now);
        log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now);
        assert!(log_buffer.take_due(now).is_none());
        let message = read(&log_buffer.take_due(now + LOG_BATCH_DELAY).expect("due"));
        assert_eq!(message.occurrence_id, occurrence(1));
        assert_eq!(message.lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [2_000_000, 2_000_001]);
        assert!(log_buffer.is_empty());
    }

    #[test]
    fn a_full_batch_does_not_wait() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), LogWriter::new(1), Instant::now());
        (0..MAX_BATCH_LINES).for_each(|_| log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now));
        assert_eq!(read(&log_buffer.take_due(now).expect("full")).lines.len(), MAX_BATCH_LINES);
    }

    #[test]
    fn the_oldest_lines_are_given_up_and_counted() {
        let ((mut log_buffer, mut journal), now) = (log_buffer(), Instant::now());
        let log_writers = [LogWriter::new(1), LogWriter::new(1)];
        for n in 0..MAX_KEPT + 30 {
            let who = n % 2;
            log_buffer.push(occurrence(who as u8), &line(&log_writers[who]), &mut journal, now);
        }
        assert_eq!(log_buffer.kept.lines, MAX_KEPT);
        let first = read(&log_buffer.take_due(now).expect("full batches are due"));
        assert!(first.lines[0].message.starts_with("30 lines before this one"), "{}", first.lines[0].message);
        assert_eq!(first.lines[0].seq + 1, first.lines[1].seq);
    }

    #[test]
    fn what_comes_back_too_late_is_given_up_too() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), LogWriter::new(1), Instant::now());
        (0..MAX_BATCH_LINES).for_each(|_| log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now));
        let under_way = log_buffer.take_due(now).expect("full");
        (0..MAX_KEPT - 50).for_each(|_| log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now));
        log_buffer.put_back(under_way, &mut journal, now);
        assert_eq!(log_buffer.kept.lines, MAX_KEPT);
        let first = read(&log_buffer.take_due(now).expect("full batches are due"));
        assert!(first.lines[0].message.starts_with("150 lines before this one"), "{}", first.lines[0].message);
        assert_eq!(first.lines[0].seq + 1, first.lines[1].seq);
        let rest = std::iter::from_fn(|| log_buffer.take_due(now + LOG_BATCH_DELAY)).map(|batch| batch.lines.len());
        assert_eq!(rest.sum::<usize>() + first.lines.len() - 1, MAX_KEPT);
    }

    #[test]
    fn a_bound_of_bytes_holds_too() {
        let (mut journal, log_writer, now) = (OutboxJournal::off(), LogWriter::new(1), Instant::now());
        let mut log_buffer = LogBuffer::new(LogBounds { lines: MAX_KEPT, bytes: 100_000 });
        for _ in 0..100 {
            let long = log_writer.line(LogLevel::Info, "x".repeat(5_000), None).expect("within the bound");
            log_buffer.push(occurrence(1), &long, &mut journal, now);
        }
        assert!(log_buffer.kept.bytes <= 100_000 && log_buffer.kept.lines == 19, "{:?}", log_buffer.kept);
    }

    #[test]
    fn what_could_not_be_sent_goes_first_again() {
        let ((mut log_buffer, mut journal), log_writer, now) = (log_buffer(), LogWriter::new(1), Instant::now());
        log_buffer.push(occurrence(1), &line(&log_writer), &mut journal, now);
        let batch = log_buffer.take_all_of(occurrence(1)).pop().expect("one batch");
        log_buffer.push(occurrence(2), &line(&log_writer), &mut journal, now);
        log_buffer.put_back(batch, &mut journal, now);
        assert_eq!(log_buffer.take_due(now + LOG_BATCH_DELAY).expect("due").occurrence, occurrence(1));
    }
}
