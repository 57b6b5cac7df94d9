//! Job queues that the broker refuses: they exist with other arguments, the account may not declare them, or they reject
//! messages.
//!
//! Nothing is sent to such a queue for a while, at first for a second and at most for a minute. Each try concerns only its
//! own job type. The occurrences stay unsent, and start when the cause is removed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use milvaion_protocol::backoff::Backoff;
use tokio::time::Instant;

/// The first time for which a queue is parked. It doubles with each further refusal.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The longest time for which a queue is parked.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The parked queues by worker id and job type. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ParkedQueues(Arc<Mutex<HashMap<(String, String), Parked>>>);

#[derive(Clone, Copy, Debug)]
struct Parked {
    until: Instant,
    backoff: Backoff,
}

impl ParkedQueues {
    /// Parks a queue that was refused for `reason`. `consequence` says what becomes of its occurrences.
    pub(super) fn park(&self, key: (String, String), queue: &str, consequence: &str, reason: &str) {
        let now = Instant::now();
        let mut parked = self.lock();
        let before = parked.get(&key).copied();
        // One batch reports as many refusals as it has messages.
        if before.is_some_and(|before| before.until > now) {
            return;
        }
        let mut backoff = before.map_or(Backoff::new(MIN_PAUSE, MAX_PAUSE), |before| before.backoff);
        parked.insert(key, Parked { until: now + backoff.next_delay(1.0), backoff });
        tracing::warn!(
            queue.name = queue,
            reason,
            "the broker refuses queue {queue}, so its occurrences {consequence}; other queues are not affected. If it exists \
             with other arguments, delete it: its occurrences are sent again"
        );
    }

    /// Forgets the refusals of a queue that accepts messages.
    pub(super) fn release(&self, worker_id: &str, job_type: &str) {
        let mut parked = self.lock();
        if !parked.is_empty() {
            parked.remove(&(worker_id.to_owned(), job_type.to_owned()));
        }
    }

    /// Returns true if nothing is sent to the queue now.
    pub(super) fn contains(&self, key: &(String, String)) -> bool {
        self.lock().get(key).is_some_and(|parked| parked.until > Instant::now())
    }

    /// Returns the worker ids and job types of all queues to which nothing is sent now.
    pub(super) fn list(&self) -> Vec<(String, String)> {
        let now = Instant::now();
        self.lock().iter().filter(|(_, parked)| parked.until > now).map(|(key, _)| key.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Parked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_the_queue_accepts_a_message() {
        let queues = ParkedQueues::default();
        let key = || ("w".to_owned(), "t".to_owned());
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            queues.park(key(), "q", "wait", "refused");
            queues.park(key(), "q", "wait", "refused in the same batch");
            assert!(queues.contains(&key()));
            assert_eq!(queues.list(), [key()]);
            tokio::time::advance(Duration::from_secs(pause)).await;
            assert!(!queues.contains(&key()) && queues.list().is_empty(), "after {pause} s");
        }
        queues.release("w", "t");
        queues.park(key(), "q", "wait", "refused");
        tokio::time::advance(MIN_PAUSE).await;
        assert!(!queues.contains(&key()));
    }
}
