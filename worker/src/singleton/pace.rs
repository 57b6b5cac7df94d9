//! The due times of a loop.
//!
//! Pure decisions: no I/O, no clock and no randomness of its own. Intervals and grids are computed on the monotonic clock,
//! which no clock change affects. Cron expressions need the wall clock, so a cron loop is woken at least once a minute and
//! compares again.
//!
//! Nothing is ever queued because it could not run in time. A tick during a run is dropped, and a process that stalled for
//! ten periods continues on the grid with one run. Otherwise a loop that was slow once would run without a pause
//! afterwards. The only exception is the misfire policy *all* of cron loops, which the user chooses, and it has a bound.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_protocol::singleton::LoopKind;
use tokio::time::Instant;

#[cfg(feature = "cron")]
use chrono_tz::Tz;
#[cfg(feature = "cron")]
use milvaion_schedule::{cron::CronExpression, schedule::parse_zone};

/// The longest wait of a cron loop before it compares its due time with the wall clock again.
#[cfg(feature = "cron")]
const MAX_CRON_WAIT: Duration = Duration::from_secs(60);
/// The delay after which a due time of a cron loop counts as missed. Timers are a few milliseconds late at most.
#[cfg(feature = "cron")]
const CRON_TOLERANCE: chrono::TimeDelta = chrono::TimeDelta::seconds(1);
/// The maximum number of missed due times that are made up for, or counted.
#[cfg(feature = "cron")]
const MAX_MISSED: usize = 1000;

/// The rhythm of a loop.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LoopPace {
    /// The next run starts this long after the end of the last one.
    Interval(Duration),
    /// Runs start on a grid with this period.
    FixedRate(Duration),
    /// Runs start at the due times of an expression.
    #[cfg(feature = "cron")]
    Cron(CronPace),
}

/// The rhythm of a cron loop.
#[cfg(feature = "cron")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CronPace {
    /// The expression as the user wrote it.
    pub(crate) text: String,
    pub(crate) expression: CronExpression,
    pub(crate) zone: Tz,
    pub(crate) misfire: LoopMisfire,
}

#[cfg(feature = "cron")]
impl CronPace {
    /// Reads the rhythm of the loop `name`.
    ///
    /// # Errors
    /// Returns a sentence that names the loop.
    pub(crate) fn parse(name: &str, text: &str, zone: &str, misfire: LoopMisfire) -> Result<Self, String> {
        let expression = CronExpression::parse(text)
            .map_err(|error| format!("Singleton loop {name:?} has the cron expression {text:?}: {error}"))?;
        let zone =
            parse_zone(zone).map_err(|error| format!("Singleton loop {name:?} has the zone {zone:?}: {error}"))?;
        Ok(Self { text: text.to_owned(), expression, zone, misfire })
    }
}

/// The due times of a cron loop that were missed while the leader lived, because a run took too long or the process was
/// suspended.
///
/// Due times at which no instance led the loop are not made up for.
#[cfg(feature = "cron")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoopMisfire {
    /// They are dropped. The default.
    #[default]
    Skip,
    /// One run makes up for all of them.
    Once,
    /// Each of them runs, one after the other, the last 1,000 at most.
    All,
}

/// One instant on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockMoment {
    /// On the monotonic clock.
    pub(crate) instant: Instant,
    /// On the wall clock.
    pub(crate) wall: DateTime<Utc>,
}

/// The decision at a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TickDecision {
    /// The due time of the run to start, if one starts.
    pub(crate) run: Option<ClockMoment>,
    /// The number of ticks that are dropped because a run is in progress, or was when they were due.
    pub(crate) overlapped: u64,
    /// The number of ticks that are dropped because the process noticed them too late.
    pub(crate) late: u64,
}

impl LoopPace {
    /// Returns the kind for the state of the loop.
    pub(crate) const fn kind(&self) -> LoopKind {
        match self {
            Self::Interval(_) => LoopKind::Interval,
            Self::FixedRate(_) => LoopKind::FixedRate,
            #[cfg(feature = "cron")]
            Self::Cron(_) => LoopKind::Cron,
        }
    }

    /// Returns the rhythm in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Interval(period) => format!("every {}", humantime::format_duration(*period)),
            Self::FixedRate(period) => format!("fixed rate {}", humantime::format_duration(*period)),
            #[cfg(feature = "cron")]
            Self::Cron(cron) => format!("cron {} {}", cron.text, cron.zone),
        }
    }

    /// Returns the period of a loop that has one.
    pub(crate) const fn period(&self) -> Option<Duration> {
        match self {
            Self::Interval(period) | Self::FixedRate(period) => Some(*period),
            #[cfg(feature = "cron")]
            Self::Cron(_) => None,
        }
    }
}

/// The due times of one leader.
pub(crate) struct LoopPacer {
    pace: LoopPace,
    /// The maximum random delay of each due time.
    jitter: Duration,
    /// Returns a random number from 0 to 1.
    random: fn() -> f64,
    /// The random delay of the next due time.
    delay: Duration,
    /// The next due time of a loop with a period, without the random delay. `None` while a run of an interval loop is in
    /// progress.
    next: Option<ClockMoment>,
    /// The due time before the next one of a cron loop. It never decreases, so that no due time runs twice.
    #[cfg(feature = "cron")]
    pivot: DateTime<Utc>,
    #[cfg(feature = "cron")]
    is_running: bool,
}

impl LoopPacer {
    /// Creates the due times of an instance that becomes the leader. `since_last_end` is the time since the last run of an
    /// earlier leader ended, if that is known.
    pub(crate) fn new(
        pace: LoopPace,
        jitter: Duration,
        random: fn() -> f64,
        now: ClockMoment,
        since_last_end: Option<Duration>,
    ) -> Self {
        let next = match &pace {
            LoopPace::Interval(period) => {
                let wait = since_last_end.map_or(Duration::ZERO, |since| period.saturating_sub(since));
                Some(later(now, wait))
            }
            // The grid is the same for every leader: multiples of the period since 1970.
            LoopPace::FixedRate(period) => Some(later(now, until_grid(now.wall, *period))),
            #[cfg(feature = "cron")]
            LoopPace::Cron(_) => None,
        };
        let mut pacer = Self {
            pace,
            jitter,
            random,
            delay: Duration::ZERO,
            next,
            #[cfg(feature = "cron")]
            pivot: now.wall,
            #[cfg(feature = "cron")]
            is_running: false,
        };
        pacer.draw_delay();
        pacer
    }

    /// Returns the instant of the next call of [`tick`](Self::tick). None while a run is in progress that the next one
    /// waits for, and none if a cron expression has no further due time.
    pub(crate) fn wake_at(&self, now: ClockMoment) -> Option<Instant> {
        #[cfg(feature = "cron")]
        if let LoopPace::Cron(cron) = &self.pace {
            if self.is_running {
                return None;
            }
            let due = cron.expression.next_after(cron.zone, self.pivot)?;
            let wait = (due - now.wall).to_std().unwrap_or_default().saturating_add(self.delay);
            return Some(now.instant + wait.min(MAX_CRON_WAIT));
        }
        let _ = now;
        self.next.map(|next| next.instant + self.delay)
    }

    /// Decides at an instant whether a run starts. `is_running` is true while one is in progress.
    pub(crate) fn tick(&mut self, now: ClockMoment, is_running: bool) -> TickDecision {
        match &self.pace {
            LoopPace::Interval(_) => self.tick_interval(now, is_running),
            LoopPace::FixedRate(period) => {
                let period = *period;
                self.tick_grid(now, period, is_running)
            }
            #[cfg(feature = "cron")]
            LoopPace::Cron(cron) => {
                let cron = cron.clone();
                self.tick_cron(&cron, now, is_running)
            }
        }
    }

    /// Records the end of a run. Returns the ticks that were dropped because of it.
    pub(crate) fn ended(&mut self, now: ClockMoment) -> TickDecision {
        match &self.pace {
            LoopPace::Interval(period) => {
                self.next = Some(later(now, *period));
                self.draw_delay();
            }
            LoopPace::FixedRate(_) => {}
            #[cfg(feature = "cron")]
            LoopPace::Cron(cron) => {
                self.is_running = false;
                if cron.misfire == LoopMisfire::Skip {
                    let passed = passed(cron, self.pivot, now.wall);
                    self.pivot = passed.last().copied().unwrap_or(self.pivot);
                    return TickDecision { overlapped: passed.len() as u64, ..TickDecision::default() };
                }
            }
        }
        TickDecision::default()
    }

    fn tick_interval(&mut self, now: ClockMoment, is_running: bool) -> TickDecision {
        let Some(next) = self.next.filter(|next| !is_running && next.instant + self.delay <= now.instant) else {
            return TickDecision::default();
        };
        let due = later(next, self.delay);
        self.next = None;
        TickDecision { run: Some(due), ..TickDecision::default() }
    }

    fn tick_grid(&mut self, now: ClockMoment, period: Duration, is_running: bool) -> TickDecision {
        let Some(next) = self.next.filter(|next| next.instant + self.delay <= now.instant) else {
            return TickDecision::default();
        };
        // All ticks up to now are due. The newest one runs, and those before it were noticed too late.
        let behind = (now.instant - next.instant).as_nanos() / period.as_nanos().max(1);
        let newest = later(next, nanos(behind.saturating_mul(period.as_nanos())));
        self.next = Some(later(newest, period));
        let due = later(newest, self.delay);
        self.draw_delay();
        let late = u64::try_from(behind).unwrap_or(u64::MAX);
        if is_running {
            TickDecision { overlapped: late.saturating_add(1), ..TickDecision::default() }
        } else {
            TickDecision { run: Some(due), late, ..TickDecision::default() }
        }
    }

    #[cfg(feature = "cron")]
    fn tick_cron(&mut self, cron: &CronPace, now: ClockMoment, is_running: bool) -> TickDecision {
        if is_running {
            return TickDecision::default();
        }
        let Some(wall) =
            chrono::TimeDelta::from_std(self.delay).ok().and_then(|delay| now.wall.checked_sub_signed(delay))
        else {
            return TickDecision::default();
        };
        let passed = passed(cron, self.pivot, wall);
        let (Some(&oldest), Some(&newest)) = (passed.first(), passed.last()) else {
            return TickDecision::default();
        };
        let is_on_time = wall - newest <= CRON_TOLERANCE;
        let missed = passed.len() as u64 - u64::from(is_on_time);
        let (due, late) = match cron.misfire {
            LoopMisfire::Skip => (is_on_time.then_some(newest), missed),
            LoopMisfire::Once => (Some(newest), passed.len() as u64 - 1),
            LoopMisfire::All => (Some(oldest), 0),
        };
        self.pivot = if cron.misfire == LoopMisfire::All { oldest } else { newest };
        self.is_running = due.is_some();
        let run = due.map(|due| {
            let behind = (now.wall - due).to_std().unwrap_or_default().saturating_sub(self.delay);
            let wall = due + chrono::TimeDelta::from_std(self.delay).unwrap_or_default();
            ClockMoment { instant: now.instant.checked_sub(behind).unwrap_or(now.instant), wall }
        });
        self.draw_delay();
        TickDecision { run, late, overlapped: 0 }
    }

    fn draw_delay(&mut self) {
        self.delay = self.jitter.mul_f64((self.random)().clamp(0.0, 1.0));
    }
}

/// Returns the due times after `pivot` and up to `now`: the newest [`MAX_MISSED`] if there are more.
#[cfg(feature = "cron")]
fn passed(cron: &CronPace, pivot: DateTime<Utc>, now: DateTime<Utc>) -> Vec<DateTime<Utc>> {
    let due_times = |from: DateTime<Utc>| {
        std::iter::successors(cron.expression.next_after(cron.zone, from), |due| {
            cron.expression.next_after(cron.zone, *due)
        })
        .take_while(move |due| *due <= now)
    };
    let mut from = pivot;
    loop {
        let found: Vec<_> = due_times(from).take(2 * MAX_MISSED).collect();
        if found.len() < 2 * MAX_MISSED {
            return found[found.len().saturating_sub(MAX_MISSED)..].to_vec();
        }
        // An expression that is due each second has many due times in a long sleep: halve the time instead of counting.
        from = found[MAX_MISSED].max(now - (now - from) / 2);
    }
}

fn later(moment: ClockMoment, by: Duration) -> ClockMoment {
    let wall = chrono::TimeDelta::from_std(by).ok().and_then(|by| moment.wall.checked_add_signed(by));
    ClockMoment { instant: moment.instant + by, wall: wall.unwrap_or(moment.wall) }
}

fn nanos(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

/// Returns the time until the next multiple of the period since 1970.
fn until_grid(wall: DateTime<Utc>, period: Duration) -> Duration {
    let since_1970 = u128::try_from(wall.timestamp_nanos_opt().unwrap_or_default()).unwrap_or_default();
    let period = period.as_nanos().max(1);
    nanos(period - since_1970 % period)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(base: ClockMoment, ms: u64) -> ClockMoment {
        later(base, Duration::from_millis(ms))
    }

    fn midnight() -> ClockMoment {
        ClockMoment { instant: Instant::now(), wall: "2026-03-29T00:00:00Z".parse().expect("a time") }
    }

    fn pacer(pace: LoopPace, base: ClockMoment) -> LoopPacer {
        LoopPacer::new(pace, Duration::ZERO, || 0.5, base, None)
    }

    #[test]
    fn interval_counts_from_the_end_of_the_run() {
        let base = midnight();
        let mut pacer = pacer(LoopPace::Interval(SECOND), base);
        assert_eq!(pacer.tick(base, false).run, Some(base), "the first run starts at once");
        assert_eq!(pacer.wake_at(base), None, "the next run waits for the end of this one");
        pacer.ended(at(base, 700));
        assert_eq!(pacer.wake_at(base), Some(at(base, 1700).instant));
        assert_eq!(pacer.tick(at(base, 1699), false), TickDecision::default());
    }

    #[test]
    fn interval_continues_from_the_last_leader() {
        let base = midnight();
        let new = |since| LoopPacer::new(LoopPace::Interval(SECOND), Duration::ZERO, || 0.5, base, Some(since));
        assert_eq!(new(Duration::from_millis(300)).wake_at(base), Some(at(base, 700).instant));
        assert_eq!(new(2 * SECOND).wake_at(base), Some(base.instant));
    }

    #[test]
    fn grid_has_the_multiples_of_the_period() {
        let midnight = midnight();
        let base = at(midnight, 130);
        let mut pacer = pacer(LoopPace::FixedRate(Duration::from_millis(100)), base);
        assert_eq!(pacer.wake_at(base), Some(at(base, 70).instant));
        let decision = pacer.tick(at(base, 71), false);
        assert_eq!(decision.run, Some(at(midnight, 200)));
        assert_eq!(pacer.wake_at(base), Some(at(base, 170).instant), "the next tick does not drift");
    }

    #[test]
    fn stall_is_followed_by_one_run_and_no_burst() {
        let base = midnight();
        let mut pacer = pacer(LoopPace::FixedRate(Duration::from_millis(100)), base);
        let decision = pacer.tick(at(base, 1050), false);
        assert_eq!((decision.run, decision.late), (Some(at(base, 1000)), 9));
        assert_eq!(pacer.tick(at(base, 1051), false), TickDecision::default());
        assert_eq!(pacer.wake_at(base), Some(at(base, 1100).instant));
    }

    #[test]
    fn tick_during_a_run_is_dropped() {
        let base = midnight();
        let mut pacer = pacer(LoopPace::FixedRate(Duration::from_millis(100)), base);
        assert!(pacer.tick(at(base, 100), false).run.is_some());
        for ms in [200, 300] {
            assert_eq!(pacer.tick(at(base, ms), true), TickDecision { overlapped: 1, ..TickDecision::default() });
        }
        pacer.ended(at(base, 350));
        assert!(pacer.tick(at(base, 400), false).run.is_some());
    }

    #[test]
    fn jitter_delays_each_due_time() {
        let base = midnight();
        let mut pacer = LoopPacer::new(LoopPace::FixedRate(SECOND), SECOND / 2, || 0.5, base, None);
        assert_eq!(pacer.wake_at(base), Some(at(base, 1250).instant));
        assert_eq!(pacer.tick(at(base, 1249), false), TickDecision::default());
        assert_eq!(pacer.tick(at(base, 1250), false).run, Some(at(base, 1250)));
        assert_eq!(pacer.wake_at(base), Some(at(base, 2250).instant));
    }

    #[test]
    fn longest_interval_fits_the_clock() {
        let base = midnight();
        let year = Duration::from_secs(366 * 24 * 3600);
        let mut pacer = pacer(LoopPace::Interval(year), base);
        assert!(pacer.tick(base, false).run.is_some());
        pacer.ended(base);
        assert_eq!(pacer.wake_at(base), Some(base.instant + year));
    }

    #[cfg(feature = "cron")]
    mod cron {
        use super::*;

        fn cron(text: &str, zone: Tz, misfire: LoopMisfire) -> LoopPace {
            let expression = CronExpression::parse(text).expect("a valid expression");
            LoopPace::Cron(CronPace { text: text.to_owned(), expression, zone, misfire })
        }

        fn every_second(misfire: LoopMisfire) -> LoopPace {
            cron("* * * * * *", Tz::UTC, misfire)
        }

        #[test]
        fn zone_decides_and_a_skipped_hour_runs_once() {
            // Berlin has no 02:30 on 29 March 2026: the clock goes from 02:00 to 03:00, at 01:00 UTC.
            let base = midnight();
            let mut pacer = pacer(cron("0 30 2 * * *", Tz::Europe__Berlin, LoopMisfire::Skip), base);
            let due = (0..24 * 60).map(|minute| at(base, minute * 60_000)).filter(|now| {
                let decision = pacer.tick(*now, false);
                if decision.run.is_some() {
                    pacer.ended(*now);
                }
                decision.run.is_some()
            });
            let walls: Vec<_> = due.map(|moment| moment.wall.to_string()).collect();
            assert_eq!(walls, ["2026-03-29 01:00:00 UTC"]);
        }

        #[test]
        fn long_wait_is_cut_into_pieces() {
            let base = midnight();
            let pacer = pacer(cron("0 0 12 * * *", Tz::UTC, LoopMisfire::Skip), base);
            assert_eq!(pacer.wake_at(base), Some(base.instant + MAX_CRON_WAIT));
        }

        #[test]
        fn due_time_never_runs_twice_when_the_clock_goes_back() {
            let base = midnight();
            let mut pacer = pacer(every_second(LoopMisfire::Skip), base);
            let first = pacer.tick(at(base, 1000), false).run.expect("a run");
            pacer.ended(at(base, 1010));
            let back = ClockMoment { wall: base.wall - chrono::TimeDelta::hours(1), ..at(base, 1020) };
            assert_eq!(pacer.tick(back, false), TickDecision::default());
            let again = ClockMoment { wall: base.wall + chrono::TimeDelta::seconds(2), ..at(base, 2000) };
            assert!(pacer.tick(again, false).run.expect("a run").wall > first.wall);
        }

        #[test]
        fn missed_due_times_follow_the_policy() {
            // The process was suspended from 0 to 5.4 s, or a run took as long.
            for (misfire, runs, dropped) in
                [(LoopMisfire::Skip, 1, 4), (LoopMisfire::Once, 1, 4), (LoopMisfire::All, 5, 0)]
            {
                let base = midnight();
                let mut pacer = pacer(every_second(misfire), base);
                let now = at(base, 5400);
                let (mut started, mut late) = (0, 0);
                loop {
                    let decision = pacer.tick(now, false);
                    late += decision.late;
                    if decision.run.is_none() {
                        break;
                    }
                    started += 1;
                    pacer.ended(now);
                }
                assert_eq!((started, late), (runs, dropped), "{misfire:?}");
            }
        }

        #[test]
        fn slow_run_stays_on_the_grid() {
            let base = midnight();
            let mut pacer = pacer(every_second(LoopMisfire::Skip), base);
            assert!(pacer.tick(at(base, 1000), false).run.is_some());
            assert_eq!(pacer.wake_at(at(base, 1000)), None);
            let dropped = pacer.ended(at(base, 4500)).overlapped;
            assert_eq!(dropped, 3);
            assert_eq!(pacer.wake_at(at(base, 4500)), Some(at(base, 5000).instant));
        }

        #[test]
        fn suspended_day_is_bounded() {
            let base = midnight();
            let mut pacer = pacer(every_second(LoopMisfire::All), base);
            let decision = pacer.tick(at(base, 24 * 3_600_000), false);
            let due = decision.run.expect("a run").wall;
            assert!((at(base, 24 * 3_600_000).wall - due).num_seconds() < 1000, "{due}");
        }
    }
}
