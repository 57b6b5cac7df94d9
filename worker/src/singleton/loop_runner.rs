//! One loop: its heartbeats, its ticks and its runs.
//!
//! Everything is one state machine in one task, because every event matters to all parts: a late answer of Redis must not
//! delay a tick, a lost lease must end the run at once, and at shutdown the lease is released only after the run has ended.
//! [`LoopRunner::run`] waits for the next event; the methods below it apply one event each.
//!
//! A term, the time as the leader, ends in one of two ways. It *is lost* when another instance holds the lease: the run is
//! dropped at once. It *is ended* when the process stops, a user disables the loop or asks for a hand-over, or the lease
//! could not be renewed for two thirds of its duration: the run is asked to end, the lease is renewed if possible until it
//! has ended or is dropped, and then released.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::{BoxFuture, OptionFuture};
use milvaion_protocol::{
    backoff::Backoff,
    singleton::{LoopKind, LoopOutcome},
};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc::UnboundedSender},
    task::{JoinError, JoinHandle},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    Tick,
    control::metrics::loops::LoopMetrics,
    net::redis::RedisUnavailable,
    run::panics::catch_panic,
    singleton::{
        SingletonLoop,
        lease_store::{ElectionPosition, HeartbeatAnswer, LeaseStore, LoopHeartbeat},
        loop_clock::LoopClock,
        loop_timer::LoopTimer,
        pace::{LoopPacer, TickDecision},
        statistics::{LeaderInfo, LoopStatistics, RunReport},
        term::{FencedRun, LeaseTerm, RunFence, cancel_grace},
    },
};

/// Maximum delay of a follower's next heartbeat after failures.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Minimum time between two log lines about the same problem of a loop.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The reason for which a term ends, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    Stopping,
    Disabled,
    Yielding,
    NotRenewed,
}

impl EndReason {
    const fn text(self) -> &'static str {
        match self {
            Self::Stopping => "this instance stops",
            Self::Disabled => "a user disabled the loop",
            Self::Yielding => "a user asked for a hand-over",
            Self::NotRenewed => "Redis could not be reached in time",
        }
    }
}

/// The duration of a run that ended by itself, and the text of its error.
type RunEnd = (Duration, Result<(), String>);

/// A run in progress.
struct CurrentRun {
    task: JoinHandle<Option<RunEnd>>,
    started: Arc<OnceLock<Instant>>,
    due: crate::singleton::pace::ClockMoment,
    cancel: CancellationToken,
    fence: RunFence,
    has_warned: bool,
}

type HeartbeatFuture = Pin<Box<dyn Future<Output = (Instant, Result<HeartbeatAnswer, RedisUnavailable>)> + Send>>;

/// One loop of this process.
pub(crate) struct LoopRunner {
    spec: SingletonLoop,
    store: Box<dyn LeaseStore>,
    clock: LoopClock,
    timer: LoopTimer,
    /// The runtime of the program, on which runs are spawned.
    program: Handle,
    metrics: LoopMetrics,
    /// Requests a heartbeat now.
    wake: Arc<Notify>,
    stop: CancellationToken,
    info: LeaderInfo,
    /// Receives each run that ended, for tests of users.
    observer: Option<UnboundedSender<RunReport>>,

    term: Option<LeaseTerm>,
    ending: Option<EndReason>,
    /// The instant at which the run of an ending term is dropped.
    drop_at: Option<Instant>,
    pacer: Option<LoopPacer>,
    run: Option<CurrentRun>,
    statistics: LoopStatistics,
    /// The highest epoch that this instance has seen.
    seen_epoch: u64,
    next_heartbeat: Instant,
    /// The instant until which other instances go first, after a hand-over.
    yields_until: Option<Instant>,
    failures: u32,
    last_warning: Option<Instant>,
    muted_errors: u64,
}

/// The parts that a loop runner needs from its worker.
pub(crate) struct LoopRunnerContext {
    pub(crate) store: Box<dyn LeaseStore>,
    pub(crate) clock: LoopClock,
    pub(crate) timer: LoopTimer,
    pub(crate) program: Handle,
    pub(crate) metrics: LoopMetrics,
    pub(crate) wake: Arc<Notify>,
    pub(crate) stop: CancellationToken,
    pub(crate) worker_id: String,
    pub(crate) host: String,
    pub(crate) observer: Option<UnboundedSender<RunReport>>,
}

impl LoopRunner {
    /// Creates a loop runner, which sends its first heartbeat at once.
    pub(crate) fn new(spec: SingletonLoop, context: LoopRunnerContext) -> Self {
        let LoopRunnerContext { store, clock, timer, program, metrics, wake, stop, worker_id, host, observer } =
            context;
        let info = LeaderInfo {
            worker_id,
            host,
            kind: spec.pace.kind(),
            schedule: spec.pace.describe(),
            lease: spec.options.lease,
            heartbeat: spec.options.heartbeat(),
        };
        Self {
            spec,
            store,
            clock,
            timer,
            program,
            metrics,
            wake,
            stop,
            info,
            observer,
            term: None,
            ending: None,
            drop_at: None,
            pacer: None,
            run: None,
            statistics: LoopStatistics::default(),
            seen_epoch: 0,
            next_heartbeat: Instant::now(),
            yields_until: None,
            failures: 0,
            last_warning: None,
            muted_errors: 0,
        }
    }

    /// Runs until the token `stop` fires, then releases the lease.
    pub(crate) async fn run(mut self) {
        let stop = self.stop.clone();
        let wake = self.wake.clone();
        let mut heartbeat: Option<HeartbeatFuture> = None;
        loop {
            // The deadline is checked before anything else, because a process that was frozen finds all events ready.
            let now = Instant::now();
            self.check_deadlines(now);
            if self.is_over() && heartbeat.is_none() {
                self.release().await;
                if stop.is_cancelled() {
                    return;
                }
            }
            if heartbeat.is_none() && self.next_heartbeat <= now && self.sends_heartbeats() {
                heartbeat = Some(self.send_heartbeat(now));
            }
            let due = self.due_at();
            // The deadlines up to now have been applied, and the end of an ending term waits for the answer in flight.
            let deadline = self.next_deadline().filter(|deadline| *deadline > now || heartbeat.is_none());
            tokio::select! {
                biased;
                () = stop.cancelled(), if self.ending != Some(EndReason::Stopping) => self.end(EndReason::Stopping),
                Some(end) = OptionFuture::from(self.run.as_mut().map(|run| &mut run.task)) => self.run_ended(end),
                Some((asked_at, answer)) = OptionFuture::from(heartbeat.as_mut()) => {
                    heartbeat = None;
                    self.receive(asked_at, answer);
                }
                () = sleep_until(deadline.unwrap_or(now)), if deadline.is_some() => {}
                () = self.timer.sleep_until(due.unwrap_or(now)), if due.is_some() => self.tick(),
                () = wake.notified(), if heartbeat.is_none() => self.next_heartbeat = Instant::now(),
                () = sleep_until(self.next_heartbeat), if heartbeat.is_none() && self.sends_heartbeats() => {}
            }
        }
    }

    /// Returns true if nothing remains to be done before the lease is released.
    fn is_over(&self) -> bool {
        // A run that blocks its thread does not end when it is dropped. It is given up with the lease.
        let has_given_up = self.drop_at.is_none() && self.term.is_none_or(|term| Instant::now() >= term.ends_at());
        self.ending.is_some() && (self.run.is_none() || has_given_up)
    }

    /// Returns true if the lease is still useful: a run that was dropped and does not end must not keep it.
    fn sends_heartbeats(&self) -> bool {
        let was_dropped = self.drop_at.is_none() && self.run.as_ref().is_some_and(|run| run.cancel.is_cancelled());
        self.ending.is_none() || (self.run.is_some() && !was_dropped)
    }

    /// Returns the instant of the next tick.
    fn due_at(&self) -> Option<Instant> {
        // A run of an earlier term may still be in progress. Only the grid goes on meanwhile, to count its dropped ticks.
        let waits_for_run = self.run.is_some() && self.info.kind != LoopKind::FixedRate;
        if self.term.is_none() || self.ending.is_some() || waits_for_run {
            return None;
        }
        self.pacer.as_ref()?.wake_at(self.clock.now())
    }

    /// Returns the instant at which [`check_deadlines`](Self::check_deadlines) has work, or an ending term is over.
    fn next_deadline(&self) -> Option<Instant> {
        if self.ending.is_none() {
            return self.term.map(|term| term.cancel_at());
        }
        self.drop_at.or_else(|| self.term.map(|term| term.ends_at())).filter(|_| self.run.is_some())
    }

    fn check_deadlines(&mut self, now: Instant) {
        if self.ending.is_none() && self.term.is_some_and(|term| now >= term.cancel_at()) {
            self.end(EndReason::NotRenewed);
        }
        if self.drop_at.is_some_and(|drop_at| now >= drop_at) {
            self.drop_at = None;
            self.drop_run();
        }
    }

    /// Begins a heartbeat.
    fn send_heartbeat(&mut self, asked_at: Instant) -> HeartbeatFuture {
        if self.yields_until.is_some_and(|until| asked_at >= until) {
            self.yields_until = None;
        }
        // A run that could not be ended in time must not meet a run of a new term in the same process.
        let takes = self.term.is_none() && self.run.is_none() && self.ending.is_none() && self.yields_until.is_none();
        // The next term begins with empty statistics, which a successful request publishes.
        if self.term.is_none() {
            self.statistics = LoopStatistics::new(self.clock.now().wall);
        }
        let answer = self.store.heartbeat(LoopHeartbeat {
            held: self.term.map(|term| term.epoch),
            seen: self.seen_epoch,
            takes: takes || (self.term.is_some() && self.ending.is_none()),
            state: self.statistics.state(&self.info),
        });
        Box::pin(async move { (asked_at, answer.await) })
    }

    /// Applies the answer to a heartbeat.
    fn receive(&mut self, asked_at: Instant, answer: Result<HeartbeatAnswer, RedisUnavailable>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.heartbeat_failed(&error),
        };
        self.failures = 0;
        self.metrics.answered();
        self.seen_epoch = self.seen_epoch.max(answer.epoch);
        let is_same_term = self.term.is_some_and(|term| term.epoch == answer.epoch);
        match answer.position {
            ElectionPosition::Leader if is_same_term => self.renewed(asked_at),
            ElectionPosition::Elected => {
                if self.term.is_some() {
                    self.lose("its key was missing in Redis");
                }
                self.elected(asked_at, &answer);
            }
            ElectionPosition::Follower | ElectionPosition::Leader => {
                if self.term.is_some() {
                    self.lose(&format!("instance {} holds its lease", answer.holder));
                }
            }
        }
        if self.term.is_some() && self.ending.is_none() {
            if answer.is_disabled {
                self.end(EndReason::Disabled);
            } else if answer.yields {
                self.end(EndReason::Yielding);
            }
        }
        let heartbeat = self.info.heartbeat;
        self.next_heartbeat = if self.term.is_some() {
            asked_at + heartbeat
        } else {
            // Followers spread over a tenth of the time, and none waits longer than it.
            asked_at + heartbeat.mul_f64(1.0 - 0.1 * rand::random::<f64>())
        };
    }

    fn heartbeat_failed(&mut self, error: &RedisUnavailable) {
        self.failures = self.failures.saturating_add(1);
        self.metrics.failed();
        let heartbeat = self.info.heartbeat;
        // A leader retries soon: its own backoff must not cost it the lease.
        let pause = if self.term.is_some() {
            (heartbeat / 6).min(Duration::from_millis(500))
        } else {
            follower_backoff(heartbeat, self.failures, rand::random())
        };
        self.next_heartbeat = Instant::now() + pause;
        if self.may_warn() {
            let name = &*self.spec.name;
            tracing::warn!(
                singleton = name,
                error = %error,
                retry_ms = pause.as_millis() as u64,
                "singleton loop {name} cannot reach Redis; check REDIS_URL if this persists"
            );
        }
    }

    fn renewed(&mut self, asked_at: Instant) {
        let Some(term) = &mut self.term else { return };
        term.renew(asked_at);
        if self.ending.is_none()
            && self.spec.options.cancel_on_lost_leadership
            && let Some(run) = &self.run
        {
            run.fence.set(term.drop_at());
        }
        self.warn_about_long_run();
    }

    fn elected(&mut self, asked_at: Instant, answer: &HeartbeatAnswer) {
        let term = LeaseTerm::new(answer.epoch, asked_at, self.spec.options.lease);
        let now = self.clock.now();
        let name = &*self.spec.name;
        tracing::info!(
            singleton = name,
            epoch = answer.epoch,
            "this instance leads singleton loop {name} with epoch {}",
            answer.epoch
        );
        self.metrics.leads(true);
        self.statistics = LoopStatistics::new(now.wall);
        let random = rand::random::<f64>;
        let (pace, jitter) = (self.spec.pace.clone(), self.spec.options.jitter);
        self.pacer = Some(LoopPacer::new(pace, jitter, random, now, answer.since_last_end));
        self.term = Some(term);
        self.drop_at = None;
    }

    /// Ends the term at once, because another instance may lead.
    fn lose(&mut self, reason: &str) {
        let name = &*self.spec.name;
        tracing::warn!(singleton = name, reason, "this instance has lost singleton loop {name}: {reason}");
        self.stop_leading();
        if self.spec.options.cancel_on_lost_leadership {
            self.drop_run();
        }
    }

    /// Begins the orderly end of the term.
    fn end(&mut self, reason: EndReason) {
        // A stop follows any other reason, and nothing follows a stop.
        if self.ending.is_some() && reason != EndReason::Stopping {
            return;
        }
        self.ending = Some(reason);
        let now = Instant::now();
        let cancels = self.spec.options.cancel_on_lost_leadership || reason == EndReason::Stopping;
        if let Some(run) = self.run.as_ref().filter(|_| cancels) {
            run.cancel.cancel();
            let grace_ends = now + cancel_grace(self.spec.options.lease);
            let drop_at = self.term.map_or(grace_ends, |term| grace_ends.min(term.drop_at()));
            run.fence.set(drop_at);
            self.drop_at = Some(drop_at);
        }
        if self.term.is_some() {
            let name = &*self.spec.name;
            tracing::info!(
                singleton = name,
                reason = reason.text(),
                "this instance ends its lead of singleton loop {name}: {}",
                reason.text()
            );
        }
    }

    /// Releases the lease after the run has ended, and continues as a follower.
    async fn release(&mut self) {
        let reason = self.ending.take();
        let leaves = reason == Some(EndReason::Stopping);
        let epoch = self.term.map(|term| term.epoch);
        let state = epoch.map(|_| self.statistics.state(&self.info));
        if epoch.is_some() {
            self.stop_leading();
        }
        self.drop_at = None;
        if (epoch.is_some() || leaves)
            && let Err(error) = self.store.release(epoch, leaves, state).await
        {
            let name = &*self.spec.name;
            tracing::debug!(singleton = name, error = %error, "the lease of singleton loop {name} expires by itself");
        }
        let now = Instant::now();
        if reason == Some(EndReason::Yielding) {
            self.yields_until = Some(now + self.spec.options.lease);
        }
        self.next_heartbeat = now + self.info.heartbeat;
        if reason == Some(EndReason::NotRenewed) {
            self.next_heartbeat = now;
        }
    }

    fn stop_leading(&mut self) {
        self.term = None;
        self.pacer = None;
        self.metrics.leads(false);
    }

    /// Drops the run: it is not polled again.
    fn drop_run(&mut self) {
        if let Some(run) = &self.run {
            run.cancel.cancel();
            run.fence.set(Instant::now());
            run.task.abort();
        }
    }

    /// Starts a run if one is due.
    fn tick(&mut self) {
        let now = self.clock.now();
        let is_running = self.run.is_some();
        let Some((pacer, term)) = self.pacer.as_mut().zip(self.term) else { return };
        // A thawed process finds a tick that is due and a lease that is over.
        if now.instant >= term.cancel_at() {
            return;
        }
        let decision = pacer.tick(now, is_running);
        self.count_dropped(decision);
        let Some(due) = decision.run else { return };
        self.statistics.started(now.wall);
        self.metrics.started();
        let (started, cancel, fence) =
            (Arc::new(OnceLock::new()), CancellationToken::new(), RunFence::new(now.instant));
        if self.spec.options.cancel_on_lost_leadership {
            fence.set(term.drop_at());
        }
        let tick = Tick {
            name: self.spec.name.clone(),
            epoch: term.epoch,
            number: self.statistics.started,
            due: due.wall,
            due_at: due.instant,
            cancel: cancel.clone(),
        };
        let body = run_once(self.spec.body.clone(), tick, self.spec.options.timeout, started.clone());
        let span = tracing::info_span!("singleton", singleton = &*self.spec.name, epoch = term.epoch);
        let task = self.program.spawn(FencedRun::new(body.instrument(span), fence.clone()));
        self.run = Some(CurrentRun { task, started, due, cancel, fence, has_warned: false });
    }

    fn count_dropped(&mut self, decision: TickDecision) {
        self.statistics.dropped += decision.overlapped + decision.late;
        self.metrics.dropped(decision.overlapped, decision.late);
    }

    /// Records the end of a run.
    fn run_ended(&mut self, end: Result<Option<RunEnd>, JoinError>) {
        let Some(run) = self.run.take() else { return };
        let now = self.clock.now();
        let started = run.started.get().copied().unwrap_or(now.instant);
        let (took, outcome, error) = match end {
            Ok(Some((took, Ok(())))) => (took, LoopOutcome::Ok, None),
            // An error of a run that was asked to end is its way to end.
            Ok(Some((took, Err(_)))) if run.cancel.is_cancelled() => (took, LoopOutcome::Cancelled, None),
            Ok(Some((took, Err(error)))) => (took, LoopOutcome::Error, Some(error)),
            // Dropped at its deadline, aborted, or its runtime has ended.
            Ok(None) | Err(_) => (now.instant - started, LoopOutcome::Cancelled, None),
        };
        let late = started.saturating_duration_since(run.due.instant);
        let report = RunReport { due: run.due.wall, late, took, outcome, error };
        self.metrics.ended(outcome, took, late);
        self.statistics.ended(&report, now.wall);
        if let Some(error) = &report.error {
            self.log_error(error);
        }
        if !run.has_warned {
            self.warn_if_long(took);
        }
        if let Some(observer) = &self.observer {
            let _ = observer.send(report);
        }
        if let Some(pacer) = &mut self.pacer {
            let decision = pacer.ended(now);
            self.count_dropped(decision);
        }
    }

    fn log_error(&mut self, error: &str) {
        if !self.may_warn() {
            self.muted_errors += 1;
            return;
        }
        let (name, muted) = (&*self.spec.name, std::mem::take(&mut self.muted_errors));
        tracing::warn!(singleton = name, error, muted, "a run of singleton loop {name} failed; the loop goes on");
    }

    /// Warns about a run that is still in progress, once.
    fn warn_about_long_run(&mut self) {
        let Some(run) = self.run.as_ref().filter(|run| !run.has_warned) else { return };
        let took = run.started.get().map_or(Duration::ZERO, |started| started.elapsed());
        if self.warn_if_long(took)
            && let Some(run) = &mut self.run
        {
            run.has_warned = true;
        }
    }

    fn warn_if_long(&mut self, took: Duration) -> bool {
        let (name, lease) = (self.spec.name.clone(), self.spec.options.lease);
        let exceeds_period =
            self.spec.pace.period().is_some_and(|period| self.info.kind == LoopKind::FixedRate && took > period);
        let limit = if exceeds_period {
            "its period, so ticks are dropped"
        } else if took > lease * 4 / 5 {
            "80 % of the lease, so it may not end before a successor starts if this instance is cut off"
        } else {
            return false;
        };
        if !self.spec.options.warn_on_long_runs || !self.may_warn() {
            return false;
        }
        let duration_ms = took.as_millis() as u64;
        tracing::warn!(
            singleton = &*name,
            duration_ms,
            "a run of singleton loop {name} takes {duration_ms} ms, longer than {limit}"
        );
        true
    }

    /// Returns true if a warning is due: a loop that fails ten times a second must not fill the log.
    fn may_warn(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.last_warning.is_none_or(|last| now - last >= WARNING_INTERVAL);
        if is_due {
            self.last_warning = Some(now);
        }
        is_due
    }
}

/// Runs the code of a loop once. Returns the duration and the text of the error.
async fn run_once(
    body: crate::singleton::LoopBody,
    tick: Tick,
    limit: Option<Duration>,
    started: Arc<OnceLock<Instant>>,
) -> RunEnd {
    let begin = Instant::now();
    let _ = started.set(begin);
    // The code may panic before it returns its future.
    let run: BoxFuture<'static, _> = Box::pin(async move { body(tick).await });
    let run = catch_panic(run);
    let end = match limit {
        None => Some(run.await),
        Some(limit) => timeout(limit, run).await.ok(),
    };
    let result = match end {
        Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(error))) => Err(error.to_string()),
        Some(Err(panic)) => Err(panic.to_string()),
        None => Err(format!("the run exceeded its timeout of {:?}", limit.unwrap_or_default())),
    };
    (begin.elapsed(), result)
}

/// Returns the delay of a follower's next heartbeat after some failures: twice as long after each, up to 30 seconds, with
/// a jitter of 20 %, and never shorter than the time between two heartbeats. `random` is a number from 0 to 1.
fn follower_backoff(heartbeat: Duration, failures: u32, random: f64) -> Duration {
    let doubled = Backoff::new(heartbeat, MAX_BACKOFF.max(heartbeat)).after(failures.saturating_add(1));
    doubled.mul_f64(0.8 + 0.4 * random).max(heartbeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_of_followers_grows_with_jitter() {
        let heartbeat = Duration::from_secs(3);
        let bounds = |failures| [0.0, 1.0].map(|random| follower_backoff(heartbeat, failures, random).as_secs_f64());
        assert_eq!(bounds(1), [4.8, 7.2]);
        assert_eq!(bounds(10), [24.0, 36.0]);
        assert_eq!(bounds(0), [3.0, 3.6], "never shorter than a heartbeat");
    }
}
