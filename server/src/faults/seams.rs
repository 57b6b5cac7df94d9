//! The seams: the places at which a fault test may disable a protection.
//!
//! The modules of the server call [`SEAMS`] there, and know nothing of the sabotage. Each default method is the server as
//! users have it. Only a build with the feature `faults` contains another implementation, in [`super::sabotage`].

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

use crate::{
    background::dispatcher::Dispatcher,
    broker::publisher::{ConfirmedMessage, OutgoingMessage},
    clock::Clock,
    domain::{
        declarations::InstanceDeclaration,
        lost_run::{LostRunDecision, StaleRun},
        message::QueuedOccurrence,
        transition::AttemptChange,
    },
    store::{
        Result, Store,
        enqueue::EnqueuedRun,
        plan::{DueJob, NewScheduledRun},
    },
};

/// The seams of this build.
#[cfg(not(feature = "faults"))]
pub(crate) static SEAMS: Untouched = Untouched;
/// The seams of this build.
#[cfg(feature = "faults")]
pub(crate) static SEAMS: super::sabotage::Sabotaged = super::sabotage::Sabotaged::new();

/// The server as users have it.
#[cfg(not(feature = "faults"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untouched;

#[cfg(not(feature = "faults"))]
impl Seams for Untouched {}

/// The places at which a protection may be disabled.
pub(crate) trait Seams: Sync {
    /// Returns the epoch that a leader's statements check.
    fn fence(&self, epoch: i64) -> Option<i64> {
        Some(epoch)
    }

    /// Changes the due jobs that PostgreSQL returned.
    fn due_jobs(
        &self,
        _dispatcher: &Dispatcher,
        _jobs: &mut Vec<DueJob>,
        _until: DateTime<Utc>,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Is called before occurrences are created. Returns those whose messages are sent already.
    fn before_creating(
        &self,
        _dispatcher: &Dispatcher,
        _jobs: &[DueJob],
        _runs: &[NewScheduledRun],
        _now: DateTime<Utc>,
    ) -> impl Future<Output = HashSet<OccurrenceId>> + Send {
        async { HashSet::new() }
    }

    /// Is called before due times are compared and swapped.
    fn before_swap(&self, _store: &Store, _runs: &[NewScheduledRun]) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns true if the broker must report a message that no queue takes.
    fn is_mandatory(&self) -> bool {
        true
    }

    /// Returns true if a message counts as sent only when the broker has confirmed it.
    fn waits_for_confirms(&self) -> bool {
        true
    }

    /// Is called after a publish with the messages that the broker confirmed.
    fn after_publish(
        &self,
        _store: &Store,
        _clock: &Clock,
        _messages: &[OutgoingMessage],
        _confirmed: &[ConfirmedMessage],
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Changes the unsent occurrences that are published again.
    fn unsent(&self, _found: &mut Vec<QueuedOccurrence>) {}

    /// Returns true if a batch is acknowledged before it is stored.
    fn acknowledges_first(&self) -> bool {
        false
    }

    /// Changes the reports that are about to be stored.
    fn reports(&self, _store: &Store, _changes: &mut [AttemptChange]) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Is called before enqueued occurrences are created.
    fn before_enqueueing(&self, _store: &Store, _runs: &[EnqueuedRun]) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Changes what live instances declare.
    fn declarations(&self, _instances: &mut [InstanceDeclaration]) {}

    /// Returns true if runs without a heartbeat may be lost. A server that could not hear them decides nothing.
    fn can_hear(&self, is_receiving: bool) -> bool {
        is_receiving
    }

    /// Removes the runs that are lost regardless of what this server could hear.
    fn take_lost(&self, _stale: &mut Vec<StaleRun>) -> Vec<(StaleRun, LostRunDecision)> {
        Vec::new()
    }
}
