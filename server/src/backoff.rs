//! Pauses between attempts to reach what is away.

use std::time::Duration;

/// The first pause.
const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(10);

/// Pauses between attempts: doubling up to ten seconds, jittered so that servers do not come back in step.
#[derive(Debug)]
pub(crate) struct ReconnectBackoff {
    next: Duration,
}

impl Default for ReconnectBackoff {
    fn default() -> Self {
        Self { next: MIN_RECONNECT_PAUSE }
    }
}

impl ReconnectBackoff {
    /// How long to wait now.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(MAX_RECONNECT_PAUSE);
        pause.mul_f64(0.5 + 0.5 * rand::random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut backoff = ReconnectBackoff::default();
        let pauses: Vec<Duration> = (0..12).map(|_| backoff.pause()).collect();
        assert!(pauses[0] <= MIN_RECONNECT_PAUSE && pauses[0] >= MIN_RECONNECT_PAUSE / 2);
        assert!(pauses[11] <= MAX_RECONNECT_PAUSE && pauses[11] >= MAX_RECONNECT_PAUSE / 2);
    }
}
