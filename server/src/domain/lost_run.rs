//! Detects lost runs and decides what follows.
//!
//! A run is lost when its worker has not reported it for as long as the heartbeat timeout. The timeout is counted in
//! *observed time*: a clock that advances only while the server could receive heartbeats. A server that was cut off
//! from the broker, was frozen itself or lags behind with reading has not received heartbeats either, and must not
//! count its own outage as missed heartbeats of the workers. After such a gap every run gets the whole timeout again.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

/// Number of times a lost run is requeued before it is failed as a poison run.
pub const MAX_REQUEUES: i16 = 3;
/// Time for which the outcome of a lost run that must not be repeated stays open for a late report.
pub const LATE_REPORT_WINDOW: chrono::Duration = chrono::Duration::minutes(10);
/// Minimum heartbeat timeout: three missed heartbeats.
pub const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);

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
    /// The instance that runs it.
    pub instance_id: Option<String>,
    /// True if its worker is alive but no longer reports this run. The report of the run's end may be on the way.
    pub is_unreported: bool,
    /// The heartbeat timeout after which it is lost.
    pub heartbeat_timeout: Duration,
    /// The job's rule for lost runs.
    pub on_lost: LostRunRule,
    /// Number of times it was requeued already.
    pub requeues: i16,
    /// True if its cancellation was requested.
    pub is_cancelled: bool,
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
#[must_use]
pub const fn decide_lost_run(on_lost: LostRunRule, requeues: i16, is_cancelled: bool) -> LostRunDecision {
    match on_lost {
        _ if is_cancelled => LostRunDecision::Cancel,
        LostRunRule::Fail => LostRunDecision::Unknown,
        LostRunRule::Requeue if requeues >= MAX_REQUEUES => LostRunDecision::Poison,
        LostRunRule::Requeue => LostRunDecision::Requeue,
    }
}

/// An upper bound for the age of a queue's messages, derived from the length of the queue at each check: a queue that
/// was empty at some instant holds no message older than that instant.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueFreshness {
    empty_at: Option<Duration>,
}

impl QueueFreshness {
    /// Returns true if no message in the queue is older than `limit`. The queue holds `waiting` messages at the
    /// monotonic time `at`.
    pub fn is_fresh(&mut self, waiting: u32, at: Duration, limit: Duration) -> bool {
        if waiting == 0 {
            self.empty_at = Some(at);
        }
        self.empty_at.is_some_and(|empty| at.saturating_sub(empty) < limit)
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

    /// Returns the lost runs among all runs that are stale now. The other stale runs stay in the tracker. A run that is
    /// not in `stale` was reported again and is removed.
    pub fn lost_runs(&mut self, stale: Vec<StaleRun>) -> Vec<(StaleRun, LostRunDecision)> {
        let observed_for = self.observed_for();
        if self.observed_since.is_none() {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.stale);
        let mut lost = Vec::new();
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
            let timeout = run.heartbeat_timeout.max(MIN_HEARTBEAT_TIMEOUT);
            if self.observed.saturating_sub(since) >= timeout && run.age >= timeout {
                let decision = decide_lost_run(run.on_lost, run.requeues, run.is_cancelled);
                if !run.is_listed {
                    run.age = run.age.min(self.observed.saturating_sub(since));
                }
                lost.push((run, decision));
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(2);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn stale_run(age: u64) -> StaleRun {
        StaleRun {
            id: OccurrenceId::default(),
            attempt: 1,
            last_seen_at: DateTime::UNIX_EPOCH,
            age: secs(age),
            is_listed: true,
            is_stopped: false,
            instance_id: Some("w-1".into()),
            is_unreported: false,
            heartbeat_timeout: secs(15),
            on_lost: LostRunRule::Requeue,
            requeues: 0,
            is_cancelled: false,
        }
    }

    /// Creates a tracker that was updated every period up to second `upto`.
    fn tracker_receiving(upto: u64) -> HeartbeatTracker {
        let mut tracker = HeartbeatTracker::new(PERIOD);
        for at in (0..=upto).step_by(2) {
            tracker.observe(secs(at), true);
        }
        tracker
    }

    #[test]
    fn decisions_follow_rule_requeues_and_cancel() {
        for (on_lost, requeues, is_cancelled, expected) in [
            (LostRunRule::Requeue, 0, false, LostRunDecision::Requeue),
            (LostRunRule::Requeue, 2, false, LostRunDecision::Requeue),
            (LostRunRule::Requeue, 3, false, LostRunDecision::Poison),
            (LostRunRule::Fail, 0, false, LostRunDecision::Unknown),
            (LostRunRule::Fail, 3, false, LostRunDecision::Unknown),
            (LostRunRule::Requeue, 0, true, LostRunDecision::Cancel),
            (LostRunRule::Fail, 0, true, LostRunDecision::Cancel),
        ] {
            assert_eq!(
                decide_lost_run(on_lost, requeues, is_cancelled),
                expected,
                "{on_lost:?} {requeues} {is_cancelled}"
            );
        }
    }

    #[test]
    fn time_observed_from_the_last_report_counts_in_full() {
        let mut tracker = tracker_receiving(100);
        assert!(tracker.lost_runs(vec![stale_run(7)]).is_empty());
        tracker.observe(secs(102), true);
        tracker.observe(secs(104), true);
        tracker.observe(secs(106), true);
        assert!(tracker.lost_runs(vec![stale_run(13)]).is_empty());
        tracker.observe(secs(108), true);
        assert_eq!(tracker.lost_runs(vec![stale_run(15)]).len(), 1);
    }

    #[test]
    fn first_observation_grants_the_whole_timeout() {
        let mut tracker = tracker_receiving(0);
        for at in (2..=14).step_by(2) {
            tracker.observe(secs(at), true);
            assert!(tracker.lost_runs(vec![stale_run(600 + at)]).is_empty(), "at {at}");
        }
        tracker.observe(secs(16), true);
        assert_eq!(tracker.lost_runs(vec![stale_run(616)]).len(), 1);
    }

    #[test]
    fn gap_in_reception_restarts_every_timeout() {
        let mut tracker = tracker_receiving(100);
        assert!(tracker.lost_runs(vec![stale_run(13)]).is_empty());
        tracker.observe(secs(102), false);
        assert!(tracker.lost_runs(vec![stale_run(600)]).is_empty());
        tracker.observe(secs(104), true);
        for at in (106..=118).step_by(2) {
            tracker.observe(secs(at), true);
            assert!(tracker.lost_runs(vec![stale_run(600)]).is_empty(), "at {at}");
        }
        tracker.observe(secs(120), true);
        assert_eq!(tracker.lost_runs(vec![stale_run(600)]).len(), 1);
    }

    #[test]
    fn pause_of_the_server_does_not_count() {
        let mut tracker = tracker_receiving(100);
        assert!(tracker.lost_runs(vec![stale_run(13)]).is_empty());
        // Seven seconds late: counts as two.
        tracker.observe(secs(109), true);
        assert_eq!(tracker.observed_for(), secs(102));
        // A minute late: every timeout starts again.
        tracker.observe(secs(169), true);
        assert_eq!(tracker.observed_for(), Duration::ZERO);
        assert!(tracker.lost_runs(vec![stale_run(600)]).is_empty());
    }

    #[test]
    fn reported_run_restarts_its_timeout() {
        let mut tracker = tracker_receiving(100);
        tracker.lost_runs(vec![stale_run(14)]);
        tracker.observe(secs(102), true);
        let later = StaleRun { last_seen_at: DateTime::UNIX_EPOCH + chrono::Duration::seconds(9), ..stale_run(7) };
        assert!(tracker.lost_runs(vec![later]).is_empty());
        tracker.observe(secs(104), true);
        tracker.lost_runs(Vec::new());
        tracker.observe(secs(106), true);
        assert!(tracker.lost_runs(vec![stale_run(14)]).is_empty(), "the first gap no longer counts");
    }

    #[test]
    fn unreported_run_of_a_live_worker_gets_the_whole_timeout() {
        let mut tracker = tracker_receiving(100);
        let unreported = |age| StaleRun { is_unreported: true, is_listed: false, ..stale_run(age) };
        assert!(tracker.lost_runs(vec![unreported(3_600)]).is_empty());
        for at in (102..=114).step_by(2) {
            tracker.observe(secs(at), true);
            assert!(tracker.lost_runs(vec![unreported(3_600)]).is_empty(), "at {at}");
        }
        tracker.observe(secs(116), true);
        let lost = tracker.lost_runs(vec![unreported(3_600)]);
        let ages: Vec<_> = lost.iter().map(|(run, _)| run.age).collect();
        assert_eq!(ages, [secs(16)], "the time since the start report is not the time without a heartbeat");
    }

    #[test]
    fn job_timeout_is_used_down_to_the_minimum() {
        for (limit, age, expected) in [(60, 58, 0), (60, 60, 1), (1, 14, 0), (1, 15, 1)] {
            let lost =
                tracker_receiving(100).lost_runs(vec![StaleRun { heartbeat_timeout: secs(limit), ..stale_run(age) }]);
            assert_eq!(lost.len(), expected, "limit {limit}, age {age}");
        }
    }

    #[test]
    fn queue_is_fresh_while_it_was_recently_empty() {
        let mut queue = QueueFreshness::default();
        assert!(!queue.is_fresh(5, secs(0), secs(15)), "its age is unknown at first");
        assert!(queue.is_fresh(0, secs(2), secs(15)));
        assert!(queue.is_fresh(9_000, secs(16), secs(15)));
        assert!(!queue.is_fresh(9_000, secs(17), secs(15)));
        assert!(queue.is_fresh(0, secs(19), secs(15)));
    }
}
