//! Brings reports and log lines to the broker.
//!
//! Runs hand over and go on; the reporter gathers what comes and sends it in batches. For statuses it is a group commit:
//! one batch is under way at a time, what comes meanwhile makes the next. That keeps their order, costs an idle worker
//! no delay at all and a busy one a single message per confirmation, a millisecond or so. Log batches carry their
//! own numbers, so many may be under way.
//!
//! While the broker is away both wait here. Statuses are never given up: without a broker no new work arrives,
//! so there are as many as there were runs. Log lines are, oldest first, beyond a bound, and that is said in the log.
//! What has waited for a moment is on disk as well (see [`outbox`](crate::reporting::outbox)), and goes from there when the
//! broker has confirmed it.

use std::{collections::VecDeque, future::Future, sync::Arc, task::Poll};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, StatusReport},
    status::OccurrenceStatus,
    topology::Topology,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    control::metrics::WorkerMetrics,
    delivery::claim::AttemptKey,
    faults,
    net::connection::JitteredBackoff,
    net::publisher::{PublishError, WorkerPublisher},
    reporting::log_buffer::{LogBatch, LogBounds, LogBuffer},
    reporting::outbox::{EntryId, OutboxJournal, Recovered},
    run::report_sink::{ConfirmFuture, ReportSink},
};

/// The most reports in one message.
const MAX_BATCH_REPORTS: usize = 400;
/// The most bytes of reports in one message, below what a message may have by more than the largest report.
const MAX_BATCH_BYTES: usize = 512 * 1024;
/// The most log messages under way.
const MAX_LOG_BATCHES_IN_FLIGHT: usize = 64;

enum ReporterMessage {
    Status { report: Box<StatusReport>, confirmed: Option<oneshot::Sender<()>> },
    Line { occurrence: OccurrenceId, line: LogLine },
    Flush(oneshot::Sender<()>),
}

/// The end that runs see.
#[derive(Clone)]
pub(crate) struct Reporter(mpsc::UnboundedSender<ReporterMessage>);

/// The other end, until the reporter_loop takes it.
pub(crate) struct ReporterReceiver(mpsc::UnboundedReceiver<ReporterMessage>);

impl Reporter {
    pub(crate) fn new() -> (Self, ReporterReceiver) {
        // Unbounded, because a run must never wait for the broker; the reporter_loop empties it at once and keeps the bounds.
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), ReporterReceiver(receiver))
    }

    /// Waits until everything handed over so far is with the broker.
    pub(crate) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.0.send(ReporterMessage::Flush(done)).is_ok() {
            let _ = wait.await;
        }
    }
}

impl ReportSink for Reporter {
    fn report(&self, report: StatusReport) -> ConfirmFuture {
        let (confirmed, wait) = oneshot::channel();
        let sent = self.0.send(ReporterMessage::Status { report: Box::new(report), confirmed: Some(confirmed) });
        async move {
            // Without a reporter nothing is ever confirmed; a delivery that waits for it goes back to its queue.
            if sent.is_err() || wait.await.is_err() {
                futures::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn report_unconfirmed(&self, report: StatusReport) {
        let _ = self.0.send(ReporterMessage::Status { report: Box::new(report), confirmed: None });
    }

    fn log(&self, occurrence: OccurrenceId, line: LogLine) {
        let _ = self.0.send(ReporterMessage::Line { occurrence, line });
    }
}

/// A report on its way.
struct PendingReport {
    attempt: AttemptKey,
    stage: ReportStage,
    text: Arc<str>,
    confirmed: Option<oneshot::Sender<()>>,
}

/// What a report tells of its attempt; and its entry in the outbox, for those that have one.
#[derive(Clone, Copy)]
enum ReportStage {
    Start(EntryId),
    /// How far it is: the next one of the same attempt replaces it, and none outlives the process.
    Progress,
    End(EntryId),
}

enum PublishResult {
    Statuses(Vec<PendingReport>, Result<(), PublishError>),
    Log(LogBatch, Result<(), PublishError>),
}

/// What the reporter_loop begins with.
pub(crate) struct ReporterConfig {
    pub(crate) journal: OutboxJournal,
    /// What an earlier process left.
    pub(crate) recovered: Recovered,
    /// How many lines are kept.
    pub(crate) bounds: LogBounds,
    /// Where to say how much waits.
    pub(crate) metrics: WorkerMetrics,
}

/// Works through the receiver until `close` fires. What is not with the broker then is in the outbox, if there is one.
pub(crate) async fn run(
    ReporterReceiver(mut receiver): ReporterReceiver,
    mut publisher: WorkerPublisher,
    topology: Topology,
    reporter_config: ReporterConfig,
    close: CancellationToken,
) {
    let mut reporter_loop = ReporterLoop {
        publisher: publisher.clone(),
        status_exchange: topology.status(),
        log_exchange: topology.logs(),
        statuses: VecDeque::new(),
        statuses_under_way: false,
        log_buffer: LogBuffer::new(reporter_config.bounds),
        journal: reporter_config.journal,
        under_way: FuturesUnordered::new(),
        flushes: Vec::new(),
        backoff: JitteredBackoff::new(),
        resume: Instant::now(),
    };
    reporter_loop.recover(reporter_config.recovered);
    loop {
        reporter_loop.send();
        reporter_config.metrics.waiting(reporter_loop.statuses.len(), reporter_loop.log_buffer.len());
        reporter_loop.journal.begin(Instant::now(), !reporter_loop.publisher.is_up());
        let wake = reporter_loop.wake();
        tokio::select! {
            entry = receiver.recv() => {
                let Some(entry) = entry else { break };
                reporter_loop.accept(entry);
                while let Ok(entry) = receiver.try_recv() {
                    reporter_loop.accept(entry);
                }
            }
            Some(landing) = reporter_loop.under_way.next() => reporter_loop.land(landing),
            () = reporter_loop.journal.write_finished() => {}
            () = publisher.changed() => reporter_loop.resume = Instant::now(),
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            () = close.cancelled() => break,
        }
    }
    while let Ok(entry) = receiver.try_recv() {
        reporter_loop.accept(entry);
    }
    reporter_loop.journal.close().await;
}

struct ReporterLoop {
    publisher: WorkerPublisher,
    status_exchange: String,
    log_exchange: String,
    statuses: VecDeque<PendingReport>,
    statuses_under_way: bool,
    log_buffer: LogBuffer,
    journal: OutboxJournal,
    under_way: FuturesUnordered<BoxFuture<'static, PublishResult>>,
    flushes: Vec<oneshot::Sender<()>>,
    backoff: JitteredBackoff,
    /// Nothing is sent before this moment.
    resume: Instant,
}

impl ReporterLoop {
    fn accept(&mut self, entry: ReporterMessage) {
        let now = Instant::now();
        match entry {
            ReporterMessage::Status { report, confirmed } => {
                let text: Arc<str> = json(&report).into();
                let stage = if report.progress.is_some() {
                    ReportStage::Progress
                } else if report.status == OccurrenceStatus::Running {
                    ReportStage::Start(self.journal.report(&report, &text, now))
                } else {
                    ReportStage::End(self.journal.report(&report, &text, now))
                };
                let attempt = (report.occurrence_id, report.attempt);
                let pending = PendingReport { attempt, stage, text, confirmed };
                if matches!(stage, ReportStage::Progress)
                    && let Some(earlier) = self
                        .statuses
                        .iter_mut()
                        .find(|earlier| matches!(earlier.stage, ReportStage::Progress) && earlier.attempt == attempt)
                {
                    *earlier = pending;
                } else {
                    self.statuses.push_back(pending);
                }
            }
            ReporterMessage::Line { occurrence, line } => {
                self.log_buffer.push(occurrence, &line, &mut self.journal, now)
            }
            ReporterMessage::Flush(done) => self.flushes.push(done),
        }
    }

    /// Goes on from where an earlier process was ended.
    fn recover(&mut self, mut recovered: Recovered) {
        let now = Instant::now();
        self.log_buffer.recover(&mut recovered, &mut self.journal, now);
        for id in recovered.obsolete {
            self.journal.erase(id, now);
        }
        for (id, report, text) in recovered.reports {
            let stage =
                if report.status == OccurrenceStatus::Running { ReportStage::Start(id) } else { ReportStage::End(id) };
            let attempt = (report.occurrence_id, report.attempt);
            self.statuses.push_back(PendingReport { attempt, stage, text, confirmed: None });
        }
        for (begun, report) in recovered.interrupted {
            let text: Arc<str> = json(&report).into();
            let stage = ReportStage::End(self.journal.interruption(begun, &report, &text, now));
            let attempt = (report.occurrence_id, report.attempt);
            self.statuses.push_back(PendingReport { attempt, stage, text, confirmed: None });
        }
    }

    /// Sends what can be sent now.
    fn send(&mut self) {
        let now = Instant::now();
        if self.publisher.is_up() && now >= self.resume {
            while self.under_way.len() < MAX_LOG_BATCHES_IN_FLIGHT
                && let Some(batch) = self.log_buffer.take_due(now)
            {
                self.send_log(batch);
            }
            if !self.statuses_under_way && !self.statuses.is_empty() {
                self.send_statuses();
            }
        }
        if self.statuses.is_empty() && self.under_way.is_empty() && self.log_buffer.is_empty() {
            for done in self.flushes.drain(..) {
                let _ = done.send(());
            }
        }
    }

    fn send_statuses(&mut self) {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.statuses.front()
            && batch.len() < MAX_BATCH_REPORTS
            && (batch.is_empty() || bytes + next.text.len() <= MAX_BATCH_BYTES)
            && let Some(next) = self.statuses.pop_front()
        {
            bytes += next.text.len() + 1;
            batch.push(next);
        }
        // Whoever sees an end must be able to read the lines before it: they go first, on the same channel.
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
        self.statuses_under_way = true;
        faults::point("reporter.before_send");
        let sending = self.publisher.publish(&self.status_exchange, body);
        self.launch(sending.map(|verdict| PublishResult::Statuses(batch, verdict)));
        faults::point("reporter.after_send");
    }

    fn send_log(&mut self, batch: LogBatch) {
        let sending = self.publisher.publish(&self.log_exchange, batch.body());
        self.launch(sending.map(|verdict| PublishResult::Log(batch, verdict)));
    }

    /// Polls a sending once, which hands its message over, so that messages leave in the order of the calls.
    fn launch(&mut self, sending: impl Future<Output = PublishResult> + Send + 'static) {
        let mut sending = sending.boxed();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // The waker of this first poll is forgotten; the set polls again, with its own, as soon as it is looked at.
        self.under_way.push(match sending.as_mut().poll(&mut context) {
            Poll::Ready(landing) => futures::future::ready(landing).boxed(),
            Poll::Pending => sending,
        });
    }

    fn land(&mut self, landing: PublishResult) {
        let now = Instant::now();
        let error = match landing {
            PublishResult::Statuses(batch, verdict) => {
                self.statuses_under_way = false;
                match verdict {
                    Ok(()) => {
                        faults::point("reporter.after_confirm");
                        for pending in batch {
                            match pending.stage {
                                ReportStage::Start(id) => self.journal.started(id, pending.attempt, now),
                                ReportStage::Progress => {}
                                ReportStage::End(id) => self.journal.erase(id, now),
                            }
                            if let Some(confirmed) = pending.confirmed {
                                // Nobody may be waiting any more, and need not.
                                let _ = confirmed.send(());
                            }
                        }
                        self.backoff.reset();
                        return;
                    }
                    Err(error) => {
                        batch.into_iter().rev().for_each(|pending| self.statuses.push_front(pending));
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
            let pause = self.backoff.next();
            self.resume = now + pause;
            tracing::warn!(error = %error, retry_ms = pause.as_millis() as u64, "reports could not be sent; they are kept and sent again");
        }
    }

    /// When to look again though nothing happens.
    fn wake(&self) -> Option<Instant> {
        let is_up = self.publisher.is_up();
        let sending = if !is_up {
            None
        } else if Instant::now() < self.resume {
            Some(self.resume)
        } else if self.under_way.len() >= MAX_LOG_BATCHES_IN_FLIGHT {
            // With the window full, the next landing wakes.
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
    use milvaion_protocol::{message::StatusMessage, status::OccurrenceStatus};

    use super::*;

    #[test]
    fn a_joined_body_is_a_batch() {
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
