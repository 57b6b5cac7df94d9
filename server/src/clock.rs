//! The only module that reads the clock or creates ids and tokens; all other modules receive them. Jitter, port numbers
//! and the passwords of embedded services are drawn where they are used, because no decision depends on them.
//!
//! PostgreSQL's clock decides what is due. The server measures the offset between its own clock and the database's and
//! adds it, so that several servers agree on what is due even if their clocks differ. Between two measurements time
//! advances by the machine's monotonic clock, so setting the machine's clock does not change the time here.
//!
//! A clock that jumps, PostgreSQL's or this machine's, makes every job look due or none. The server that notices a jump
//! holds dispatching for a while, so that operators and time synchronization can correct the clock; see
//! [`Clock::held_for`].

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::id::{
    AlertChannelId, AlertId, AlertRuleId, CalendarId, DeadLetterId, JobId, OccurrenceId, TokenId, UserId,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Instant,
};
use tokio::sync::Notify;

/// Offset change above which a change of PostgreSQL's clock is a step, not drift.
const DATABASE_STEP_THRESHOLD: Duration = Duration::seconds(2);
/// Change above which this machine's clock, compared with its monotonic clock, was set.
const MACHINE_STEP_THRESHOLD: Duration = Duration::seconds(5);
/// Time for which dispatching is held after a step.
const DISPATCH_HOLD: Duration = Duration::seconds(30);
/// Time after a hold during which other servers may still use the old time.
const STALE_TIME_WINDOW: Duration = Duration::seconds(60);

/// The source of time. Clones share their state.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Arc<ClockSource>,
    /// The time of a manual clock, in microseconds since the epoch; tests move it by hand.
    frozen: Option<Arc<AtomicI64>>,
}

#[derive(Debug)]
struct ClockSource {
    /// The machine's clock, read together with the monotonic clock at creation.
    wall: DateTime<Utc>,
    /// The monotonic clock at creation.
    started: Instant,
    /// Microseconds to add to the creation time and the elapsed time.
    offset: AtomicI64,
    /// True if PostgreSQL's clock was measured.
    is_measured: AtomicBool,
    /// Microseconds by which the machine's clock was ahead of the monotonic clock at the last check.
    ahead: AtomicI64,
    /// The end of the current hold, in microseconds on the scale of `passed`.
    held_until: AtomicI64,
    /// Notified when PostgreSQL's clock was set back.
    set_back: Arc<Notify>,
    /// The number of times that it was set back.
    set_backs: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl Clock {
    /// Creates a clock that starts at the machine's time; [`align`](Self::align) adds the offset to PostgreSQL's.
    #[must_use]
    pub fn system() -> Self {
        let source = ClockSource {
            wall: machine_now(),
            started: Instant::now(),
            offset: AtomicI64::new(0),
            is_measured: AtomicBool::new(false),
            ahead: AtomicI64::new(0),
            held_until: AtomicI64::new(i64::MIN),
            set_back: Arc::default(),
            set_backs: AtomicU64::new(0),
        };
        Self { source: Arc::new(source), frozen: None }
    }

    /// Creates a clock that stands at `at` until a test moves it.
    #[must_use]
    pub fn manual(at: DateTime<Utc>) -> Self {
        Self { frozen: Some(Arc::new(AtomicI64::new(at.timestamp_micros()))), ..Self::system() }
    }

    /// Returns the current time by PostgreSQL's clock, or by the machine's before the first measurement.
    #[must_use]
    pub fn now(&self) -> DateTime<Utc> {
        let micros = match &self.frozen {
            Some(frozen) => frozen.load(Ordering::SeqCst),
            None => self.source.wall.timestamp_micros() + self.passed() + self.source.offset.load(Ordering::Relaxed),
        };
        DateTime::from_timestamp_micros(micros).unwrap_or_default()
    }

    /// Returns the instant at which this clock will show `at`, unless it is set before. A manual clock stands, so the
    /// rest is counted in real time from now on.
    #[must_use]
    pub fn instant_at(&self, at: DateTime<Utc>) -> Instant {
        let (from, shown) = match &self.frozen {
            Some(frozen) => (Instant::now(), frozen.load(Ordering::SeqCst)),
            None => {
                let offset = self.source.offset.load(Ordering::Relaxed);
                (self.source.started, self.source.wall.timestamp_micros() + offset)
            }
        };
        from + std::time::Duration::from_micros(u64::try_from(at.timestamp_micros() - shown).unwrap_or(0))
    }

    /// Returns the microseconds since creation, unaffected by changes of the machine's clock.
    fn passed(&self) -> i64 {
        match &self.frozen {
            Some(frozen) => frozen.load(Ordering::SeqCst),
            None => i64::try_from(self.source.started.elapsed().as_micros()).unwrap_or(i64::MAX),
        }
    }

    /// Returns the remaining time for which dispatching is held after a clock step; `None` if it is not held.
    #[must_use]
    pub fn held_for(&self) -> Option<std::time::Duration> {
        let left = self.source.held_until.load(Ordering::Relaxed).saturating_sub(self.passed());
        u64::try_from(left).ok().filter(|left| *left > 0).map(std::time::Duration::from_micros)
    }

    /// Returns true if a clock was set so recently that other servers may still write times by the old clock, because
    /// they measure once a minute. The ages of such rows are meaningless until then.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        let until = self.source.held_until.load(Ordering::Relaxed);
        self.passed() < until.saturating_add(STALE_TIME_WINDOW.num_microseconds().unwrap_or(0))
    }

    /// Holds dispatching for 30 seconds.
    pub fn hold(&self) {
        let until = self.passed().saturating_add(DISPATCH_HOLD.num_microseconds().unwrap_or(0));
        self.source.held_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Returns the step if this machine's clock was set by more than five seconds since the last call, and then holds
    /// dispatching.
    pub fn machine_step(&self) -> Option<Duration> {
        self.step_at(machine_now())
    }

    fn step_at(&self, wall: DateTime<Utc>) -> Option<Duration> {
        let passed = i64::try_from(self.source.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        let ahead = (wall - self.source.wall).num_microseconds().unwrap_or(0) - passed;
        let step = Duration::microseconds(ahead - self.source.ahead.swap(ahead, Ordering::Relaxed));
        if step.abs() <= MACHINE_STEP_THRESHOLD {
            return None;
        }
        tracing::warn!(
            event.name = "clock_step",
            step_ms = step.num_milliseconds(),
            hold_s = DISPATCH_HOLD.num_seconds(),
            "this machine's clock was set, or the machine slept; dispatching is held, check its time synchronization"
        );
        self.hold();
        Some(step)
    }

    /// Returns the notification that PostgreSQL's clock was set back by more than two seconds, whichever measurement has
    /// found it.
    #[must_use]
    pub fn set_back(&self) -> Arc<Notify> {
        self.source.set_back.clone()
    }

    /// Returns the number of such steps since the creation of this clock.
    #[must_use]
    pub fn set_backs(&self) -> u64 {
        self.source.set_backs.load(Ordering::Relaxed)
    }

    /// Moves a manual clock forward; has no effect on a system clock.
    pub fn advance(&self, by: Duration) {
        if let Some(frozen) = &self.frozen {
            frozen.fetch_add(by.num_microseconds().unwrap_or(0), Ordering::SeqCst);
        }
    }

    /// Aligns this clock with PostgreSQL's time `database`, which was read between `before` and now by this machine's
    /// clock. Returns the difference between the two clocks. If the offset differs from the last measurement by more
    /// than two seconds, PostgreSQL's clock was set, and dispatching is held.
    pub fn align(&self, database: DateTime<Utc>, before: DateTime<Utc>) -> Duration {
        let after = machine_now();
        let took = (after - before).max(Duration::zero());
        let now = self.source.wall.timestamp_micros()
            + i64::try_from(self.source.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        let wanted = (database + took / 2).timestamp_micros() - now;
        let is_first = !self.source.is_measured.swap(true, Ordering::Relaxed);
        let step = Duration::microseconds(wanted - self.source.offset.load(Ordering::Relaxed));
        // A difference below the duration of the query is noise.
        if step.abs() > took {
            let was_set = !is_first && step.abs() > DATABASE_STEP_THRESHOLD;
            if was_set {
                tracing::warn!(
                    event.name = "clock_step",
                    step_ms = step.num_milliseconds(),
                    hold_s = DISPATCH_HOLD.num_seconds(),
                    "PostgreSQL's clock was set, or this machine slept; dispatching is held, check the time synchronization"
                );
                // The hold comes first, so that no reader sees the new time without the hold.
                self.hold();
            }
            self.source.offset.store(wanted, Ordering::Relaxed);
            if was_set && step < Duration::zero() {
                self.source.set_backs.fetch_add(1, Ordering::Relaxed);
                self.source.set_back.notify_one();
            }
        }
        database - (before + took / 2)
    }

    /// Creates a job id.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        JobId::from_parts(self.now(), rand::random())
    }

    /// Creates a calendar id.
    #[must_use]
    pub fn calendar_id(&self) -> CalendarId {
        CalendarId::from_parts(self.now(), rand::random())
    }

    /// Creates the id of an API token.
    #[must_use]
    pub fn token_id(&self) -> TokenId {
        TokenId::from_parts(self.now(), rand::random())
    }

    /// Creates the id of an alert.
    #[must_use]
    pub fn alert_id(&self) -> AlertId {
        AlertId::from_parts(self.now(), rand::random())
    }

    /// Creates the id of an alert rule.
    #[must_use]
    pub fn alert_rule_id(&self) -> AlertRuleId {
        AlertRuleId::from_parts(self.now(), rand::random())
    }

    /// Creates the id of an alert channel.
    #[must_use]
    pub fn alert_channel_id(&self) -> AlertChannelId {
        AlertChannelId::from_parts(self.now(), rand::random())
    }

    /// Creates an occurrence id.
    #[must_use]
    pub fn occurrence_id(&self) -> OccurrenceId {
        OccurrenceId::from_parts(self.now(), rand::random())
    }

    /// Creates a dead letter id.
    #[must_use]
    pub fn dead_letter_id(&self) -> DeadLetterId {
        DeadLetterId::from_parts(self.now(), rand::random())
    }

    /// Creates a user id.
    #[must_use]
    pub fn user_id(&self) -> UserId {
        UserId::from_parts(self.now(), rand::random())
    }

    /// Returns 32 random bytes from the operating system, for tokens.
    #[must_use]
    pub fn token(&self) -> [u8; 32] {
        rand::random()
    }
}

/// Returns this machine's clock without the offset. For measurements only.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place that may read the machine's clock")]
pub fn machine_now() -> DateTime<Utc> {
    Utc::now()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn aligned(ahead: Duration) -> Clock {
        let clock = Clock::system();
        let before = machine_now();
        clock.align(before + ahead, before);
        clock
    }

    #[test]
    fn time_follows_the_database() {
        let clock = aligned(Duration::hours(2));
        let off = clock.now() - machine_now() - Duration::hours(2);
        assert!(off.abs() < Duration::seconds(1), "{off}");
        assert_eq!(clock.held_for(), None, "the first measurement is no step");
        assert!(!clock.is_settling());
    }

    #[test]
    fn step_of_the_database_clock_is_followed_after_a_hold() {
        for step in [Duration::minutes(-7), Duration::seconds(3)] {
            let clock = aligned(Duration::zero());
            let before = machine_now();
            assert!((clock.align(before + step, before) - step).abs() < Duration::seconds(1));
            assert!(clock.held_for().is_some_and(|left| left.as_secs() > 25), "{step}");
            assert!(clock.is_settling(), "{step}");
            let is_back = step < Duration::zero();
            assert_eq!(clock.set_back().notified().now_or_never().is_some(), is_back, "{step}");
            assert_eq!(clock.set_backs(), u64::from(is_back), "{step}");
            assert!((clock.now() - machine_now() - step).abs() < Duration::seconds(1), "{step}");
        }
    }

    #[test]
    fn steady_offset_and_small_drift_hold_nothing() {
        let clock = aligned(Duration::minutes(5));
        for drift in [Duration::zero(), Duration::seconds(1)] {
            let before = machine_now();
            clock.align(before + Duration::minutes(5) + drift, before);
        }
        assert_eq!(clock.held_for(), None);
    }

    #[test]
    fn step_of_the_machine_clock_is_noticed_but_not_followed() {
        let clock = aligned(Duration::zero());
        assert_eq!(clock.step_at(machine_now() + Duration::seconds(4)), None);
        assert_eq!(clock.step_at(machine_now()), None);
        let step = clock.step_at(machine_now() - Duration::hours(1)).expect("the step is noticed");
        assert!((step + Duration::hours(1)).abs() < Duration::seconds(1));
        assert!(clock.held_for().is_some());
        assert_eq!(clock.step_at(machine_now() - Duration::hours(1)), None, "noticed once");
        assert!((clock.now() - machine_now()).abs() < Duration::seconds(1));
    }

    #[test]
    fn time_is_shown_at_its_instant() {
        let clock = aligned(Duration::hours(2));
        let soon = clock.now() + Duration::microseconds(1_500);
        let instant = clock.instant_at(soon);
        assert!(instant <= Instant::now() + std::time::Duration::from_micros(1_500), "not late");
        while Instant::now() < instant {
            std::hint::spin_loop();
        }
        assert!(clock.now() >= soon, "not early");
        assert!(clock.instant_at(soon - Duration::hours(9)) <= Instant::now());
    }

    #[test]
    fn rest_until_a_time_passes_while_a_manual_clock_stands() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        clock.advance(Duration::seconds(3));
        let before = Instant::now();
        let rest = |seconds| clock.instant_at(DateTime::UNIX_EPOCH + Duration::seconds(seconds)) - before;
        assert!(rest(10) >= std::time::Duration::from_secs(7) && rest(10) < std::time::Duration::from_secs(8));
        assert!(rest(2) < std::time::Duration::from_secs(7), "it has passed");
    }

    #[test]
    fn hold_expires() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        assert_eq!(clock.held_for(), None);
        clock.hold();
        clock.advance(Duration::seconds(29));
        assert_eq!(clock.held_for(), Some(std::time::Duration::from_secs(1)));
        clock.advance(Duration::seconds(1));
        assert_eq!(clock.held_for(), None);
    }
}
