//! A timer that fires within some tens of microseconds of its instant.
//!
//! The timers of the runtime count in whole milliseconds and round up twice, so each tick would be late by 2 ms on an idle
//! machine. The timers of `futures-timer` have a thread that waits without such a unit. Two threads must wake up until the
//! loop goes on, and on a busy machine each of them waits for a core. The timer is therefore set to a moment before its
//! instant, and the thread of the loops sleeps for the rest: most of such a wait is over when the instant comes. Another
//! loop of the thread is delayed by that rest at most. A test on a paused clock uses the timer of the runtime.

use std::{thread, time::Duration};

use futures_timer::Delay;
use tokio::time::{Instant, sleep_until};

/// The time before its instant at which the timer fires.
const LEAD: Duration = Duration::from_micros(700);

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
        delay.await;
        thread::sleep(instant.saturating_duration_since(Instant::now()));
    }
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
