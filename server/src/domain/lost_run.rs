//! Is a run lost, and what then?
//!
//! A run is lost when its worker has been silent about it for long enough, and *long enough* is counted in observed time:
//! a clock that goes only while signs of life could have been seen. A server that was cut off from the broker, was frozen
//! itself or is behind with reading has not heard anything either, and must not take its own deafness for the workers'
//! silence. Once it sees again, everybody gets the whole limit anew.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

/// How often a run is given to another worker before it is taken for the worker's killer.
pub const MAX_REQUEUES: i16 = 3;
/// How long the outcome of a lost run that must not be repeated stays open for a late report.
pub const LATE_REPORT_WINDOW: chrono::Duration = chrono::Duration::minutes(10);
/// The shortest limit of silence: three missed heartbeats.
pub const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);

/// A run that nobody has spoken of for a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentRun {
    /// Which.
    pub id: OccurrenceId,
    /// Which attempt of it.
    pub attempt: i32,
    /// The last sign of life of this run.
    pub last_seen_at: DateTime<Utc>,
    /// How long ago that was.
    pub age: Duration,
    /// True when its worker lives, but no longer speaks of it. Its word about the run's end may be on the way.
    pub is_unreported: bool,
    /// After how long it is lost.
    pub limit: Duration,
    /// What then.
    pub on_lost: LostRunRule,
    /// How often it was rescued already.
    pub requeues: i16,
    /// Whose worker runs it.
    pub worker_id: String,
    /// When this attempt began, as far as it is recorded.
    pub started_at: Option<DateTime<Utc>>,
    /// Whether somebody takes turns in the worker's lane.
    pub quarantine_is_open: bool,
    /// Whether somebody asked for it to end.
    pub is_cancelled: bool,
}

/// The job's rule for lost runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostRunRule {
    /// Run it again elsewhere.
    Requeue,
    /// Never run it twice.
    Fail,
}

impl LostRunRule {
    /// The rule behind a stored word. What is unknown is not repeated: that can be mended by hand, a second run cannot.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        if word == "requeue" { Self::Requeue } else { Self::Fail }
    }
}

/// What becomes of a lost run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostRunDecision {
    /// It is queued again, as the next attempt.
    Requeue,
    /// It has cost enough workers their lives.
    Poison,
    /// Nobody knows how it ended; a late report may still tell.
    Unknown,
    /// Somebody wanted it to end, and so it did.
    Cancel,
}

/// Decides about a run that is lost.
#[must_use]
pub const fn decide_lost_run(on_lost: LostRunRule, requeues: i16, is_cancelled: bool) -> LostRunDecision {
    match on_lost {
        _ if is_cancelled => LostRunDecision::Cancel,
        LostRunRule::Fail => LostRunDecision::Unknown,
        LostRunRule::Requeue if requeues >= MAX_REQUEUES => LostRunDecision::Poison,
        LostRunRule::Requeue => LostRunDecision::Requeue,
    }
}

/// Whether a queue is read in time, judged by how many messages wait in it at each look. A queue that was empty at some
/// moment holds nothing older than that moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueFreshness {
    empty_at: Option<Duration>,
}

impl QueueFreshness {
    /// Whether nothing in the queue is older than `limit`, at `at` of the monotonic clock, with `waiting` messages.
    pub fn is_fresh(&mut self, waiting: u32, at: Duration, limit: Duration) -> bool {
        if waiting == 0 {
            self.empty_at = Some(at);
        }
        self.empty_at.is_some_and(|empty| at.saturating_sub(empty) < limit)
    }
}

/// The memory of the detector: the observed clock, and since when which run is silent on it.
#[derive(Clone, Debug)]
pub struct SilenceTracker {
    period: Duration,
    last: Option<Duration>,
    observed: Duration,
    observed_since: Option<Duration>,
    silent: HashMap<(OccurrenceId, i32), (DateTime<Utc>, Duration)>,
}

impl SilenceTracker {
    /// A watch that looks every `period`.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self { period, last: None, observed: Duration::ZERO, observed_since: None, silent: HashMap::new() }
    }

    /// A look at `at` of the monotonic clock; `sees` tells whether signs of life come through.
    ///
    /// The observed clock goes by what has passed since the last look, if both looks saw. A pause of our own that is
    /// longer than two periods counts as one, for we may have been frozen in it; one so long that heartbeats were missed
    /// in it counts as blindness.
    pub fn observe(&mut self, at: Duration, sees: bool) {
        let passed = self.last.map_or(Duration::ZERO, |last| at.saturating_sub(last));
        self.last = Some(at);
        let was_away = passed > 5 * self.period;
        if !sees || was_away {
            self.observed_since = None;
            self.silent.clear();
        }
        if !sees {
            return;
        }
        match self.observed_since {
            None => self.observed_since = Some(self.observed),
            Some(_) if passed > 2 * self.period => self.observed += self.period,
            Some(_) => self.observed += passed,
        }
    }

    /// For how long, in observed time, signs of life have come through without a break.
    #[must_use]
    pub fn observed_for(&self) -> Duration {
        self.observed_since.map_or(Duration::ZERO, |since| self.observed.saturating_sub(since))
    }

    /// Of all runs that are silent now, those that are lost. The others are remembered; whoever is not among `silent` has
    /// spoken and is forgotten.
    pub fn lost_runs(&mut self, silent: Vec<SilentRun>) -> Vec<(SilentRun, LostRunDecision)> {
        let observed_for = self.observed_for();
        if self.observed_since.is_none() {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.silent);
        let mut lost = Vec::new();
        for run in silent {
            let since = match before.get(&(run.id, run.attempt)) {
                Some((sign, since)) if *sign == run.last_seen_at => *since,
                // Seen silent for the first time. It has been so for as long as its last sign is old, but no longer than
                // we have been able to see; when its worker lives, only since now, for the last time it was spoken of is
                // not written down anywhere.
                _ if run.is_unreported => self.observed,
                _ => self.observed.saturating_sub(run.age.min(observed_for)),
            };
            self.silent.insert((run.id, run.attempt), (run.last_seen_at, since));
            let limit = run.limit.max(MIN_HEARTBEAT_TIMEOUT);
            if self.observed.saturating_sub(since) >= limit && run.age >= limit {
                let fate = decide_lost_run(run.on_lost, run.requeues, run.is_cancelled);
                lost.push((run, fate));
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

    fn silent(age: u64) -> SilentRun {
        SilentRun {
            id: OccurrenceId::default(),
            attempt: 1,
            last_seen_at: DateTime::UNIX_EPOCH,
            age: secs(age),
            is_unreported: false,
            limit: secs(15),
            on_lost: LostRunRule::Requeue,
            requeues: 0,
            worker_id: "w".into(),
            started_at: None,
            quarantine_is_open: false,
            is_cancelled: false,
        }
    }

    /// A watch that has looked every period up to `upto`.
    fn seeing(upto: u64) -> SilenceTracker {
        let mut watch = SilenceTracker::new(PERIOD);
        for at in (0..=upto).step_by(2) {
            watch.observe(secs(at), true);
        }
        watch
    }

    #[test]
    fn every_fate() {
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
    fn a_silence_that_was_seen_from_its_beginning_counts_in_full() {
        let mut watch = seeing(100);
        assert!(watch.lost_runs(vec![silent(7)]).is_empty());
        watch.observe(secs(102), true);
        watch.observe(secs(104), true);
        watch.observe(secs(106), true);
        assert!(watch.lost_runs(vec![silent(13)]).is_empty());
        watch.observe(secs(108), true);
        assert_eq!(watch.lost_runs(vec![silent(15)]).len(), 1);
    }

    #[test]
    fn who_has_just_begun_to_see_gives_everybody_the_whole_limit() {
        let mut watch = seeing(0);
        for at in (2..=14).step_by(2) {
            watch.observe(secs(at), true);
            assert!(watch.lost_runs(vec![silent(600 + at)]).is_empty(), "at {at}");
        }
        watch.observe(secs(16), true);
        assert_eq!(watch.lost_runs(vec![silent(616)]).len(), 1);
    }

    #[test]
    fn blindness_stops_the_clock_and_starts_everybody_anew() {
        let mut watch = seeing(100);
        assert!(watch.lost_runs(vec![silent(13)]).is_empty());
        watch.observe(secs(102), false);
        assert!(watch.lost_runs(vec![silent(600)]).is_empty());
        watch.observe(secs(104), true);
        for at in (106..=118).step_by(2) {
            watch.observe(secs(at), true);
            assert!(watch.lost_runs(vec![silent(600)]).is_empty(), "at {at}");
        }
        watch.observe(secs(120), true);
        assert_eq!(watch.lost_runs(vec![silent(600)]).len(), 1);
    }

    #[test]
    fn our_own_pause_is_nobodys_silence() {
        let mut watch = seeing(100);
        assert!(watch.lost_runs(vec![silent(13)]).is_empty());
        // Seven seconds late: counts as two.
        watch.observe(secs(109), true);
        assert_eq!(watch.observed_for(), secs(102));
        // A minute away: blind.
        watch.observe(secs(169), true);
        assert_eq!(watch.observed_for(), Duration::ZERO);
        assert!(watch.lost_runs(vec![silent(600)]).is_empty());
    }

    #[test]
    fn who_has_spoken_meanwhile_starts_anew() {
        let mut watch = seeing(100);
        watch.lost_runs(vec![silent(14)]);
        watch.observe(secs(102), true);
        let later = SilentRun { last_seen_at: DateTime::UNIX_EPOCH + chrono::Duration::seconds(9), ..silent(7) };
        assert!(watch.lost_runs(vec![later]).is_empty());
        watch.observe(secs(104), true);
        watch.lost_runs(Vec::new());
        watch.observe(secs(106), true);
        assert!(watch.lost_runs(vec![silent(14)]).is_empty(), "the first silence is forgotten");
    }

    #[test]
    fn a_run_that_its_worker_no_longer_speaks_of_has_the_whole_limit_for_its_last_word() {
        let mut watch = seeing(100);
        let forgotten = |age| SilentRun { is_unreported: true, ..silent(age) };
        assert!(watch.lost_runs(vec![forgotten(3_600)]).is_empty());
        for at in (102..=114).step_by(2) {
            watch.observe(secs(at), true);
            assert!(watch.lost_runs(vec![forgotten(3_600)]).is_empty(), "at {at}");
        }
        watch.observe(secs(116), true);
        assert_eq!(watch.lost_runs(vec![forgotten(3_600)]).len(), 1);
    }

    #[test]
    fn a_jobs_own_limit_is_kept_and_never_below_the_shortest() {
        for (limit, age, expected) in [(60, 58, 0), (60, 60, 1), (1, 14, 0), (1, 15, 1)] {
            let lost = seeing(100).lost_runs(vec![SilentRun { limit: secs(limit), ..silent(age) }]);
            assert_eq!(lost.len(), expected, "limit {limit}, age {age}");
        }
    }

    #[test]
    fn a_backlog_is_young_as_long_as_the_queue_was_empty_lately() {
        let mut backlog = QueueFreshness::default();
        assert!(!backlog.is_fresh(5, secs(0), secs(15)), "nothing is known of it yet");
        assert!(backlog.is_fresh(0, secs(2), secs(15)));
        assert!(backlog.is_fresh(9_000, secs(16), secs(15)));
        assert!(!backlog.is_fresh(9_000, secs(17), secs(15)));
        assert!(backlog.is_fresh(0, secs(19), secs(15)));
    }
}
