//! The delays between attempts to reach a service.
//!
//! Server, workers, clients and the dashboard wait in the same way, so that no service that comes back is asked by all of
//! them at once. The caller draws the random number of the jitter, because this crate has no source of randomness.

use std::time::Duration;

/// Exponential backoff: a delay that doubles with each failure in a row, between two bounds. The default is that of a
/// connection, from 200 ms to 5 s; runs wait for it after an outage.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(200), Duration::from_secs(5))
    }
}

impl Backoff {
    /// Creates a backoff with the delay after the first failure and the longest one.
    #[must_use]
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, failures: 0 }
    }

    /// Returns the delay after a number of failures in a row, without jitter.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        self.min.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(self.max)
    }

    /// Counts a failure. Returns the delay after it, which jitter shortens by up to half. `random` is a number from 0 to 1;
    /// with 1 the delay has no jitter.
    pub fn next_delay(&mut self, random: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.after(self.failures).mul_f64(0.5 + 0.5 * random)
    }

    /// Starts again with the first delay.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Starts again with the first delay if there was no failure for `time` and this is longer than two of the longest
    /// delays. Something that fails as soon as it has started is then not started again at once.
    pub fn reset_after(&mut self, time: Duration) {
        if time > 2 * self.max {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(backoff: &mut Backoff, random: f64) -> u128 {
        backoff.next_delay(random).as_millis()
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        assert_eq!([1.0; 7].map(|random| millis(&mut backoff, random)), [200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(
            [0, 1, 2, 33, u32::MAX].map(|failures| backoff.after(failures).as_millis()),
            [200, 200, 400, 5_000, 5_000]
        );
    }

    #[test]
    fn jitter_shortens_a_delay_by_up_to_half() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(16));
        assert_eq!([0.0, 0.5, 1.0].map(|random| millis(&mut backoff, random)), [500, 1_500, 4_000]);
    }

    #[test]
    fn delays_start_again_after_a_success_or_a_long_time() {
        let mut backoff = Backoff::default();
        let mut after = |change: fn(&mut Backoff)| {
            backoff.next_delay(1.0);
            change(&mut backoff);
            millis(&mut backoff, 1.0)
        };
        assert_eq!(after(Backoff::reset), 200);
        assert_eq!(after(|backoff| backoff.reset_after(Duration::from_secs(10))), 800, "too short");
        assert_eq!(after(|backoff| backoff.reset_after(Duration::from_secs(11))), 200);
    }
}
