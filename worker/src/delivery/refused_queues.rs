//! The job queues that the broker refuses to this worker.
//!
//! A queue that exists with other arguments, or that this account may not use, concerns one job type. The worker consumes
//! the others, tries the refused queue again from time to time, and shows it in the notice of its heartbeats.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The refused queues, by their job types. Clones share the same list.
#[derive(Clone, Default)]
pub(crate) struct RefusedQueues(Arc<Mutex<BTreeMap<&'static str, RefusedQueue>>>);

struct RefusedQueue {
    name: String,
    reason: String,
}

impl RefusedQueues {
    /// Records the queue of a job type as refused. Returns true if it was not before.
    pub(crate) fn insert(&self, job_type: &'static str, name: String, reason: String) -> bool {
        self.lock().insert(job_type, RefusedQueue { name, reason }).is_none()
    }

    /// Records that the queue of a job type is consumed.
    pub(crate) fn remove(&self, job_type: &'static str) {
        self.lock().remove(job_type);
    }

    /// Returns the text for the next heartbeat, or `None` if no queue is refused.
    pub(crate) fn notice(&self) -> Option<String> {
        let queues = self.lock();
        let texts: Vec<String> = queues
            .iter()
            .map(|(job_type, RefusedQueue { name, reason })| {
                format!(
                    "Job type {job_type} receives no messages: the broker refuses queue {name} ({reason}). Delete the queue or permit its use."
                )
            })
            .collect();
        (!texts.is_empty()).then(|| texts.join(" "))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, RefusedQueue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
