//! A timer that fires within some tens of microseconds of its instant.
//!
//! The timers of the runtime count in whole milliseconds and round up twice, so each tick would be late by 2 ms on an idle
//! machine. The timers of `futures-timer` have a thread that waits without such a unit. Two threads must wake up until the
//! loop goes on, and on a busy machine each of them waits for a core. The timer is therefore set to a moment before its
//! instant, and the thread of the loops sleeps for the rest: most of such a wait is over when the instant comes. Another
//! loop of the thread is delayed by that rest. The thread also renews the leases, so after a sleep it is free for at least as
//! long as the next one would take: a timer that fires earlier waits for its rest without the thread. A test on a paused
//! clock uses the timer of the runtime.

use std::{cell::Cell, thread, time::Duration};

use futures_timer::Delay;
use tokio::time::{Instant, sleep_until};

/// The time before its instant at which the timer fires.
const LEAD: Duration = Duration::from_micros(700);

thread_local! {
    /// The end of the last sleep of this thread.
    static SLEPT_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The timer of one loop.
pub(crate) struct LoopTimer {
    /// The precise timer and the instant it is set to; none if the clock of the runtime counts.
    precise: Option<(Delay, Instant)>,
}

impl LoopTimer {
    /// Creates the timer of a loop that runs on the clock of the machine.
    pub(crate) fn precise() -> Self {
        let now = Instant::now();
        Self { precise: Some((Delay::new(Duration::ZERO), now)) }
    }

    /// Creates the timer of a loop in a test, which follows the clock of the runtime.
    pub(crate) const fn of_the_runtime() -> Self {
        Self { precise: None }
    }

    /// Waits until an instant.
    pub(crate) async fn sleep_until(&mut self, instant: Instant) {
        let Some((delay, set_to)) = &mut self.precise else { return sleep_until(instant).await };
        if *set_to != instant {
            delay.reset(instant.saturating_duration_since(Instant::now()).saturating_sub(LEAD));
            *set_to = instant;
        }
        (&mut *delay).await;
        let now = Instant::now();
        let rest = instant.saturating_duration_since(now);
        if rest.is_zero() {
            return;
        }
        if may_sleep(rest, SLEPT_UNTIL.get(), now) {
            thread::sleep(rest);
            SLEPT_UNTIL.set(Some(Instant::now()));
        } else {
            delay.reset(rest);
            delay.await;
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

    #[tokio::test]
    async fn precise_timer_is_never_early() {
        let mut timer = LoopTimer::precise();
        for microseconds in [0, 300, 2500] {
            let instant = Instant::now() + Duration::from_micros(microseconds);
            timer.sleep_until(instant).await;
            assert!(Instant::now() >= instant);
        }
    }

    #[tokio::test]
    async fn timers_of_many_loops_are_never_early() {
        let begin = Instant::now();
        // Closer to each other than a sleep takes.
        let waits = (1..=50).map(|n| async move {
            let instant = begin + Duration::from_micros(n * 100);
            LoopTimer::precise().sleep_until(instant).await;
            assert!(Instant::now() >= instant);
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
        let mut timer = LoopTimer::precise();
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
