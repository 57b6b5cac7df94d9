//! A timer that fires within some tens of microseconds of its instant.
//!
//! The timers of the runtime count in whole milliseconds and round up twice, so each tick would be late by 2 ms on an idle
//! machine. A [`PreciseTimer`] has a thread that waits without such a unit. Two threads must wake up until the loop goes on,
//! and on a busy machine each of them waits for a core. The timer is therefore set to a moment before its instant, and the
//! thread of the loops sleeps for the rest: most of such a wait is over when the instant comes. Another loop of the thread is
//! delayed by that rest. The thread also renews the leases, so after a sleep it is free for at least as long as the next one
//! would take: a timer that fires earlier waits for its rest without the thread. A test on a paused clock uses the timer of
//! the runtime.

use std::{cell::Cell, thread, time::Duration};

use milvaion_timer::PreciseTimer;
use tokio::time::{Instant, sleep_until};

/// The time before its instant at which the timer fires.
const LEAD: Duration = Duration::from_micros(700);

thread_local! {
    /// The end of the last sleep of this thread.
    static SLEPT_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The timer of one loop.
pub(crate) struct LoopTimer {
    /// The precise timer; none if the clock of the runtime counts.
    precise: Option<PreciseTimer>,
}

impl LoopTimer {
    /// Creates the timer of a loop that runs on the clock of the machine.
    pub(crate) const fn precise(timer: PreciseTimer) -> Self {
        Self { precise: Some(timer) }
    }

    /// Creates the timer of a loop in a test, which follows the clock of the runtime.
    pub(crate) const fn of_the_runtime() -> Self {
        Self { precise: None }
    }

    /// Waits until an instant.
    pub(crate) async fn sleep_until(&self, instant: Instant) {
        let Some(timer) = &self.precise else { return sleep_until(instant).await };
        timer.sleep_until(instant.checked_sub(LEAD).unwrap_or(instant).into_std()).await;
        let now = Instant::now();
        let rest = instant.saturating_duration_since(now);
        if rest.is_zero() {
            return;
        }
        if may_sleep(rest, SLEPT_UNTIL.get(), now) {
            thread::sleep(rest);
            SLEPT_UNTIL.set(Some(Instant::now()));
        } else {
            timer.sleep_until(instant.into_std()).await;
        }
    }
}

/// Returns true if the thread may sleep for `rest`: since its last sleep it was free for at least as long, so that it sleeps
/// for half of the time at most, however many loops it has.
fn may_sleep(rest: Duration, slept_until: Option<Instant>, now: Instant) -> bool {
    slept_until.is_none_or(|until| now.saturating_duration_since(until) >= rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn precise() -> LoopTimer {
        LoopTimer::precise(PreciseTimer::start("timer", Duration::ZERO).expect("the thread starts"))
    }

    #[tokio::test]
    async fn precise_timer_is_never_early() {
        let timer = precise();
        for microseconds in [0, 300, 2500] {
            let instant = Instant::now() + Duration::from_micros(microseconds);
            timer.sleep_until(instant).await;
            assert!(Instant::now() >= instant);
        }
    }

    #[tokio::test]
    async fn timers_of_many_loops_are_never_early() {
        let (timer, begin) = (precise(), Instant::now());
        // Closer to each other than a sleep takes.
        let waits = (1..=50).map(|n| {
            let instant = begin + Duration::from_micros(n * 100);
            let wait = timer.sleep_until(instant);
            async move {
                wait.await;
                assert!(Instant::now() >= instant);
            }
        });
        futures::future::join_all(waits).await;
    }

    #[test]
    fn thread_sleeps_for_half_of_the_time_at_most() {
        let (begin, step) = (Instant::now(), Duration::from_micros(50));
        // A thousand loops, one of which is due at each step and would sleep for the whole lead.
        let (mut now, mut slept, mut slept_until) = (begin, Duration::ZERO, None);
        while now < begin + Duration::from_secs(1) {
            if may_sleep(LEAD, slept_until, now) {
                (now, slept) = (now + LEAD, slept + LEAD);
                slept_until = Some(now);
            }
            now += step;
        }
        assert!(slept <= (now - begin) / 2 + LEAD, "{slept:?}");
    }

    #[tokio::test]
    async fn abandoned_wait_does_not_end_the_next_one() {
        let timer = precise();
        let soon = Instant::now() + Duration::from_millis(1);
        tokio::select! {
            biased;
            () = timer.sleep_until(soon) => {}
            () = std::future::ready(()) => {}
        }
        let later = Instant::now() + Duration::from_millis(20);
        timer.sleep_until(later).await;
        assert!(Instant::now() >= later, "the expiration of the first wait ended the second");
    }
}
