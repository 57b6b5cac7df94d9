//! What happened a moment ago, to the newest so many attempts.

use std::time::{Duration, Instant};

use hashlink::LruCache;

use crate::delivery::claim::AttemptKey;

/// How many attempts a process remembers: more than it can have in hand.
const MAX_ATTEMPTS: usize = 10_000;

/// Attempts something happened to. Beyond 10,000 the oldest is forgotten; one that is noted again is the newest.
pub(crate) struct AttemptLruSet(LruCache<AttemptKey, Instant>);

impl Default for AttemptLruSet {
    fn default() -> Self {
        Self(LruCache::new(MAX_ATTEMPTS))
    }
}

impl AttemptLruSet {
    pub(crate) fn insert(&mut self, attempt: AttemptKey) {
        self.0.insert(attempt, Instant::now());
    }

    pub(crate) fn contains(&self, attempt: AttemptKey) -> bool {
        self.0.contains_key(&attempt)
    }

    /// Forgets an attempt; answers whether it was noted no longer than `within` ago.
    pub(crate) fn take(&mut self, attempt: AttemptKey, within: Duration) -> bool {
        self.0.remove(&attempt).is_some_and(|noted| noted.elapsed() <= within)
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;

    #[test]
    fn what_is_noted_and_taken_again_and_again_makes_nothing_else_forgotten() {
        let attempt = |n: u8| (OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [n; 10]), 1);
        let mut recent = AttemptLruSet::default();
        recent.insert(attempt(1));
        for _ in 0..3 * MAX_ATTEMPTS {
            recent.insert(attempt(2));
            assert!(recent.take(attempt(2), Duration::MAX));
        }
        assert!(recent.contains(attempt(1)) && !recent.contains(attempt(2)));
        for number in 1..=u32::try_from(MAX_ATTEMPTS).expect("small") {
            recent.insert((attempt(3).0, number));
        }
        assert!(!recent.contains(attempt(1)), "the oldest goes");
        assert!(!recent.take((attempt(3).0, 1), Duration::ZERO), "long ago");
    }
}
