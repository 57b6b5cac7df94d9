//! The numbers of jobs for the overview, counted once for all viewers of this server.
//!
//! A count reads an index entry for each job, and an open overview is read again every second. A slow count is therefore
//! used again for a multiple of the time that it took, so counting takes up a few percent of a connection at most. With
//! some ten thousand jobs the numbers are current; with a million they are up to five seconds old.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::store::{Result, Store, jobs::JobCounts};

/// The longest time of a count that is repeated for each request.
const CHEAP: Duration = Duration::from_millis(20);
/// The time for which a slower count is used, as a multiple of the time that it took.
const AGE_PER_COST: u32 = 50;
/// The longest time for which a count is used.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Counts the jobs, and keeps the last count. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct JobCounter {
    last: Arc<Mutex<Option<TimedCount>>>,
    /// Held while the jobs are counted.
    counting: Arc<tokio::sync::Mutex<()>>,
}

/// A count with the time that it took.
#[derive(Clone, Copy, Debug)]
struct TimedCount {
    counts: JobCounts,
    begun: Instant,
    took: Duration,
}

impl TimedCount {
    fn max_age(self) -> Duration {
        if self.took < CHEAP { Duration::ZERO } else { (self.took * AGE_PER_COST).min(MAX_AGE) }
    }

    fn is_usable(self) -> bool {
        self.begun.elapsed() < self.max_age()
    }

    /// Returns true in the second half of the time for which it is used.
    fn is_due_again(self) -> bool {
        self.begun.elapsed() >= self.max_age() / 2
    }
}

impl JobCounter {
    /// Returns the numbers of jobs. While they are read again and again, they are counted in the background, and a
    /// request waits for a count only if it is the first one for a while. Concurrent requests wait for the same count.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](crate::store::StoreError) if PostgreSQL fails.
    pub async fn get(&self, store: &Store) -> Result<JobCounts> {
        let asked = Instant::now();
        if let Some(last) = self.last().filter(|last| last.is_usable()) {
            if last.is_due_again() {
                self.count_in_background(store);
            }
            return Ok(last.counts);
        }
        let _counting = self.counting.lock().await;
        // A count that began after the question is not too old, however fast it was.
        match self.last().filter(|last| last.begun >= asked || last.is_usable()) {
            Some(last) => Ok(last.counts),
            None => self.count(store).await,
        }
    }

    fn last(&self) -> Option<TimedCount> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn count(&self, store: &Store) -> Result<JobCounts> {
        let begun = Instant::now();
        let counts = store.job_counts().await?;
        let last = TimedCount { counts, begun, took: begun.elapsed() };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        Ok(counts)
    }

    fn count_in_background(&self, store: &Store) {
        let Ok(counting) = self.counting.clone().try_lock_owned() else { return };
        let (counter, store) = (self.clone(), store.clone());
        tokio::spawn(async move {
            let _counting = counting;
            // After an error the next request counts, and reports it.
            let _ = counter.count(&store).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slow_count_is_used_again() {
        let max_age = |took| {
            let took = Duration::from_millis(took);
            TimedCount { counts: JobCounts { active: 1, total: 2 }, begun: Instant::now(), took }.max_age()
        };
        assert_eq!(max_age(1), Duration::ZERO);
        assert_eq!(max_age(80), Duration::from_secs(4));
        assert_eq!(max_age(700), MAX_AGE);
    }
}
