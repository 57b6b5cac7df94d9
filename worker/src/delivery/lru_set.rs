//! A bounded set of the attempts that most recently had a certain event.

use std::time::{Duration, Instant};

use hashlink::LruCache;

use crate::delivery::claim::AttemptKey;

/// Maximum number of attempts in a set: more than a process can have in progress.
const MAX_ATTEMPTS: usize = 10_000;

/// A set of attempts with the time of their insertion. When it is full, the oldest one is removed. An attempt that is
/// inserted again becomes the newest.
pub(crate) struct AttemptLruSet(LruCache<AttemptKey, Instant>);

impl Default for AttemptLruSet {
    fn default() -> Self {
        Self(LruCache::new(MAX_ATTEMPTS))
    }
}

impl AttemptLruSet {
    /// Inserts an attempt.
    pub(crate) fn insert(&mut self, attempt: AttemptKey) {
        self.0.insert(attempt, Instant::now());
    }

    /// Returns true if the attempt is in the set.
    pub(crate) fn contains(&self, attempt: AttemptKey) -> bool {
        self.0.contains_key(&attempt)
    }

    /// Removes an attempt. Returns true if it was inserted no longer than `within` ago.
    pub(crate) fn take(&mut self, attempt: AttemptKey, within: Duration) -> bool {
        self.0.remove(&attempt).is_some_and(|inserted| inserted.elapsed() <= within)
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;

    #[test]
    fn repeated_insert_and_take_evicts_nothing_else() {
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
        assert!(!recent.contains(attempt(1)), "the oldest one is evicted");
        assert!(!recent.take((attempt(3).0, 1), Duration::ZERO), "inserted too long ago");
    }
}
