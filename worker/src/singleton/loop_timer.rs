//! A timer that fires within some tens of microseconds of its instant.
//!
//! The timers of the runtime count in whole milliseconds and round up twice, so each tick would be late by 2 ms on an idle
//! machine. The timers of `futures-timer` have a thread that waits without such a unit. A test on a paused clock uses the
//! timer of the runtime.

use futures_timer::Delay;
use tokio::time::{Instant, sleep_until};

/// The timer of one loop.
pub(crate) struct LoopTimer {
    /// The precise timer and the instant it is set to; none if the clock of the runtime counts.
    precise: Option<(Delay, Instant)>,
}

impl LoopTimer {
    /// Creates the timer of a loop that runs on the clock of the machine.
    pub(crate) fn precise() -> Self {
        let now = Instant::now();
        Self { precise: Some((Delay::new(std::time::Duration::ZERO), now)) }
    }

    /// Creates the timer of a loop in a test, which follows the clock of the runtime.
    pub(crate) const fn of_the_runtime() -> Self {
        Self { precise: None }
    }

    /// Waits until an instant.
    pub(crate) async fn sleep_until(&mut self, instant: Instant) {
        let Some((delay, set_to)) = &mut self.precise else { return sleep_until(instant).await };
        if *set_to != instant {
            delay.reset(instant.saturating_duration_since(Instant::now()));
            *set_to = instant;
        }
        delay.await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
