//! Which messages of a queue the broker has lost.
//!
//! There are two proofs. More occurrences wait for long than messages exist: those at the broker and those that busy
//! workers may have prefetched. This finds a broker that was emptied, but not a few lost messages behind many that wait:
//! each of those may be the message of an old occurrence. The second proof needs no count of messages. A queue delivers
//! messages of one priority in their order, so an occurrence that still waits although a later one has left the queue has
//! no message.
//!
//! Critical runs may have a queue of their own. It is compared for itself, with the runs whose message was sent to it: a
//! critical run that waits in the queue of its job type is overtaken by those of the other queue.
//!
//! A message may have several runs. Each counts as if it had as many as the largest that was ever sent, in both proofs: then
//! no run is sent again whose message exists, and fewer of the lost ones are found by counting.

use chrono::{DateTime, Utc};

/// The instants of a count of all queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    /// The instant of the count.
    pub at: DateTime<Utc>,
    /// Messages that were confirmed before this instant are old: only they are sent again.
    pub old_before: DateTime<Utc>,
}

/// The queued occurrences of one queue whose messages should be at the broker or with a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBacklog {
    /// The worker they are addressed to.
    pub worker_id: String,
    /// The job type they run.
    pub job_type: String,
    /// True for the queue of the critical runs of that type.
    pub is_critical: bool,
    /// True if the broker has counted a consumer of the queue.
    pub is_consumed: bool,
    /// Number of their messages that busy workers may have prefetched.
    pub prefetched: i64,
    /// The largest number of runs in one of their messages, at least 1.
    pub bundle_size: i64,
    /// The priorities with old messages.
    pub levels: Vec<PriorityBacklog>,
}

/// The occurrences of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityBacklog {
    /// The priority.
    pub priority: i16,
    /// Number of old ones.
    pub old: i64,
    /// Number of those that are not old.
    pub young: i64,
    /// Number that was old at the earlier count.
    pub old_left: i64,
    /// Number that was young at the earlier count.
    pub young_left: i64,
}

impl QueueBacklog {
    /// Returns the worker id, the job type, and true for the queue of critical runs.
    #[must_use]
    pub fn key(&self) -> (&str, &str, bool) {
        (&self.worker_id, &self.job_type, self.is_critical)
    }

    /// Returns the number of all occurrences.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.levels.iter().map(|level| level.old + level.young).sum()
    }

    /// Returns true if its messages must be sent to the queue of the job type instead, because no instance will take them.
    /// `has_slots` is true if a live instance announces reserved slots. Without a consumer it may be connecting, and is given
    /// the time between two counts.
    #[must_use]
    pub fn is_stranded(&self, has_slots: bool, earlier: Option<&Self>) -> bool {
        let has_been_left = earlier.is_some_and(|earlier| !earlier.is_consumed);
        self.is_critical && !self.is_consumed && (!has_slots || has_been_left)
    }

    /// Returns the number of old occurrences.
    #[must_use]
    pub fn old(&self) -> i64 {
        self.levels.iter().map(|level| level.old).sum()
    }

    /// Returns the number of runs that may be in the messages of busy workers and in the `at_broker` messages of the queue.
    #[must_use]
    pub fn held(&self, at_broker: i64) -> i64 {
        (self.prefetched + at_broker).saturating_mul(self.bundle_size)
    }

    /// Returns the number of runs without a message if `held` have one.
    #[must_use]
    pub fn missing(&self, held: i64) -> i64 {
        (self.old() - held).max(0)
    }

    /// Returns the priorities of which occurrences were overtaken since an `earlier` count of this queue, and the number
    /// of these occurrences without those whose messages may be prefetched.
    #[must_use]
    pub fn overtaken(&self, earlier: &Self) -> Vec<(i16, i64)> {
        let mut prefetched = self.held(0);
        let mut overtaken = Vec::new();
        for level in &self.levels {
            let before = earlier.levels.iter().find(|before| before.priority == level.priority);
            if before.is_some_and(|before| level.young_left < before.young) {
                let held = prefetched.min(level.old_left);
                prefetched -= held;
                if level.old_left > held {
                    overtaken.push((level.priority, level.old_left - held));
                }
            }
        }
        overtaken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(prefetched: i64, levels: &[PriorityBacklog]) -> QueueBacklog {
        let (worker_id, job_type) = ("w".into(), "t".into());
        let levels = levels.to_vec();
        QueueBacklog { worker_id, job_type, is_critical: false, is_consumed: true, prefetched, bundle_size: 1, levels }
    }

    fn level(priority: i16, old: i64, young: i64) -> PriorityBacklog {
        PriorityBacklog { priority, old, young, old_left: 0, young_left: 0 }
    }

    fn missing(queue: &QueueBacklog, at_broker: i64) -> i64 {
        queue.missing(queue.held(at_broker))
    }

    #[test]
    fn messages_that_are_nowhere_are_missing() {
        assert_eq!(missing(&queue(0, &[level(3, 5, 0)]), 5), 0);
        assert_eq!(missing(&queue(0, &[level(3, 4, 0), level(5, 1, 0)]), 2), 3);
        assert_eq!(missing(&queue(3, &[level(3, 5, 0)]), 2), 0, "three are with busy workers");
        assert_eq!(missing(&queue(0, &[level(3, 5, 0)]), 8), 0, "three are there twice");
    }

    #[test]
    fn each_message_may_have_as_many_runs_as_the_largest() {
        let in_bundles =
            |prefetched, levels: &[PriorityBacklog]| QueueBacklog { bundle_size: 10, ..queue(prefetched, levels) };
        assert_eq!(missing(&in_bundles(0, &[level(3, 90, 0)]), 9), 0, "nine messages of ten");
        assert_eq!(missing(&in_bundles(2, &[level(3, 90, 0)]), 7), 0, "two of them with busy workers");
        assert_eq!(missing(&in_bundles(0, &[level(3, 90, 0)]), 0), 90, "all are found at once");
        assert_eq!(missing(&in_bundles(0, &[level(3, 101, 0)]), 10), 1);
        assert_eq!(missing(&in_bundles(0, &[level(3, 5, 0)]), i64::from(u32::MAX)), 0, "of an unknown number");
        let before = queue(0, &[level(3, 50, 10)]);
        let left = PriorityBacklog { old_left: 50, young_left: 9, ..level(3, 60, 3) };
        assert_eq!(in_bundles(4, &[left]).overtaken(&before), [(3, 10)], "four messages may hold forty");
        assert_eq!(in_bundles(5, &[left]).overtaken(&before), []);
    }

    #[test]
    fn critical_messages_are_stranded_without_a_consumer() {
        let critical = |is_consumed| QueueBacklog { is_critical: true, is_consumed, ..queue(0, &[level(5, 0, 2)]) };
        let (consumed, left) = (critical(true), critical(false));
        assert_eq!(left.total(), 2, "also the young ones");
        assert!(left.is_stranded(false, None), "no instance has slots");
        assert!(!left.is_stranded(true, None) && !left.is_stranded(true, Some(&consumed)), "one may be connecting");
        assert!(left.is_stranded(true, Some(&left)), "one announces slots and does not consume");
        assert!(!consumed.is_stranded(false, Some(&left)), "one consumes although its heartbeats stay out");
        let of_job_type = QueueBacklog { is_critical: false, ..left.clone() };
        assert!(!of_job_type.is_stranded(false, Some(&of_job_type)), "messages wait for the next instance");
    }

    #[test]
    fn an_old_message_that_a_young_one_has_overtaken_is_lost() {
        let before = queue(0, &[level(3, 5, 10), level(5, 2, 10)]);
        let left = |priority, old_left, young_left| PriorityBacklog { old_left, young_left, ..level(priority, 7, 3) };
        assert_eq!(queue(0, &[left(3, 5, 9)]).overtaken(&before), [(3, 5)]);
        assert_eq!(queue(0, &[left(3, 5, 10)]).overtaken(&before), [], "nothing has left the queue");
        assert_eq!(queue(0, &[left(3, 1, 10)]).overtaken(&before), [], "old ones leave it in their order");
        assert_eq!(queue(0, &[left(3, 5, 10), left(5, 2, 0)]).overtaken(&before), [(5, 2)], "each priority for itself");
        assert_eq!(queue(4, &[left(3, 5, 9), left(5, 2, 9)]).overtaken(&before), [(3, 1), (5, 2)]);
        assert_eq!(queue(5, &[left(3, 5, 9)]).overtaken(&before), [], "all may be with busy workers");
        assert_eq!(queue(0, &[left(4, 5, 9)]).overtaken(&before), [], "not counted before");
    }
}
