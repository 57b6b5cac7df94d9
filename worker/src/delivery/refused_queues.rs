//! The job queues that the broker refuses to this worker.
//!
//! A queue that exists with other arguments, or that this account may not use, concerns one job type. The worker consumes
//! the others, tries the refused queue again from time to time, and shows it in the notice of its heartbeats.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A job type, and true if its queue of critical runs is meant.
type QueueKey = (&'static str, bool);

/// The refused queues. Clones share the same list.
#[derive(Clone, Default)]
pub(crate) struct RefusedQueues(Arc<Mutex<BTreeMap<QueueKey, RefusedQueue>>>);

struct RefusedQueue {
    name: String,
    reason: String,
}

impl RefusedQueues {
    /// Records a queue as refused. Returns true if it was not before.
    pub(crate) fn insert(&self, key: QueueKey, name: String, reason: String) -> bool {
        self.lock().insert(key, RefusedQueue { name, reason }).is_none()
    }

    /// Records that a queue is consumed.
    pub(crate) fn remove(&self, key: QueueKey) {
        self.lock().remove(&key);
    }

    /// Returns the text for the next heartbeat, or `None` if no queue is refused.
    pub(crate) fn notice(&self) -> Option<String> {
        let queues = self.lock();
        let texts: Vec<String> = queues
            .iter()
            .map(|((job_type, is_critical), RefusedQueue { name, reason })| {
                let what = if *is_critical { "critical messages" } else { "messages" };
                format!(
                    "Job type {job_type} receives no {what}: the broker refuses queue {name} ({reason}). Delete the queue or permit its use."
                )
            })
            .collect();
        (!texts.is_empty()).then(|| texts.join(" "))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<QueueKey, RefusedQueue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
