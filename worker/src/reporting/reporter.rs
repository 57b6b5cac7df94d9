//! Sends reports and log lines to the broker.
//!
//! Runs hand in their reports and continue. The reporter collects them and sends them in batches. Status reports use a
//! group commit: one batch is in flight at a time, and reports that arrive in the meantime form the next one. This
//! keeps their order, delays nothing in an idle worker, and costs a busy worker one message per confirmation, about a
//! millisecond. Log batches carry their own numbers, so many can be in flight.
//!
//! While the broker is unavailable, both wait here. Reports are never dropped: without a broker no new work arrives, so
//! their number is limited by the number of runs. Log lines beyond a bound are dropped, the oldest first, and the log
//! contains a notice. Entries that have waited for a moment are also on disk (see [`outbox`](crate::reporting::outbox))
//! until the broker has confirmed them.
//!
//! # Floods of log lines
//!
//! The loop shares its thread with the heartbeats, so it must not work through a flood in one go. It takes the inbox in
//! slices, sends in between, and lets the other tasks of the thread run after each slice. Lines are encoded by the thread
//! that writes them, which limits how fast a flood can grow. A run never waits for the reporter: lines that find the inbox
//! full are dropped and counted in the log of their run. The inbox holds as many bytes as the log buffer, so a healthy
//! broker loses no line before both are full.

use std::{collections::HashMap, future::Future, sync::Arc, task::Poll};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use milvaion_protocol::{backoff::Backoff, message::StatusReport, status::OccurrenceStatus, topology::Topology};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::error::log_text,
    clock,
    control::metrics::WorkerMetrics,
    delivery::claim::AttemptKey,
    faults,
    net::publisher::{PublishError, WorkerPublisher},
    reporting::log_buffer::{LogBatch, LogBounds, LogBuffer},
    reporting::outbox::{OutboxJournal, RecoveredReports},
    reporting::reporter_inbox::{Receipt, ReporterInbox, ReporterMessage, ReporterReceiver},
    reporting::status_queue::{PendingReport, ReportStage, RunUpdate, StatusQueue},
};

/// Maximum number of reports in one message.
const MAX_BATCH_REPORTS: usize = 400;
/// Maximum size of the reports in one message. It is below the maximum message size by more than the largest report.
const MAX_BATCH_BYTES: usize = 512 * 1024;
/// Maximum number of log messages in flight.
const MAX_LOG_BATCHES_IN_FLIGHT: usize = 64;
/// Size of the log lines in flight from which no further ones are sent. Heartbeats and reports queue behind them on the
/// connection, so on a slow network more would let heartbeats time out.
const MAX_LOG_BYTES_IN_FLIGHT: usize = 2 * 1024 * 1024;
/// Maximum number of messages that the loop takes from the inbox before it sends and lets other tasks run.
const MAX_INBOX_SLICE: usize = 1024;

enum PublishResult {
    Statuses(Vec<PendingReport>, Result<(), PublishError>),
    Log(LogBatch, Result<(), PublishError>),
}

/// The parts that the reporter loop starts with.
pub(crate) struct ReporterConfig {
    pub(crate) journal: OutboxJournal,
    /// Reports and lines of an earlier process.
    pub(crate) recovered: RecoveredReports,
    pub(crate) bounds: LogBounds,
    /// Metrics that show how much waits.
    pub(crate) metrics: WorkerMetrics,
}

/// Runs the reporter loop until `close` fires. Entries that the broker has not confirmed then stay in the outbox, if
/// any.
pub(crate) async fn run(
    ReporterReceiver { mut receiver, inbox }: ReporterReceiver,
    mut publisher: WorkerPublisher,
    topology: Topology,
    reporter_config: ReporterConfig,
    close: CancellationToken,
) {
    let ReporterConfig { journal, recovered, bounds, metrics } = reporter_config;
    let mut reporter_loop = ReporterLoop::new(publisher.clone(), inbox, &topology, journal, bounds);
    reporter_loop.recover(recovered);
    let mut slice = Vec::with_capacity(MAX_INBOX_SLICE);
    loop {
        reporter_loop.count_dropped_lines();
        reporter_loop.send();
        metrics.waiting(reporter_loop.statuses.len(), reporter_loop.log_buffer.len());
        reporter_loop.journal.begin(Instant::now(), !reporter_loop.publisher.is_up());
        // Heartbeats share this thread.
        tokio::task::yield_now().await;
        let wake_at = reporter_loop.next_wakeup();
        tokio::select! {
            received = receiver.recv_many(&mut slice, MAX_INBOX_SLICE) => {
                if received == 0 {
                    break;
                }
                slice.drain(..).for_each(|message| reporter_loop.accept(message));
            }
            Some(result) = reporter_loop.in_flight.next() => reporter_loop.handle_result(result),
            stored = reporter_loop.journal.write_finished() => {
                stored.into_iter().for_each(|attempt| reporter_loop.keep(attempt));
            }
            () = publisher.changed() => reporter_loop.resume = Instant::now(),
            () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
            () = close.cancelled() => break,
        }
        // A slice has more lines than one result, so results would otherwise fall behind in a flood.
        while let Some(Some(result)) = reporter_loop.in_flight.next().now_or_never() {
            reporter_loop.handle_result(result);
        }
    }
    while let Ok(message) = receiver.try_recv() {
        reporter_loop.accept(message);
    }
    reporter_loop.journal.close().await;
}

struct ReporterLoop {
    publisher: WorkerPublisher,
    inbox: Arc<ReporterInbox>,
    status_exchange: String,
    log_exchange: String,
    statuses: StatusQueue,
    is_status_batch_in_flight: bool,
    log_buffer: LogBuffer,
    log_bytes_in_flight: usize,
    journal: OutboxJournal,
    in_flight: FuturesUnordered<BoxFuture<'static, PublishResult>>,
    flushes: Vec<oneshot::Sender<()>>,
    /// The runs that wait until their end is confirmed or on disk.
    kept: HashMap<AttemptKey, oneshot::Sender<()>>,
    backoff: Backoff,
    /// Time before which nothing is sent, because the last attempt failed.
    resume: Instant,
}

impl ReporterLoop {
    fn new(
        publisher: WorkerPublisher,
        inbox: Arc<ReporterInbox>,
        topology: &Topology,
        journal: OutboxJournal,
        bounds: LogBounds,
    ) -> Self {
        Self {
            publisher,
            inbox,
            status_exchange: topology.status(),
            log_exchange: topology.logs(),
            statuses: StatusQueue::default(),
            is_status_batch_in_flight: false,
            log_buffer: LogBuffer::new(bounds),
            log_bytes_in_flight: 0,
            journal,
            in_flight: FuturesUnordered::new(),
            flushes: Vec::new(),
            kept: HashMap::new(),
            backoff: Backoff::default(),
            resume: Instant::now(),
        }
    }

    fn accept(&mut self, message: ReporterMessage) {
        let now = Instant::now();
        match message {
            ReporterMessage::Status { report, receipt } => {
                let text: Arc<str> = json(&report).into();
                let stage = if report.progress.is_some() {
                    ReportStage::Update(RunUpdate::Progress)
                } else if report.status == OccurrenceStatus::Running && report.checkpoint.is_some() {
                    ReportStage::Update(RunUpdate::Checkpoint)
                } else if report.status == OccurrenceStatus::Running {
                    ReportStage::Start(self.journal.report(&report, &text, now))
                } else {
                    ReportStage::End(self.journal.report(&report, &text, now))
                };
                let attempt = (report.occurrence_id, report.attempt);
                let confirmed = match receipt {
                    Receipt::Nothing => None,
                    Receipt::Confirmed(confirmed) => Some(confirmed),
                    Receipt::Kept(kept) => {
                        self.kept.insert(attempt, kept);
                        None
                    }
                };
                self.statuses.push(PendingReport { attempt, stage, text, confirmed });
            }
            ReporterMessage::Line { occurrence, line } => {
                self.inbox.release(&line);
                self.log_buffer.push(occurrence, line, &mut self.journal, now);
            }
            ReporterMessage::Flush(done) => self.flushes.push(done),
        }
    }

    /// Tells a run that its end survives this process.
    fn keep(&mut self, attempt: AttemptKey) {
        if let Some(kept) = self.kept.remove(&attempt) {
            // The run may be gone, which is no error.
            let _ = kept.send(());
        }
    }

    /// Counts the lines that found the inbox full, so that the logs of their runs contain a notice.
    fn count_dropped_lines(&mut self) {
        let dropped_lines = std::mem::take(&mut *self.inbox.dropped_lines());
        let now = Instant::now();
        for (occurrence, dropped) in dropped_lines {
            self.log_buffer.add_dropped(occurrence, dropped, &mut self.journal, now);
        }
    }

    /// Queues the reports and lines that an earlier process left.
    fn recover(&mut self, mut recovered: RecoveredReports) {
        let now = Instant::now();
        self.log_buffer.recover(&mut recovered, &mut self.journal, now);
        for id in recovered.obsolete {
            self.journal.erase(id, now);
        }
        for (id, report, text) in recovered.reports {
            let stage =
                if report.status == OccurrenceStatus::Running { ReportStage::Start(id) } else { ReportStage::End(id) };
            let attempt = (report.occurrence_id, report.attempt);
            self.statuses.push(PendingReport { attempt, stage, text, confirmed: None });
        }
        for (begun, report) in recovered.interrupted {
            let text: Arc<str> = json(&report).into();
            let stage = ReportStage::End(self.journal.interruption(begun, &report, &text, now));
            let attempt = (report.occurrence_id, report.attempt);
            self.statuses.push(PendingReport { attempt, stage, text, confirmed: None });
        }
    }

    fn send(&mut self) {
        let now = Instant::now();
        self.log_buffer.set_draining(self.publisher.is_up(), &mut self.journal, now);
        if self.publisher.is_up() && now >= self.resume {
            self.send_logs(now);
            if !self.is_status_batch_in_flight && !self.statuses.is_empty() {
                self.send_statuses();
            }
        }
        if self.statuses.is_empty() && self.in_flight.is_empty() && self.log_buffer.is_empty() {
            for done in self.flushes.drain(..) {
                let _ = done.send(());
            }
        }
    }

    /// Sends the log batches that are due, up to the bounds of what is in flight.
    fn send_logs(&mut self, now: Instant) {
        while self.may_send_logs()
            && let Some(batch) = self.log_buffer.take_due(now)
        {
            self.send_log(batch);
        }
    }

    fn may_send_logs(&self) -> bool {
        self.in_flight.len() < MAX_LOG_BATCHES_IN_FLIGHT && self.log_bytes_in_flight < MAX_LOG_BYTES_IN_FLIGHT
    }

    fn send_statuses(&mut self) {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.statuses.front()
            && batch.len() < MAX_BATCH_REPORTS
            && (batch.is_empty() || bytes + next.text.len() <= MAX_BATCH_BYTES)
            && let Some(next) = self.statuses.pop()
        {
            bytes += next.text.len() + 1;
            batch.push(next);
        }
        // A user who sees an end must be able to read the lines before it, so they are sent first, on the same channel.
        for end in batch.iter().filter(|pending| matches!(pending.stage, ReportStage::End(_))) {
            for lines in self.log_buffer.take_all_of(end.attempt.0) {
                self.send_log(lines);
            }
        }
        let mut body = String::with_capacity(bytes + 20);
        body.push_str(r#"{"reports":["#);
        for (index, pending) in batch.iter().enumerate() {
            if index > 0 {
                body.push(',');
            }
            body.push_str(&pending.text);
        }
        body.push_str("]}");
        self.is_status_batch_in_flight = true;
        faults::crash_point("reporter.before_send");
        let sending = self.publisher.publish(&self.status_exchange, body);
        self.start(sending.map(|result| PublishResult::Statuses(batch, result)));
        faults::crash_point("reporter.after_send");
    }

    fn send_log(&mut self, batch: LogBatch) {
        self.log_bytes_in_flight += batch.bytes();
        let sending = self.publisher.publish(&self.log_exchange, batch.body());
        self.start(sending.map(|result| PublishResult::Log(batch, result)));
    }

    /// Polls a publish future once. This passes its message to the connection, so messages leave in the order of the
    /// calls.
    fn start(&mut self, sending: impl Future<Output = PublishResult> + Send + 'static) {
        let mut sending = sending.boxed();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // The waker of this first poll is never used. The set polls again with its own waker as soon as it is polled.
        self.in_flight.push(match sending.as_mut().poll(&mut context) {
            Poll::Ready(result) => futures::future::ready(result).boxed(),
            Poll::Pending => sending,
        });
    }

    fn handle_result(&mut self, result: PublishResult) {
        let now = Instant::now();
        if let PublishResult::Log(batch, _) = &result {
            self.log_bytes_in_flight -= batch.bytes();
        }
        let error = match result {
            PublishResult::Statuses(batch, result) => {
                self.is_status_batch_in_flight = false;
                match result {
                    Ok(()) => {
                        faults::crash_point("reporter.after_confirm");
                        for pending in batch {
                            match pending.stage {
                                ReportStage::Start(id) => self.journal.started(id, pending.attempt, now),
                                ReportStage::Update(_) => {}
                                ReportStage::End(id) => {
                                    self.inbox.unconfirmed_ends.lock().remove(&pending.attempt);
                                    self.journal.erase(id, now);
                                    self.keep(pending.attempt);
                                }
                            }
                            if let Some(confirmed) = pending.confirmed {
                                // The receiver may have been dropped, which is no error.
                                let _ = confirmed.send(());
                            }
                        }
                        self.backoff.reset();
                        return;
                    }
                    Err(error) => {
                        self.statuses.put_back(batch);
                        error
                    }
                }
            }
            PublishResult::Log(batch, Ok(())) => return self.log_buffer.delivered(batch, &mut self.journal, now),
            PublishResult::Log(batch, Err(error)) => {
                self.log_buffer.put_back(batch, &mut self.journal, now);
                error
            }
        };
        if now >= self.resume {
            self.backoff.reset_after(now - self.resume);
            let pause = self.backoff.next_delay(clock::jitter());
            self.resume = now + pause;
            tracing::warn!(
                error = log_text(&error),
                retry_ms = pause.as_millis() as u64,
                "cannot send reports to the broker; they are kept and sent again"
            );
        }
    }

    /// Returns the time at which the loop has work even if no event occurs.
    fn next_wakeup(&self) -> Option<Instant> {
        let is_up = self.publisher.is_up();
        let sending = if !is_up {
            None
        } else if Instant::now() < self.resume {
            Some(self.resume)
        } else if !self.may_send_logs() {
            // No more batches can be sent. The next result wakes the loop.
            None
        } else {
            self.log_buffer.next_due()
        };
        sending.into_iter().chain(self.journal.due(!is_up)).min()
    }
}

fn json(report: &StatusReport) -> String {
    serde_json::to_string(report).expect("a report is plain data")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use milvaion_protocol::{
        id::OccurrenceId,
        message::{LogLevel, LogLine, RunProgress, StatusMessage},
        status::OccurrenceStatus,
    };

    use super::*;
    use crate::{reporting::reporter_inbox::Reporter, run::report_sink::ReportSink};

    fn line(n: i64) -> LogLine {
        let at = chrono::DateTime::UNIX_EPOCH;
        LogLine { seq: n, at, level: LogLevel::Info, message: format!("line {n}"), data: None }
    }

    #[tokio::test]
    async fn other_tasks_of_the_thread_run_during_a_flood() {
        const LINES: usize = 100_000;
        let bounds = LogBounds { lines: 1_000, bytes: 100_000_000 };
        let (reporter, receiver) = Reporter::new(bounds);
        let (topology, close) = (Topology::new("t"), CancellationToken::new());
        // Nothing listens on this port.
        let amqp = "amqp://127.0.0.1:1/%2f".parse().expect("valid");
        let (publisher, _keep_open) = WorkerPublisher::new(amqp, topology.clone(), "w-1".to_owned(), close.clone());
        for n in 0..LINES {
            reporter.log(OccurrenceId::default(), line(n as i64));
        }
        let config = ReporterConfig {
            journal: OutboxJournal::off(),
            recovered: RecoveredReports::default(),
            bounds,
            metrics: WorkerMetrics::default(),
        };
        let reporting = tokio::spawn(run(receiver, publisher, topology, config, close.clone()));
        let mut turns = 0;
        while reporter.inbox.line_bytes.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
            turns += 1;
        }
        assert!(turns >= LINES / MAX_INBOX_SLICE, "the other task had {turns} turns");
        close.cancel();
        reporting.await.expect("no panic");
    }

    #[tokio::test]
    async fn newest_progress_and_newest_checkpoint_wait_for_the_broker() {
        let bounds = LogBounds { lines: 10, bytes: 1_000 };
        let (_reporter, ReporterReceiver { inbox, .. }) = Reporter::new(bounds);
        let topology = Topology::new("t");
        let amqp = "amqp://127.0.0.1:1/%2f".parse().expect("valid");
        let (publisher, _keep_open) =
            WorkerPublisher::new(amqp, topology.clone(), "w-1".to_owned(), CancellationToken::new());
        let mut reporter = ReporterLoop::new(publisher, inbox, &topology, OutboxJournal::off(), bounds);
        let start = StatusReport::new(
            OccurrenceId::default(),
            1,
            "w-1",
            OccurrenceStatus::Running,
            chrono::DateTime::UNIX_EPOCH,
        );
        let mut accept = |report: StatusReport| {
            reporter.accept(ReporterMessage::Status { report: Box::new(report), receipt: Receipt::Nothing });
        };
        accept(start.clone());
        for row in 1..=9 {
            accept(StatusReport { checkpoint: Some(row.into()), ..start.clone() });
            let progress = RunProgress { percent: row, message: String::new() };
            accept(StatusReport { progress: Some(progress), ..start.clone() });
        }
        let waiting: Vec<StatusReport> =
            reporter.statuses.iter().map(|pending| serde_json::from_str(&pending.text).expect("a report")).collect();
        assert_eq!(waiting.len(), 3);
        assert_eq!((waiting[0].is_start(), &waiting[1].checkpoint), (true, &Some(9.into())));
        assert_eq!(waiting[2].progress.as_ref().map(|progress| progress.percent), Some(9));
    }

    #[tokio::test]
    async fn bytes_of_logs_in_flight_are_bounded() {
        const LINE_BYTES: usize = 8_000;
        let bounds = LogBounds { lines: 10_000, bytes: 100_000_000 };
        let (_reporter, ReporterReceiver { inbox, .. }) = Reporter::new(bounds);
        let topology = Topology::new("t");
        let amqp = "amqp://127.0.0.1:1/%2f".parse().expect("valid");
        let (publisher, _keep_open) =
            WorkerPublisher::new(amqp, topology.clone(), "w-1".to_owned(), CancellationToken::new());
        let mut reporter = ReporterLoop::new(publisher, inbox, &topology, OutboxJournal::off(), bounds);
        let now = Instant::now();
        for n in 0..1_000 {
            let line = LogLine { message: "x".repeat(LINE_BYTES), ..line(n) };
            reporter.log_buffer.push(OccurrenceId::default(), &line, &mut reporter.journal, now);
        }
        reporter.send_logs(now);
        let sent = reporter.log_bytes_in_flight;
        assert!((MAX_LOG_BYTES_IN_FLIGHT..MAX_LOG_BYTES_IN_FLIGHT + MAX_BATCH_BYTES + 2 * LINE_BYTES).contains(&sent));
        // Nothing is connected, so each send fails.
        while let Some(result) = reporter.in_flight.next().await {
            reporter.handle_result(result);
        }
        assert_eq!((reporter.log_bytes_in_flight, reporter.log_buffer.len()), (0, 1_000));
    }

    #[test]
    fn joined_reports_are_a_valid_batch() {
        let at = chrono::DateTime::UNIX_EPOCH;
        let id = OccurrenceId::from_parts(at, [1; 10]);
        let report = StatusReport {
            result: Some("\"}]".to_owned()),
            ..StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, at)
        };
        let text = serde_json::to_string(&report).expect("plain data");
        let body = format!(r#"{{"reports":[{text},{text}]}}"#);
        let message: StatusMessage = serde_json::from_str(&body).expect("a batch");
        assert_eq!(message.into_reports(), [report.clone(), report]);
    }
}
