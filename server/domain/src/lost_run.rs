//! Detects lost runs and decides what follows.
//!
//! A run is lost when its worker has not reported it for as long as the heartbeat timeout. The timeout is counted in
//! *observed time*: a clock that advances only while the server could receive heartbeats. A server that was cut off
//! from the broker, was frozen itself or lags behind with reading has not received heartbeats either, and must not
//! count its own outage as missed heartbeats of the workers. After such a gap every run gets the whole timeout again.
//!
//! A worker may be alive and unable to reach the broker, whose other clients can. Its heartbeat in Redis then changes. Such a
//! worker keeps its runs for a longer time, the *unreachable timeout*. After it, its runs are revoked through Redis, and
//! are lost once the worker has released them.
//!
//! An instance that is about to stop announces it in its heartbeats. A run that is lost with it from then on was not lost by
//! its own fault, so it is queued again without counting towards the poison limit.
//!
//! A backlog that hides heartbeats may last as long as the dead workers that caused it are not replaced. A worker whose
//! heartbeat in Redis has stood still for a minute is therefore dead, whether or not its messages could be received.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

use super::heartbeat_watch::{HeartbeatState, HeartbeatWatch};

/// Time after the timeout of a run within which its worker reports the end: the longest cleanup, and a margin. By the
/// server's clock, and from the report of the start.
pub const OVERDUE_MARGIN: Duration = Duration::from_secs(120);
/// Number of times a lost run is requeued before it is failed as a poison run.
pub const MAX_REQUEUES: i16 = 3;
/// Time for which the outcome of a lost run that must not be repeated stays open for a late report.
pub const LATE_REPORT_WINDOW: chrono::Duration = chrono::Duration::minutes(10);
/// Minimum heartbeat timeout: three missed heartbeats.
pub const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time without a change of an instance's heartbeat in Redis after which the instance is dead, even if no message of a
/// worker could be received.
pub const STILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A running occurrence that has not been reported for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleRun {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The attempt in force, from 1.
    pub attempt: i32,
    /// The last report or heartbeat that named this run.
    pub last_seen_at: DateTime<Utc>,
    /// Time since `last_seen_at`. For a lost run that its instance does not list, the observed time for which it was
    /// not reported: a heartbeat that listed it may be later than `last_seen_at`, and its time is not stored.
    pub age: Duration,
    /// True if the last heartbeat of its instance lists this run, so that `last_seen_at` is the time of that heartbeat.
    pub is_listed: bool,
    /// True if its instance has reported its shutdown.
    pub is_stopped: bool,
    /// True if its instance had announced that it stops, and then went silent without reporting its shutdown.
    pub is_stopping: bool,
    /// The instance that runs it.
    pub instance_id: Option<String>,
    /// True if its worker is alive but no longer reports this run. The report of the run's end may be on the way.
    pub is_unreported: bool,
    /// The heartbeat timeout after which it is lost.
    pub heartbeat_timeout: Duration,
    /// The time after which it is revoked from an instance that is alive and sends nothing to the broker.
    pub unreachable_timeout: Duration,
    /// The job's rule for lost runs.
    pub on_lost: LostRunRule,
    /// Number of times it was requeued already.
    pub requeues: i16,
    /// True if its cancellation was requested.
    pub is_cancelled: bool,
    /// The field and the reason of its last report that could not be read, if there is one.
    pub unreadable_report: Option<String>,
}

/// The job's rule for lost runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostRunRule {
    /// The run is requeued for another worker.
    Requeue,
    /// The run is never run twice; its outcome is unknown, and it fails after [`LATE_REPORT_WINDOW`].
    Fail,
}

impl LostRunRule {
    /// Parses a stored rule. An unknown word means [`Fail`](Self::Fail): a user can repeat a run by hand, but cannot
    /// undo a second run.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        if word == "requeue" { Self::Requeue } else { Self::Fail }
    }
}

/// A run whose worker is alive and has let its timeout pass without an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverdueRun {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The attempt in force, from 1.
    pub attempt: i32,
    /// The timeout of the run.
    pub timeout: Duration,
    /// The time since it is overdue: since its timeout and [`OVERDUE_MARGIN`] have passed.
    pub overdue_for: Duration,
    /// The time after which its outcome becomes unknown.
    pub unreachable_timeout: Duration,
}

impl OverdueRun {
    /// Returns true if the worker has not ended the run for so long that its outcome is unknown.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.overdue_for >= self.unreachable_timeout
    }
}

/// The decision about a lost run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostRunDecision {
    /// It is queued again as the next attempt.
    Requeue,
    /// It was lost with too many workers and is failed as a poison run.
    Poison,
    /// Its outcome is unknown; a late report may still supply it.
    Unknown,
    /// Its cancellation was requested, so it is cancelled.
    Cancel,
}

/// Decides what follows a lost run.
///
/// `is_stopping` is true if its instance had announced that it stops: the process was ended from outside before it could
/// hand the run back. The run is then queued again, like one that was handed back, whatever its rule and however often it was
/// requeued.
#[must_use]
pub const fn decide_lost_run(
    on_lost: LostRunRule,
    requeues: i16,
    is_cancelled: bool,
    is_stopping: bool,
) -> LostRunDecision {
    match on_lost {
        _ if is_cancelled => LostRunDecision::Cancel,
        _ if is_stopping => LostRunDecision::Requeue,
        LostRunRule::Fail => LostRunDecision::Unknown,
        LostRunRule::Requeue if requeues >= MAX_REQUEUES => LostRunDecision::Poison,
        LostRunRule::Requeue => LostRunDecision::Requeue,
    }
}

/// A conclusion about a run whose worker is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceVerdict {
    /// Nothing follows yet.
    Wait,
    /// Its instance is alive and does not reach the broker. The run continues.
    Unreachable,
    /// Its instance is alive and has not reached the broker for too long. The run is revoked, and lost when it is released.
    Revoke,
    /// The run is lost.
    Lost,
}

/// Decides about a run that was silent for an observed time. `state` is the state of its instance's heartbeat in Redis.
#[must_use]
pub fn judge_silence(run: &StaleRun, silent_for: Duration, state: HeartbeatState) -> SilenceVerdict {
    let timeout = run.heartbeat_timeout.max(MIN_HEARTBEAT_TIMEOUT);
    let is_long = silent_for >= timeout.max(run.unreachable_timeout);
    match state {
        _ if silent_for < timeout => SilenceVerdict::Wait,
        // The instance sends heartbeats, or has reported its end: no other source says more.
        _ if run.is_unreported || run.is_stopped || run.instance_id.is_none() => SilenceVerdict::Lost,
        HeartbeatState::Still => SilenceVerdict::Lost,
        HeartbeatState::Unseen | HeartbeatState::Undecided if is_long => SilenceVerdict::Lost,
        HeartbeatState::Unseen | HeartbeatState::Undecided => SilenceVerdict::Wait,
        // Its outcome becomes unknown, and it is not started again, so nothing needs to be revoked.
        HeartbeatState::Changing
            if is_long && run.on_lost == LostRunRule::Fail && !run.is_cancelled && !run.is_stopping =>
        {
            SilenceVerdict::Lost
        }
        HeartbeatState::Changing if is_long => SilenceVerdict::Revoke,
        HeartbeatState::Changing => SilenceVerdict::Unreachable,
    }
}

/// What the keys of a run in Redis say after it was to be revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationStep {
    /// The worker holds the claim and is asked to release it.
    Request,
    /// The worker has released the claim of the revoked run, so the run is lost.
    Released,
    /// The run ended by itself, and its report waits at the worker; or the worker makes no claims, and nothing tells when it
    /// gives up the run.
    Wait,
}

/// Decides from the value of a run's claim and that of its revocation, the number of the first attempt that may run.
#[must_use]
pub fn revocation_step(run: &StaleRun, claim: Option<&str>, revoked_below: Option<i32>) -> RevocationStep {
    let is_held =
        |held: &str| run.instance_id.as_deref().is_some_and(|instance| held == format!("{instance}:{}", run.attempt));
    match claim {
        Some(held) if is_held(held) => RevocationStep::Request,
        None if revoked_below.is_some_and(|attempt| attempt > run.attempt) => RevocationStep::Released,
        Some(_) | None => RevocationStep::Wait,
    }
}

/// The state of the lost run detector: the observed clock, and for each stale run the time on that clock since which it
/// has had no heartbeat.
#[derive(Clone, Debug)]
pub struct HeartbeatTracker {
    period: Duration,
    last: Option<Duration>,
    observed: Duration,
    observed_since: Option<Duration>,
    stale: HashMap<(OccurrenceId, i32), (DateTime<Utc>, Duration)>,
}

impl HeartbeatTracker {
    /// Creates a tracker that is updated every `period`.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self { period, last: None, observed: Duration::ZERO, observed_since: None, stale: HashMap::new() }
    }

    /// Advances the observed clock to the monotonic time `at`; `is_receiving` is true if heartbeats can be received
    /// now.
    ///
    /// The clock advances by the time since the last update if heartbeats could be received at both updates. A gap
    /// longer than two periods counts as one period, because this process may have been frozen. After a gap longer than
    /// five periods, in which heartbeats were missed, every timeout starts again, as after an update without reception.
    pub fn observe(&mut self, at: Duration, is_receiving: bool) {
        let passed = self.last.map_or(Duration::ZERO, |last| at.saturating_sub(last));
        self.last = Some(at);
        let was_away = passed > 5 * self.period;
        if !is_receiving || was_away {
            self.observed_since = None;
            self.stale.clear();
        }
        if !is_receiving {
            return;
        }
        match self.observed_since {
            None => self.observed_since = Some(self.observed),
            Some(_) if passed > 2 * self.period => self.observed += self.period,
            Some(_) => self.observed += passed,
        }
    }

    /// Returns the observed time for which heartbeats have been received without a gap.
    #[must_use]
    pub fn observed_for(&self) -> Duration {
        self.observed_since.map_or(Duration::ZERO, |since| self.observed.saturating_sub(since))
    }

    /// Decides about all runs that are stale now, and returns those about which there is a verdict. A run that is not in
    /// `stale` was reported again and is forgotten.
    pub fn judge(&mut self, stale: Vec<StaleRun>, watch: &HeartbeatWatch) -> Vec<(StaleRun, SilenceVerdict)> {
        let observed_for = self.observed_for();
        if self.observed_since.is_none() {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.stale);
        let mut judged = Vec::new();
        for mut run in stale {
            let since = match before.get(&(run.id, run.attempt)) {
                Some((last_seen_at, since)) if *last_seen_at == run.last_seen_at => *since,
                // The run is stale for the first time. Its timeout counts from its last report, but at most as long as
                // heartbeats could be received. If its worker is alive, it counts from now, because the time of the
                // last heartbeat that named the run is not stored.
                _ if run.is_unreported => self.observed,
                _ => self.observed.saturating_sub(run.age.min(observed_for)),
            };
            self.stale.insert((run.id, run.attempt), (run.last_seen_at, since));
            let silent_for = self.observed.saturating_sub(since).min(run.age);
            let state = run.instance_id.as_deref().map_or(HeartbeatState::Still, |instance| watch.state(instance));
            let verdict = judge_silence(&run, silent_for, state);
            if verdict != SilenceVerdict::Wait {
                if !run.is_listed {
                    run.age = run.age.min(self.observed.saturating_sub(since));
                }
                judged.push((run, verdict));
            }
        }
        judged
    }
}

/// Returns the runs of instances that are dead by their heartbeats in Redis alone. Decides without any message of a worker,
/// so the caller must exclude runs that have ended: their reports may wait unread.
#[must_use]
pub fn dead_by_watch(stale: Vec<StaleRun>, watch: &HeartbeatWatch) -> Vec<StaleRun> {
    let is_dead = |run: &StaleRun| {
        let timeout = STILL_TIMEOUT.max(run.heartbeat_timeout);
        let instance = run.instance_id.as_deref();
        !run.is_stopped && run.age >= timeout && instance.is_some_and(|instance| watch.still_for(instance) >= timeout)
    };
    stale.into_iter().filter(is_dead).collect()
}

#[cfg(test)]
mod tests;
