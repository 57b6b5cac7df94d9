//! Brings reports and log lines to the broker.
//!
//! Runs hand over and go on; the reporter gathers what comes and sends it in batches. For statuses it is a group commit:
//! one batch is under way at a time, what comes meanwhile makes the next. That keeps their order, costs an idle worker
//! no delay at all and a busy one a single message per confirmation, a millisecond or so. Log batches carry their
//! own numbers, so many may be under way.
//!
//! While the broker is away both wait here. Statuses are never given up: without a broker no new work arrives,
//! so there are as many as there were runs. Log lines are, oldest first, beyond a bound, and that is said in the log.
//! What has waited for a moment is on disk as well (see [`outbox`](crate::outbox)), and goes from there when the
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
    backlog::{Backlog, Batch, Bounds},
    claim::Attempt,
    connection::Backoff,
    faults,
    outbox::{Id, Journal, Legacy},
    publisher::{PublishError, Publisher},
    sink::{Confirmed, Sink},
    vitals::Vitals,
};

/// The most reports in one message.
const BATCH_REPORTS: usize = 400;
/// The most bytes of reports in one message, below what a message may have by more than the largest report.
const BATCH_BYTES: usize = 512 * 1024;
/// The most log messages under way.
const LOG_WINDOW: usize = 64;

enum Entry {
    Status { report: Box<StatusReport>, confirmed: Option<oneshot::Sender<()>> },
    Line { occurrence: OccurrenceId, line: LogLine },
    Flush(oneshot::Sender<()>),
}

/// The end that runs see.
#[derive(Clone)]
pub(crate) struct Reporter(mpsc::UnboundedSender<Entry>);

/// The other end, until the desk takes it.
pub(crate) struct Inbox(mpsc::UnboundedReceiver<Entry>);

impl Reporter {
    pub(crate) fn new() -> (Self, Inbox) {
        // Unbounded, because a run must never wait for the broker; the desk empties it at once and keeps the bounds.
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), Inbox(receiver))
    }

    /// Waits until everything handed over so far is with the broker.
    pub(crate) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.0.send(Entry::Flush(done)).is_ok() {
            let _ = wait.await;
        }
    }
}

impl Sink for Reporter {
    fn report(&self, report: StatusReport) -> Confirmed {
        let (confirmed, wait) = oneshot::channel();
        let sent = self.0.send(Entry::Status { report: Box::new(report), confirmed: Some(confirmed) });
        async move {
            // Without a reporter nothing is ever confirmed; a delivery that waits for it goes back to its queue.
            if sent.is_err() || wait.await.is_err() {
                futures::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn tell(&self, report: StatusReport) {
        let _ = self.0.send(Entry::Status { report: Box::new(report), confirmed: None });
    }

    fn log(&self, occurrence: OccurrenceId, line: LogLine) {
        let _ = self.0.send(Entry::Line { occurrence, line });
    }
}

/// A report on its way.
struct Pending {
    attempt: Attempt,
    stage: Stage,
    text: Arc<str>,
    confirmed: Option<oneshot::Sender<()>>,
}

/// What a report tells of its attempt; and its entry in the outbox, for those that have one.
#[derive(Clone, Copy)]
enum Stage {
    Start(Id),
    /// How far it is: the next one of the same attempt replaces it, and none outlives the process.
    Progress,
    End(Id),
}

enum Landing {
    Statuses(Vec<Pending>, Result<(), PublishError>),
    Log(Batch, Result<(), PublishError>),
}

/// What the desk begins with.
pub(crate) struct Papers {
    pub(crate) journal: Journal,
    /// What an earlier process left.
    pub(crate) legacy: Legacy,
    /// How many lines are kept.
    pub(crate) bounds: Bounds,
    /// Where to say how much waits.
    pub(crate) vitals: Vitals,
}

/// Works through the inbox until `close` fires. What is not with the broker then is in the outbox, if there is one.
pub(crate) async fn run(
    Inbox(mut inbox): Inbox,
    mut publisher: Publisher,
    topology: Topology,
    papers: Papers,
    close: CancellationToken,
) {
    let mut desk = Desk {
        publisher: publisher.clone(),
        status_exchange: topology.status(),
        log_exchange: topology.logs(),
        statuses: VecDeque::new(),
        statuses_under_way: false,
        backlog: Backlog::new(papers.bounds),
        journal: papers.journal,
        under_way: FuturesUnordered::new(),
        flushes: Vec::new(),
        backoff: Backoff::new(),
        resume: Instant::now(),
    };
    desk.inherit(papers.legacy);
    loop {
        desk.send();
        papers.vitals.waiting(desk.statuses.len(), desk.backlog.len());
        desk.journal.begin(Instant::now(), !desk.publisher.is_up());
        let wake = desk.wake();
        tokio::select! {
            entry = inbox.recv() => {
                let Some(entry) = entry else { break };
                desk.accept(entry);
                while let Ok(entry) = inbox.try_recv() {
                    desk.accept(entry);
                }
            }
            Some(landing) = desk.under_way.next() => desk.land(landing),
            () = desk.journal.landed() => {}
            () = publisher.changed() => desk.resume = Instant::now(),
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            () = close.cancelled() => break,
        }
    }
    while let Ok(entry) = inbox.try_recv() {
        desk.accept(entry);
    }
    desk.journal.close().await;
}

struct Desk {
    publisher: Publisher,
    status_exchange: String,
    log_exchange: String,
    statuses: VecDeque<Pending>,
    statuses_under_way: bool,
    backlog: Backlog,
    journal: Journal,
    under_way: FuturesUnordered<BoxFuture<'static, Landing>>,
    flushes: Vec<oneshot::Sender<()>>,
    backoff: Backoff,
    /// Nothing is sent before this moment.
    resume: Instant,
}

impl Desk {
    fn accept(&mut self, entry: Entry) {
        let now = Instant::now();
        match entry {
            Entry::Status { report, confirmed } => {
                let text: Arc<str> = json(&report).into();
                let stage = if report.progress.is_some() {
                    Stage::Progress
                } else if report.status == OccurrenceStatus::Running {
                    Stage::Start(self.journal.report(&report, &text, now))
                } else {
                    Stage::End(self.journal.report(&report, &text, now))
                };
                let attempt = (report.occurrence_id, report.attempt);
                let pending = Pending { attempt, stage, text, confirmed };
                if matches!(stage, Stage::Progress)
                    && let Some(earlier) = self
                        .statuses
                        .iter_mut()
                        .find(|earlier| matches!(earlier.stage, Stage::Progress) && earlier.attempt == attempt)
                {
                    *earlier = pending;
                } else {
                    self.statuses.push_back(pending);
                }
            }
            Entry::Line { occurrence, line } => self.backlog.push(occurrence, &line, &mut self.journal, now),
            Entry::Flush(done) => self.flushes.push(done),
        }
    }

    /// Goes on from where an earlier process was ended.
    fn inherit(&mut self, mut legacy: Legacy) {
        let now = Instant::now();
        self.backlog.inherit(&mut legacy, &mut self.journal, now);
        for id in legacy.void {
            self.journal.erase(id, now);
        }
        for (id, report, text) in legacy.reports {
            let stage = if report.status == OccurrenceStatus::Running { Stage::Start(id) } else { Stage::End(id) };
            let attempt = (report.occurrence_id, report.attempt);
            self.statuses.push_back(Pending { attempt, stage, text, confirmed: None });
        }
        for (begun, report) in legacy.interrupted {
            let text: Arc<str> = json(&report).into();
            let stage = Stage::End(self.journal.interruption(begun, &report, &text, now));
            let attempt = (report.occurrence_id, report.attempt);
            self.statuses.push_back(Pending { attempt, stage, text, confirmed: None });
        }
    }

    /// Sends what can be sent now.
    fn send(&mut self) {
        let now = Instant::now();
        if self.publisher.is_up() && now >= self.resume {
            while self.under_way.len() < LOG_WINDOW
                && let Some(batch) = self.backlog.take_due(now)
            {
                self.send_log(batch);
            }
            if !self.statuses_under_way && !self.statuses.is_empty() {
                self.send_statuses();
            }
        }
        if self.statuses.is_empty() && self.under_way.is_empty() && self.backlog.is_empty() {
            for done in self.flushes.drain(..) {
                let _ = done.send(());
            }
        }
    }

    fn send_statuses(&mut self) {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.statuses.front()
            && batch.len() < BATCH_REPORTS
            && (batch.is_empty() || bytes + next.text.len() <= BATCH_BYTES)
            && let Some(next) = self.statuses.pop_front()
        {
            bytes += next.text.len() + 1;
            batch.push(next);
        }
        // Whoever sees an end must be able to read the lines before it: they go first, on the same channel.
        for end in batch.iter().filter(|pending| matches!(pending.stage, Stage::End(_))) {
            for lines in self.backlog.take_all_of(end.attempt.0) {
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
        faults::point("cp25");
        let sending = self.publisher.publish(&self.status_exchange, body);
        self.launch(sending.map(|verdict| Landing::Statuses(batch, verdict)));
        faults::point("cp26");
    }

    fn send_log(&mut self, batch: Batch) {
        let sending = self.publisher.publish(&self.log_exchange, batch.body());
        self.launch(sending.map(|verdict| Landing::Log(batch, verdict)));
    }

    /// Polls a sending once, which hands its message over, so that messages leave in the order of the calls.
    fn launch(&mut self, sending: impl Future<Output = Landing> + Send + 'static) {
        let mut sending = sending.boxed();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // The waker of this first poll is forgotten; the set polls again, with its own, as soon as it is looked at.
        self.under_way.push(match sending.as_mut().poll(&mut context) {
            Poll::Ready(landing) => futures::future::ready(landing).boxed(),
            Poll::Pending => sending,
        });
    }

    fn land(&mut self, landing: Landing) {
        let now = Instant::now();
        let error = match landing {
            Landing::Statuses(batch, verdict) => {
                self.statuses_under_way = false;
                match verdict {
                    Ok(()) => {
                        faults::point("cp27");
                        for pending in batch {
                            match pending.stage {
                                Stage::Start(id) => self.journal.started(id, pending.attempt, now),
                                Stage::Progress => {}
                                Stage::End(id) => self.journal.erase(id, now),
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
            Landing::Log(batch, Ok(())) => return self.backlog.delivered(batch, &mut self.journal, now),
            Landing::Log(batch, Err(error)) => {
                self.backlog.put_back(batch, &mut self.journal, now);
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
        } else if self.under_way.len() >= LOG_WINDOW {
            // With the window full, the next landing wakes.
            None
        } else {
            self.backlog.next_due()
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
