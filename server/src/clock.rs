//! The only place that reads the clock or makes ids and tokens. Everything else is given them. Jitter, ports and the
//! passwords of private services are drawn where they are used: nothing is decided by them.
//!
//! Due-ness is judged by PostgreSQL's clock: the server measures how far its own clock is from the database's and adds
//! the difference, so that several servers agree on what is due even when their clocks do not. Between two measurements
//! time goes by the machine's monotonic clock, so that somebody who sets the machine's clock sets nothing here.
//!
//! A clock that jumps, PostgreSQL's or this machine's, makes everything look due or nothing. Whoever notices holds
//! dispatching for a while, in which people and time servers may mend what they have broken; see [`Clock::held_for`].

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::id::{CalendarId, DeadLetterId, JobId, OccurrenceId, UserId};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Instant,
};

/// A difference between what PostgreSQL says and what we expected it to say that is no drift but a step.
const DATABASE_STEP_THRESHOLD: Duration = Duration::seconds(2);
/// The same for this machine's clock against its monotonic one.
const MACHINE_STEP_THRESHOLD: Duration = Duration::seconds(5);
/// How long dispatching is held after a step.
const DISPATCH_HOLD: Duration = Duration::seconds(30);
/// How long after a hold other servers may still go by the old time.
const STALE_TIME_WINDOW: Duration = Duration::seconds(60);

/// Where time comes from. Cloning gives the same one.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Arc<ClockSource>,
    /// When set, time stands still here (microseconds since the epoch): tests move it by hand.
    frozen: Option<Arc<AtomicI64>>,
}

#[derive(Debug)]
struct ClockSource {
    /// The machine's clock and its monotonic one, read together at the beginning.
    wall: DateTime<Utc>,
    begun: Instant,
    /// Microseconds to add to that beginning and what has passed since.
    offset: AtomicI64,
    /// Whether PostgreSQL was ever asked.
    is_measured: AtomicBool,
    /// By how many microseconds the machine's clock was ahead of the monotonic one when it was looked at last.
    ahead: AtomicI64,
    /// Until when dispatching is held, on the line of `passed`.
    held_until: AtomicI64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        let source = ClockSource {
            wall: machine_now(),
            begun: Instant::now(),
            offset: AtomicI64::new(0),
            is_measured: AtomicBool::new(false),
            ahead: AtomicI64::new(0),
            held_until: AtomicI64::new(i64::MIN),
        };
        Self { source: Arc::new(source), frozen: None }
    }

    /// A clock that stands at `at` until it is moved.
    #[must_use]
    pub fn manual(at: DateTime<Utc>) -> Self {
        Self { frozen: Some(Arc::new(AtomicI64::new(at.timestamp_micros()))), ..Self::system() }
    }

    /// Now, by PostgreSQL's clock as far as it was measured.
    #[must_use]
    pub fn now(&self) -> DateTime<Utc> {
        let micros = match &self.frozen {
            Some(frozen) => frozen.load(Ordering::SeqCst),
            None => self.source.wall.timestamp_micros() + self.passed() + self.source.offset.load(Ordering::Relaxed),
        };
        DateTime::from_timestamp_micros(micros).unwrap_or_default()
    }

    /// Microseconds that have passed, as nobody can set them.
    fn passed(&self) -> i64 {
        match &self.frozen {
            Some(frozen) => frozen.load(Ordering::SeqCst),
            None => i64::try_from(self.source.begun.elapsed().as_micros()).unwrap_or(i64::MAX),
        }
    }

    /// For how long dispatching is held yet, because a clock was set; none when it is not.
    #[must_use]
    pub fn held_for(&self) -> Option<std::time::Duration> {
        let left = self.source.held_until.load(Ordering::Relaxed).saturating_sub(self.passed());
        u64::try_from(left).ok().filter(|left| *left > 0).map(std::time::Duration::from_micros)
    }

    /// Whether a clock was set so short a while ago that what other servers write may still go by the old time: they
    /// measure once a minute. Ages say nothing until then.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        let until = self.source.held_until.load(Ordering::Relaxed);
        self.passed() < until.saturating_add(STALE_TIME_WINDOW.num_microseconds().unwrap_or(0))
    }

    /// Holds dispatching for 30 seconds from now.
    pub fn hold(&self) {
        let until = self.passed().saturating_add(DISPATCH_HOLD.num_microseconds().unwrap_or(0));
        self.source.held_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Whether somebody set this machine's clock since this was asked last, by more than five seconds; dispatching is held
    /// then. Returns by how much.
    pub fn machine_step(&self) -> Option<Duration> {
        self.step_at(machine_now())
    }

    fn step_at(&self, wall: DateTime<Utc>) -> Option<Duration> {
        let passed = i64::try_from(self.source.begun.elapsed().as_micros()).unwrap_or(i64::MAX);
        let ahead = (wall - self.source.wall).num_microseconds().unwrap_or(0) - passed;
        let step = Duration::microseconds(ahead - self.source.ahead.swap(ahead, Ordering::Relaxed));
        if step.abs() <= MACHINE_STEP_THRESHOLD {
            return None;
        }
        tracing::warn!(
            event.name = "clock_step",
            step_ms = step.num_milliseconds(),
            hold_s = DISPATCH_HOLD.num_seconds(),
            "this machine's clock was set, or it slept; nothing is fired for a moment"
        );
        self.hold();
        Some(step)
    }

    /// Moves a manual clock forward; a system clock is left alone.
    pub fn advance(&self, by: Duration) {
        if let Some(frozen) = &self.frozen {
            frozen.fetch_add(by.num_microseconds().unwrap_or(0), Ordering::SeqCst);
        }
    }

    /// Tells the clock what PostgreSQL's says, read between `before` and now by this machine's. Returns how far the two
    /// are apart. When PostgreSQL's says something else than was to be expected from what it said last, it was set:
    /// dispatching is held for a while.
    pub fn align(&self, database: DateTime<Utc>, before: DateTime<Utc>) -> Duration {
        let after = machine_now();
        let took = (after - before).max(Duration::zero());
        let now = self.source.wall.timestamp_micros()
            + i64::try_from(self.source.begun.elapsed().as_micros()).unwrap_or(i64::MAX);
        let wanted = (database + took / 2).timestamp_micros() - now;
        let is_first = !self.source.is_measured.swap(true, Ordering::Relaxed);
        let step = Duration::microseconds(wanted - self.source.offset.load(Ordering::Relaxed));
        // A difference below the time the question took is noise.
        if step.abs() > took {
            if !is_first && step.abs() > DATABASE_STEP_THRESHOLD {
                tracing::warn!(
                    event.name = "clock_step",
                    step_ms = step.num_milliseconds(),
                    hold_s = DISPATCH_HOLD.num_seconds(),
                    "PostgreSQL's clock was set, or this machine slept; nothing is fired for a moment"
                );
                // First, or somebody could read the new time and know of no hold.
                self.hold();
            }
            self.source.offset.store(wanted, Ordering::Relaxed);
        }
        database - (before + took / 2)
    }

    /// A new job id.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        JobId::from_parts(self.now(), rand::random())
    }

    /// A new calendar id.
    #[must_use]
    pub fn calendar_id(&self) -> CalendarId {
        CalendarId::from_parts(self.now(), rand::random())
    }

    /// A new occurrence id.
    #[must_use]
    pub fn occurrence_id(&self) -> OccurrenceId {
        OccurrenceId::from_parts(self.now(), rand::random())
    }

    /// A new dead letter's id.
    #[must_use]
    pub fn dead_letter_id(&self) -> DeadLetterId {
        DeadLetterId::from_parts(self.now(), rand::random())
    }

    /// A new person's id.
    #[must_use]
    pub fn user_id(&self) -> UserId {
        UserId::from_parts(self.now(), rand::random())
    }

    /// 32 random bytes from the operating system, for tokens.
    #[must_use]
    pub fn token(&self) -> [u8; 32] {
        rand::random()
    }
}

/// This machine's clock, uncorrected. For measuring only.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place that may read the machine's clock")]
pub fn machine_now() -> DateTime<Utc> {
    Utc::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(ahead: Duration) -> Clock {
        let clock = Clock::system();
        let before = machine_now();
        clock.align(before + ahead, before);
        clock
    }

    #[test]
    fn time_is_the_databases() {
        let clock = aligned(Duration::hours(2));
        let off = clock.now() - machine_now() - Duration::hours(2);
        assert!(off.abs() < Duration::seconds(1), "{off}");
        assert_eq!(clock.held_for(), None, "the first measurement is no step");
        assert!(!clock.is_settling());
    }

    #[test]
    fn a_database_whose_clock_was_set_is_followed_after_a_pause() {
        for step in [Duration::minutes(-7), Duration::seconds(3)] {
            let clock = aligned(Duration::zero());
            let before = machine_now();
            assert!((clock.align(before + step, before) - step).abs() < Duration::seconds(1));
            assert!(clock.held_for().is_some_and(|left| left.as_secs() > 25), "{step}");
            assert!(clock.is_settling(), "{step}");
            assert!((clock.now() - machine_now() - step).abs() < Duration::seconds(1), "{step}");
        }
    }

    #[test]
    fn a_steady_difference_and_a_little_drift_hold_nothing() {
        let clock = aligned(Duration::minutes(5));
        for drift in [Duration::zero(), Duration::seconds(1)] {
            let before = machine_now();
            clock.align(before + Duration::minutes(5) + drift, before);
        }
        assert_eq!(clock.held_for(), None);
    }

    #[test]
    fn a_machine_whose_clock_is_set_changes_nothing_here_but_is_noticed() {
        let clock = aligned(Duration::zero());
        assert_eq!(clock.step_at(machine_now() + Duration::seconds(4)), None);
        assert_eq!(clock.step_at(machine_now()), None);
        let step = clock.step_at(machine_now() - Duration::hours(1)).expect("noticed");
        assert!((step + Duration::hours(1)).abs() < Duration::seconds(1));
        assert!(clock.held_for().is_some());
        assert_eq!(clock.step_at(machine_now() - Duration::hours(1)), None, "noticed once");
        assert!((clock.now() - machine_now()).abs() < Duration::seconds(1));
    }

    #[test]
    fn a_hold_passes() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        assert_eq!(clock.held_for(), None);
        clock.hold();
        clock.advance(Duration::seconds(29));
        assert_eq!(clock.held_for(), Some(std::time::Duration::from_secs(1)));
        clock.advance(Duration::seconds(1));
        assert_eq!(clock.held_for(), None);
    }
}
