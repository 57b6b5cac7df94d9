//! The inbox of the reporter: what runs hand in, until the reporter's loop takes it.
//!
//! A run never waits here. Reports are unbounded in number, because each run has a few; lines are bounded by their size,
//! and those that find the inbox full are counted in the log of their run.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::FutureExt;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, StatusReport},
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    delivery::claim::AttemptKey,
    reporting::{
        log_buffer::{EncodedLine, LogBounds},
        outbox::DroppedLines,
    },
    run::report_sink::{ConfirmFuture, ReportSink},
};

/// Memory of a line in the inbox beside its text, in bytes.
const LINE_OVERHEAD_BYTES: usize = 64;

pub(super) enum ReporterMessage {
    Status { report: Box<StatusReport>, receipt: Receipt },
    Line { occurrence: OccurrenceId, line: EncodedLine },
    Flush(oneshot::Sender<()>),
}

/// What the sender of a report waits for.
pub(super) enum Receipt {
    Nothing,
    /// The confirmation of the broker.
    Confirmed(oneshot::Sender<()>),
    /// The confirmation of the broker, or the file of the outbox: whichever keeps the report first.
    Kept(oneshot::Sender<()>),
}

/// The sending end, which runs use.
#[derive(Clone)]
pub(crate) struct Reporter {
    sender: mpsc::UnboundedSender<ReporterMessage>,
    pub(super) inbox: Arc<ReporterInbox>,
}

/// The receiving end, which the reporter loop takes.
pub(crate) struct ReporterReceiver {
    pub(super) receiver: mpsc::UnboundedReceiver<ReporterMessage>,
    pub(super) inbox: Arc<ReporterInbox>,
}

/// The state that both ends share.
pub(super) struct ReporterInbox {
    /// Size in bytes of the lines in the inbox.
    pub(super) line_bytes: AtomicUsize,
    /// Upper bound of `line_bytes`.
    max_line_bytes: usize,
    /// The lines that found the inbox full, until the loop has counted them.
    dropped_lines: Mutex<HashMap<OccurrenceId, DroppedLines>>,
    pub(super) unconfirmed_ends: UnconfirmedEnds,
}

/// The runs that have ended here and whose end the broker has not confirmed. Clones share the same set.
///
/// Heartbeats list them as running. Otherwise a server that receives heartbeats and not the end, because confirmations are
/// slow and reports queue, would take the run for lost and start it again.
#[derive(Clone, Default)]
pub(crate) struct UnconfirmedEnds(Arc<Mutex<HashSet<AttemptKey>>>);

impl UnconfirmedEnds {
    /// Returns the occurrences of the runs.
    pub(crate) fn occurrences(&self) -> Vec<OccurrenceId> {
        self.lock().iter().map(|(occurrence, _)| *occurrence).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashSet<AttemptKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReporterInbox {
    /// Reserves space for a line. Returns false if the inbox is full.
    fn reserve(&self, line: &EncodedLine) -> bool {
        let bytes = line.text.len() + LINE_OVERHEAD_BYTES;
        let is_free = self.line_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.max_line_bytes;
        if !is_free {
            self.line_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_free
    }

    /// Returns the space of a line that has left the inbox.
    pub(super) fn release(&self, line: &EncodedLine) {
        self.line_bytes.fetch_sub(line.text.len() + LINE_OVERHEAD_BYTES, Ordering::Relaxed);
    }

    pub(super) fn dropped_lines(&self) -> MutexGuard<'_, HashMap<OccurrenceId, DroppedLines>> {
        self.dropped_lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reporter {
    /// Creates both ends. The inbox holds lines up to the size in `bounds`, in addition to the log buffer of the loop.
    pub(crate) fn new(bounds: LogBounds) -> (Self, ReporterReceiver) {
        // Unbounded for reports, because a run must never wait for the broker, and their number is limited by that of the
        // runs. Lines are bounded by their size.
        let (sender, receiver) = mpsc::unbounded_channel();
        let inbox = Arc::new(ReporterInbox {
            line_bytes: AtomicUsize::new(0),
            max_line_bytes: bounds.bytes,
            dropped_lines: Mutex::default(),
            unconfirmed_ends: UnconfirmedEnds::default(),
        });
        (Self { sender, inbox: inbox.clone() }, ReporterReceiver { receiver, inbox })
    }

    /// Hands in a report, and returns a future that completes with its receipt.
    fn send(&self, report: StatusReport, receipt: fn(oneshot::Sender<()>) -> Receipt) -> ConfirmFuture {
        let (received, wait) = oneshot::channel();
        let message = ReporterMessage::Status { report: Box::new(report), receipt: receipt(received) };
        let sent = self.sender.send(message);
        async move {
            // Without a reporter nothing is ever kept, and the delivery returns to its queue.
            if sent.is_err() || wait.await.is_err() {
                futures::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    /// Waits until the broker has confirmed everything that was handed in before.
    pub(crate) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.sender.send(ReporterMessage::Flush(done)).is_ok() {
            let _ = wait.await;
        }
    }
}

impl ReporterReceiver {
    /// Returns the runs whose end the broker has not confirmed.
    pub(crate) fn unconfirmed_ends(&self) -> UnconfirmedEnds {
        self.inbox.unconfirmed_ends.clone()
    }
}

impl ReportSink for Reporter {
    fn report(&self, report: StatusReport) -> ConfirmFuture {
        self.send(report, Receipt::Confirmed)
    }

    fn report_end(&self, report: StatusReport) -> ConfirmFuture {
        // Before the run leaves the run table, so that no heartbeat in between lacks it.
        self.inbox.unconfirmed_ends.lock().insert((report.occurrence_id, report.attempt));
        self.send(report, Receipt::Kept)
    }

    fn report_unconfirmed(&self, report: StatusReport) {
        let message = ReporterMessage::Status { report: Box::new(report), receipt: Receipt::Nothing };
        let _ = self.sender.send(message);
    }

    fn log(&self, occurrence: OccurrenceId, line: LogLine) {
        let line = EncodedLine::from(&line);
        if self.inbox.reserve(&line) {
            let _ = self.sender.send(ReporterMessage::Line { occurrence, line });
        } else {
            let mut dropped_lines = self.inbox.dropped_lines();
            let dropped = dropped_lines.entry(occurrence).or_default();
            *dropped = (dropped.0 + 1, dropped.1.max(line.seq));
        }
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::LogLevel;

    use super::*;

    fn line(n: i64) -> LogLine {
        let at = chrono::DateTime::UNIX_EPOCH;
        LogLine { seq: n, at, level: LogLevel::Info, message: format!("line {n}"), data: None }
    }

    #[test]
    fn inbox_is_bounded_by_bytes_and_counts_what_it_drops() {
        let (reporter, mut receiver) = Reporter::new(LogBounds { lines: 100, bytes: 10_000 });
        let id = OccurrenceId::default();
        for n in 0..1_000 {
            reporter.log(id, line(n));
        }
        assert!(reporter.inbox.line_bytes.load(Ordering::Relaxed) <= 10_000);
        let mut kept = 0;
        while let Ok(ReporterMessage::Line { line, .. }) = receiver.receiver.try_recv() {
            reporter.inbox.release(&line);
            kept += 1;
        }
        assert!(kept > 10, "{kept}");
        assert_eq!(reporter.inbox.dropped_lines().get(&id), Some(&(1_000 - kept, 999)));
        assert_eq!(reporter.inbox.line_bytes.load(Ordering::Relaxed), 0);
    }
}
