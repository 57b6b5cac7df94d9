//! Pauses between attempts to reach what is away.

use std::time::Duration;

/// The first pause.
const SHORTEST: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses between attempts: doubling up to ten seconds, jittered so that servers do not come back in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: SHORTEST }
    }
}

impl Backoff {
    /// How long to wait now.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        pause.mul_f64(0.5 + 0.5 * rand::random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..12).map(|_| backoff.pause()).collect();
        assert!(pauses[0] <= SHORTEST && pauses[0] >= SHORTEST / 2);
        assert!(pauses[11] <= LONGEST && pauses[11] >= LONGEST / 2);
    }
}
