//! Backoff between attempts to reconnect to a service.

use std::time::Duration;

/// Pause before the second attempt.
const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Upper limit of the pause. Runs wait for it after an outage of RabbitMQ.
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(5);

/// Exponential backoff up to five seconds, with jitter so that servers do not reconnect in step.
#[derive(Clone, Debug)]
pub(crate) struct ReconnectBackoff {
    next: Duration,
}

impl Default for ReconnectBackoff {
    fn default() -> Self {
        Self { next: MIN_RECONNECT_PAUSE }
    }
}

impl ReconnectBackoff {
    /// Returns the pause before the next attempt, and doubles the one after it.
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
    fn pauses_grow_to_a_limit() {
        let mut backoff = ReconnectBackoff::default();
        let pauses: Vec<Duration> = (0..12).map(|_| backoff.pause()).collect();
        assert!(pauses[0] <= MIN_RECONNECT_PAUSE && pauses[0] >= MIN_RECONNECT_PAUSE / 2);
        assert!(pauses[11] <= MAX_RECONNECT_PAUSE && pauses[11] >= MAX_RECONNECT_PAUSE / 2);
    }
}
