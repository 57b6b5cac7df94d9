//! The activators: notifications that make a service tick before its period has passed.
//!
//! An activation says only that there may be work. It reaches the services of this server, not those of others.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use milvaion_protocol::id::JobId;
use tokio::sync::Notify;

use crate::domain::duplicates::LateRun;

/// One activator per service that other code may activate. Clones share the activators.
#[derive(Clone, Debug, Default)]
pub struct Activators {
    /// Activates the dispatcher after the schedule has changed.
    pub dispatcher: Arc<Notify>,
    /// Activates the due index rebuild when the index in Redis may be incomplete.
    pub due_index: Arc<Notify>,
    /// Activates the republisher after a message could not be published.
    pub republisher: Arc<Notify>,
    /// Activates the slot granter when a slot is free or an occurrence waits for one.
    pub slot_granter: Arc<Notify>,
    /// Activates auto-disable after a failure.
    pub auto_disable: Arc<Notify>,
    /// Activates the cancellation repeater after a cancel request.
    pub cancellation_repeater: Arc<Notify>,
    /// The jobs of which a run has just ended, for the slot granter.
    pub ended_jobs: EndedJobs,
    /// The runs whose occurrence has ended, for the cancellation repeater.
    pub late_runs: LateRuns,
}

/// Jobs whose pause after the end of a run may begin. Clones share the set.
///
/// Looking at all jobs with such a pause at each end of a run would take longer the more of them run. The set makes the
/// usual ends quick: those that a worker reports, and cancellations. The slot granter finds the others in its period.
#[derive(Clone, Debug, Default)]
pub struct EndedJobs(Arc<Mutex<HashSet<JobId>>>);

impl EndedJobs {
    /// Adds jobs.
    pub fn add(&self, jobs: impl IntoIterator<Item = JobId>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(jobs);
    }

    /// Takes all jobs out of the set.
    #[must_use]
    pub fn take(&self) -> Vec<JobId> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect()
    }
}

/// Runs that were reported although their occurrence has ended, to be asked to stop. Clones share the list.
///
/// The list only makes the usual case quick. A run that it has lost, with the server or because Redis was away, is found in
/// the heartbeats of its worker.
#[derive(Clone, Debug, Default)]
pub struct LateRuns(Arc<Mutex<Vec<LateRun>>>);

impl LateRuns {
    /// Adds runs.
    pub fn add(&self, runs: Vec<LateRun>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(runs);
    }

    /// Takes all runs out of the list.
    #[must_use]
    pub fn take(&self) -> Vec<LateRun> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
