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
pub const MAX_RESCUES: i16 = 3;
/// How long the outcome of a lost run that must not be repeated stays open for a late report.
pub const LATE_REPORT: chrono::Duration = chrono::Duration::minutes(10);
/// The shortest limit of silence: three missed heartbeats.
pub const SHORTEST_LIMIT: Duration = Duration::from_secs(15);

/// A run that nobody has spoken of for a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Which.
    pub id: OccurrenceId,
    /// Which attempt of it.
    pub attempt: i32,
    /// The last sign of life of this run.
    pub sign: DateTime<Utc>,
    /// How long ago that was.
    pub age: Duration,
    /// True when its worker lives, but no longer speaks of it. Its word about the run's end may be on the way.
    pub is_forgotten: bool,
    /// After how long it is lost.
    pub limit: Duration,
    /// What then.
    pub on_lost: OnLost,
    /// How often it was rescued already.
    pub rescues: i16,
    /// Whose worker runs it.
    pub worker_id: String,
    /// When this attempt began, as far as it is recorded.
    pub started_at: Option<DateTime<Utc>>,
    /// Whether somebody takes turns in the worker's lane.
    pub lane_is_open: bool,
    /// Whether somebody asked for it to end.
    pub is_cancelled: bool,
}

/// The job's rule for lost runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// Run it again elsewhere.
    Requeue,
    /// Never run it twice.
    Fail,
}

impl OnLost {
    /// The rule behind a stored word. What is unknown is not repeated: that can be mended by hand, a second run cannot.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        if word == "requeue" { Self::Requeue } else { Self::Fail }
    }
}

/// What becomes of a lost run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
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
pub const fn fate(on_lost: OnLost, rescues: i16, is_cancelled: bool) -> Fate {
    match on_lost {
        _ if is_cancelled => Fate::Cancel,
        OnLost::Fail => Fate::Unknown,
        OnLost::Requeue if rescues >= MAX_RESCUES => Fate::Poison,
        OnLost::Requeue => Fate::Requeue,
    }
}

/// Whether a queue is read in time, judged by how many messages wait in it at each look. A queue that was empty at some
/// moment holds nothing older than that moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backlog {
    empty_at: Option<Duration>,
}

impl Backlog {
    /// Whether nothing in the queue is older than `limit`, at `at` of the monotonic clock, with `waiting` messages.
    pub fn is_young(&mut self, waiting: u32, at: Duration, limit: Duration) -> bool {
        if waiting == 0 {
            self.empty_at = Some(at);
        }
        self.empty_at.is_some_and(|empty| at.saturating_sub(empty) < limit)
    }
}

/// The memory of the detector: the observed clock, and since when which run is silent on it.
#[derive(Clone, Debug)]
pub struct Watch {
    period: Duration,
    last: Option<Duration>,
    observed: Duration,
    seeing_since: Option<Duration>,
    silent: HashMap<(OccurrenceId, i32), (DateTime<Utc>, Duration)>,
}

impl Watch {
    /// A watch that looks every `period`.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self { period, last: None, observed: Duration::ZERO, seeing_since: None, silent: HashMap::new() }
    }

    /// A look at `at` of the monotonic clock; `sees` tells whether signs of life come through.
    ///
    /// The observed clock goes by what has passed since the last look, if both looks saw. A pause of our own that is
    /// longer than two periods counts as one, for we may have been frozen in it; one so long that heartbeats were missed
    /// in it counts as blindness.
    pub fn look(&mut self, at: Duration, sees: bool) {
        let passed = self.last.map_or(Duration::ZERO, |last| at.saturating_sub(last));
        self.last = Some(at);
        let was_away = passed > 5 * self.period;
        if !sees || was_away {
            self.seeing_since = None;
            self.silent.clear();
        }
        if !sees {
            return;
        }
        match self.seeing_since {
            None => self.seeing_since = Some(self.observed),
            Some(_) if passed > 2 * self.period => self.observed += self.period,
            Some(_) => self.observed += passed,
        }
    }

    /// For how long, in observed time, signs of life have come through without a break.
    #[must_use]
    pub fn seeing_for(&self) -> Duration {
        self.seeing_since.map_or(Duration::ZERO, |since| self.observed.saturating_sub(since))
    }

    /// Of all runs that are silent now, those that are lost. The others are remembered; whoever is not among `silent` has
    /// spoken and is forgotten.
    pub fn judge(&mut self, silent: Vec<Silent>) -> Vec<(Silent, Fate)> {
        let seeing_for = self.seeing_for();
        if self.seeing_since.is_none() {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.silent);
        let mut lost = Vec::new();
        for run in silent {
            let since = match before.get(&(run.id, run.attempt)) {
                Some((sign, since)) if *sign == run.sign => *since,
                // Seen silent for the first time. It has been so for as long as its last sign is old, but no longer than
                // we have been able to see; when its worker lives, only since now, for the last time it was spoken of is
                // not written down anywhere.
                _ if run.is_forgotten => self.observed,
                _ => self.observed.saturating_sub(run.age.min(seeing_for)),
            };
            self.silent.insert((run.id, run.attempt), (run.sign, since));
            let limit = run.limit.max(SHORTEST_LIMIT);
            if self.observed.saturating_sub(since) >= limit && run.age >= limit {
                let fate = fate(run.on_lost, run.rescues, run.is_cancelled);
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

    fn silent(age: u64) -> Silent {
        Silent {
            id: OccurrenceId::default(),
            attempt: 1,
            sign: DateTime::UNIX_EPOCH,
            age: secs(age),
            is_forgotten: false,
            limit: secs(15),
            on_lost: OnLost::Requeue,
            rescues: 0,
            worker_id: "w".into(),
            started_at: None,
            lane_is_open: false,
            is_cancelled: false,
        }
    }

    /// A watch that has looked every period up to `upto`.
    fn seeing(upto: u64) -> Watch {
        let mut watch = Watch::new(PERIOD);
        for at in (0..=upto).step_by(2) {
            watch.look(secs(at), true);
        }
        watch
    }

    #[test]
    fn every_fate() {
        for (on_lost, rescues, is_cancelled, expected) in [
            (OnLost::Requeue, 0, false, Fate::Requeue),
            (OnLost::Requeue, 2, false, Fate::Requeue),
            (OnLost::Requeue, 3, false, Fate::Poison),
            (OnLost::Fail, 0, false, Fate::Unknown),
            (OnLost::Fail, 3, false, Fate::Unknown),
            (OnLost::Requeue, 0, true, Fate::Cancel),
            (OnLost::Fail, 0, true, Fate::Cancel),
        ] {
            assert_eq!(fate(on_lost, rescues, is_cancelled), expected, "{on_lost:?} {rescues} {is_cancelled}");
        }
    }

    #[test]
    fn a_silence_that_was_seen_from_its_beginning_counts_in_full() {
        let mut watch = seeing(100);
        assert!(watch.judge(vec![silent(7)]).is_empty());
        watch.look(secs(102), true);
        watch.look(secs(104), true);
        watch.look(secs(106), true);
        assert!(watch.judge(vec![silent(13)]).is_empty());
        watch.look(secs(108), true);
        assert_eq!(watch.judge(vec![silent(15)]).len(), 1);
    }

    #[test]
    fn who_has_just_begun_to_see_gives_everybody_the_whole_limit() {
        let mut watch = seeing(0);
        for at in (2..=14).step_by(2) {
            watch.look(secs(at), true);
            assert!(watch.judge(vec![silent(600 + at)]).is_empty(), "at {at}");
        }
        watch.look(secs(16), true);
        assert_eq!(watch.judge(vec![silent(616)]).len(), 1);
    }

    #[test]
    fn blindness_stops_the_clock_and_starts_everybody_anew() {
        let mut watch = seeing(100);
        assert!(watch.judge(vec![silent(13)]).is_empty());
        watch.look(secs(102), false);
        assert!(watch.judge(vec![silent(600)]).is_empty());
        watch.look(secs(104), true);
        for at in (106..=118).step_by(2) {
            watch.look(secs(at), true);
            assert!(watch.judge(vec![silent(600)]).is_empty(), "at {at}");
        }
        watch.look(secs(120), true);
        assert_eq!(watch.judge(vec![silent(600)]).len(), 1);
    }

    #[test]
    fn our_own_pause_is_nobodys_silence() {
        let mut watch = seeing(100);
        assert!(watch.judge(vec![silent(13)]).is_empty());
        // Seven seconds late: counts as two.
        watch.look(secs(109), true);
        assert_eq!(watch.seeing_for(), secs(102));
        // A minute away: blind.
        watch.look(secs(169), true);
        assert_eq!(watch.seeing_for(), Duration::ZERO);
        assert!(watch.judge(vec![silent(600)]).is_empty());
    }

    #[test]
    fn who_has_spoken_meanwhile_starts_anew() {
        let mut watch = seeing(100);
        watch.judge(vec![silent(14)]);
        watch.look(secs(102), true);
        let later = Silent { sign: DateTime::UNIX_EPOCH + chrono::Duration::seconds(9), ..silent(7) };
        assert!(watch.judge(vec![later]).is_empty());
        watch.look(secs(104), true);
        watch.judge(Vec::new());
        watch.look(secs(106), true);
        assert!(watch.judge(vec![silent(14)]).is_empty(), "the first silence is forgotten");
    }

    #[test]
    fn a_run_that_its_worker_no_longer_speaks_of_has_the_whole_limit_for_its_last_word() {
        let mut watch = seeing(100);
        let forgotten = |age| Silent { is_forgotten: true, ..silent(age) };
        assert!(watch.judge(vec![forgotten(3_600)]).is_empty());
        for at in (102..=114).step_by(2) {
            watch.look(secs(at), true);
            assert!(watch.judge(vec![forgotten(3_600)]).is_empty(), "at {at}");
        }
        watch.look(secs(116), true);
        assert_eq!(watch.judge(vec![forgotten(3_600)]).len(), 1);
    }

    #[test]
    fn a_jobs_own_limit_is_kept_and_never_below_the_shortest() {
        for (limit, age, expected) in [(60, 58, 0), (60, 60, 1), (1, 14, 0), (1, 15, 1)] {
            let lost = seeing(100).judge(vec![Silent { limit: secs(limit), ..silent(age) }]);
            assert_eq!(lost.len(), expected, "limit {limit}, age {age}");
        }
    }

    #[test]
    fn a_backlog_is_young_as_long_as_the_queue_was_empty_lately() {
        let mut backlog = Backlog::default();
        assert!(!backlog.is_young(5, secs(0), secs(15)), "nothing is known of it yet");
        assert!(backlog.is_young(0, secs(2), secs(15)));
        assert!(backlog.is_young(9_000, secs(16), secs(15)));
        assert!(!backlog.is_young(9_000, secs(17), secs(15)));
        assert!(backlog.is_young(0, secs(19), secs(15)));
    }
}
