//! The attempts that this process runs, and those that it ran recently.
//!
//! The claim in Redis detects duplicates between processes. This table detects duplicates within one process, also
//! while Redis is unavailable. It also lists the claims that a heartbeat renews, and routes a cancel request to its
//! run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use milvaion_protocol::id::OccurrenceId;
use tokio::sync::watch;

use crate::{
    delivery::{cancel_request::CancelRequest, claim::AttemptKey, lru_set::AttemptLruSet},
    run::stop_signal::StopSignal,
};

/// The table of attempts. Clones share the same table.
#[derive(Clone, Default)]
pub(crate) struct RunTable(Arc<Mutex<RunTableState>>);

#[derive(Default)]
struct RunTableState {
    current: HashMap<AttemptKey, RunEntry>,
    ended: AttemptLruSet,
}

struct RunEntry {
    state: RunState,
    is_confirmed: bool,
    /// Notifies duplicates. Created for the first duplicate, because hardly any delivery has one.
    duplicates: Option<watch::Sender<bool>>,
}

enum RunState {
    /// The delivery waits for admission. Holds the reason of a cancellation that takes effect at its start.
    Waiting(Option<String>),
    /// The attempt runs.
    Begun(StopSignal),
    /// The run has ended, and its delivery or its report waits for the broker.
    Ended {
        /// True while the claim must be renewed, because the report of the end may be lost with this process.
        holds_claim: bool,
    },
}

/// The result of a reservation.
pub(crate) enum RunReservation {
    /// The attempt is not in the table. The entry is reserved until the guard is dropped.
    Reserved(RunGuard),
    /// Another delivery of the attempt is in the table. The receiver becomes true once the start of that delivery is
    /// confirmed, so that this duplicate is no longer needed. It closes if that delivery is dropped before.
    Duplicate(watch::Receiver<bool>),
    /// The attempt ended recently.
    Ended,
}

impl RunTable {
    /// Reserves the entry of an attempt.
    pub(crate) fn reserve(&self, occurrence: OccurrenceId, attempt: u32) -> RunReservation {
        let key = (occurrence, attempt);
        let mut table = self.lock();
        if let Some(entry) = table.current.get_mut(&key) {
            let is_confirmed = entry.is_confirmed;
            return RunReservation::Duplicate(
                entry.duplicates.get_or_insert_with(|| watch::Sender::new(is_confirmed)).subscribe(),
            );
        }
        if table.ended.contains(key) {
            return RunReservation::Ended;
        }
        table.current.insert(key, RunEntry { state: RunState::Waiting(None), is_confirmed: false, duplicates: None });
        RunReservation::Reserved(RunGuard { running: self.clone(), key })
    }

    /// Returns the attempts that have begun and not ended.
    pub(crate) fn begun(&self) -> Vec<AttemptKey> {
        self.attempts(|entry| matches!(entry.state, RunState::Begun(_)))
    }

    /// Returns the attempts whose claims this instance renews: those that run, and those that have ended without a report
    /// that survives this process.
    pub(crate) fn claimed(&self) -> Vec<AttemptKey> {
        self.attempts(|entry| matches!(entry.state, RunState::Begun(_) | RunState::Ended { holds_claim: true }))
    }

    /// Returns the attempts that have ended and whose start the broker has not confirmed.
    pub(crate) fn unconfirmed(&self) -> Vec<AttemptKey> {
        self.attempts(|entry| matches!(entry.state, RunState::Ended { .. }) && !entry.is_confirmed)
    }

    fn attempts(&self, is_wanted: impl Fn(&RunEntry) -> bool) -> Vec<AttemptKey> {
        self.lock().current.iter().filter(|(_, entry)| is_wanted(entry)).map(|(key, _)| *key).collect()
    }

    /// Applies a cancel request to the attempts of an occurrence. An attempt that waits is cancelled when it starts.
    pub(crate) fn cancel(&self, occurrence: OccurrenceId, request: &CancelRequest) {
        let mut table = self.lock();
        for ((_, attempt), entry) in table.current.iter_mut().filter(|((id, _), _)| *id == occurrence) {
            match &mut entry.state {
                _ if !request.applies_to(*attempt) => {}
                RunState::Begun(stop) => {
                    if stop.cancel_reason().is_none() {
                        tracing::info!(
                            occurrence.id = %occurrence,
                            occurrence.attempt = attempt,
                            reason = request.reason(),
                            "cancelling attempt {attempt} of occurrence {occurrence}"
                        );
                    }
                    stop.cancel(request.reason());
                }
                RunState::Waiting(reason) => *reason = Some(request.reason().to_owned()),
                RunState::Ended { .. } => {}
            }
        }
    }

    /// Interrupts the attempts of an occurrence below `first`, because the server revokes them: it receives no message of
    /// this instance. What they report is either late or hands the run back.
    pub(crate) fn revoke(&self, occurrence: OccurrenceId, first: u32) {
        let table = self.lock();
        for ((_, attempt), entry) in
            table.current.iter().filter(|((id, attempt), _)| *id == occurrence && *attempt < first)
        {
            if let RunState::Begun(stop) = &entry.state
                && !stop.is_revoked()
            {
                tracing::warn!(
                    occurrence.id = %occurrence,
                    occurrence.attempt = attempt,
                    "giving back attempt {attempt} of occurrence {occurrence}: the server receives no message of this instance; check the connection to RabbitMQ"
                );
                stop.revoke();
            }
        }
    }

    /// Interrupts an attempt that a later attempt on another instance has replaced. What it reports is late.
    pub(crate) fn end_superseded(&self, key: AttemptKey) {
        if let Some(RunEntry { state: RunState::Begun(stop), .. }) = self.lock().current.get(&key)
            && !stop.is_revoked()
        {
            tracing::warn!(
                occurrence.id = %key.0,
                occurrence.attempt = key.1,
                "ending attempt {} of occurrence {}: a later attempt runs elsewhere, because this instance sent no heartbeat for too long",
                key.1,
                key.0
            );
            stop.revoke();
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunTableState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reserved entry of one attempt, removed on drop.
pub(crate) struct RunGuard {
    running: RunTable,
    key: AttemptKey,
}

impl RunGuard {
    /// Records that the attempt runs and that `stop` ends it.
    pub(crate) fn begin(&self, stop: StopSignal) {
        if let RunState::Waiting(Some(reason)) = self.set(RunState::Begun(stop.clone())) {
            stop.cancel(&reason);
        }
    }

    /// Records that the attempt has ended here. Its claim is not renewed any more.
    pub(crate) fn end(&self) {
        self.set(RunState::Ended { holds_claim: false });
    }

    /// Records that the attempt has ended, and that the report of its end may still be lost with this process.
    pub(crate) fn end_unreported(&self) {
        self.set(RunState::Ended { holds_claim: true });
    }

    /// Records that the broker has confirmed the start, so that duplicates may be dropped.
    pub(crate) fn confirm(&self) {
        if let Some(entry) = self.running.lock().current.get_mut(&self.key) {
            entry.is_confirmed = true;
            if let Some(duplicates) = &entry.duplicates {
                duplicates.send_replace(true);
            }
        }
    }

    /// Sets the state and returns the previous one.
    fn set(&self, state: RunState) -> RunState {
        match self.running.lock().current.get_mut(&self.key) {
            Some(entry) => std::mem::replace(&mut entry.state, state),
            // Not reached, because the entry exists as long as its guard.
            None => RunState::Ended { holds_claim: false },
        }
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let mut table = self.running.lock();
        if table.current.remove(&self.key).is_some_and(|entry| !matches!(entry.state, RunState::Waiting(_))) {
            table.ended.insert(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::stop_signal::StopReason;

    #[test]
    fn attempt_is_reserved_once_and_remembered() {
        let running = RunTable::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let RunReservation::Reserved(guard) = running.reserve(id, 1) else { panic!("the table is empty") };
        assert!(matches!(running.reserve(id, 1), RunReservation::Duplicate(_)));
        assert!(matches!(running.reserve(id, 2), RunReservation::Reserved(_)));
        assert!(running.begun().is_empty());
        guard.begin(StopSignal::default());
        assert_eq!(running.begun(), [(id, 1)]);
        guard.end_unreported();
        assert!(running.begun().is_empty());
        assert_eq!(running.claimed(), [(id, 1)], "its report may still be lost with this process");
        guard.end();
        assert!(running.claimed().is_empty());
        assert!(matches!(running.reserve(id, 1), RunReservation::Duplicate(_)));
        drop(guard);
        assert!(matches!(running.reserve(id, 1), RunReservation::Ended));
    }

    #[test]
    fn cancel_request_reaches_begun_and_waiting_attempts() {
        let running = RunTable::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let reserve = |attempt| match running.reserve(id, attempt) {
            RunReservation::Reserved(guard) => guard,
            RunReservation::Duplicate(_) | RunReservation::Ended => panic!("the attempt is not in the table"),
        };
        let (guards, signals) = ([reserve(1), reserve(2), reserve(3)], [(); 3].map(|()| StopSignal::default()));
        guards[0].begin(signals[0].clone());
        guards[2].begin(signals[2].clone());
        running.cancel(id, &CancelRequest::read(r#"{"attempt": 2, "reason": "by ann"}"#));
        running.cancel(id, &CancelRequest::read(r#"{"attempt": 2, "reason": "once more"}"#));
        guards[1].begin(signals[1].clone());
        assert_eq!(signals.each_ref().map(StopSignal::cancel_reason), [Some("by ann"), Some("once more"), None]);
        assert_eq!(signals.map(|signal| signal.token().is_cancelled()), [true, true, false]);
    }

    #[test]
    fn revocation_interrupts_lower_attempts_that_have_begun() {
        let running = RunTable::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let reserve = |attempt| match running.reserve(id, attempt) {
            RunReservation::Reserved(guard) => guard,
            RunReservation::Duplicate(_) | RunReservation::Ended => panic!("the attempt is not in the table"),
        };
        let (guards, signals) = ([reserve(1), reserve(2)], [(); 2].map(|()| StopSignal::default()));
        guards[0].begin(signals[0].clone());
        guards[1].begin(signals[1].clone());
        running.revoke(id, 2);
        assert_eq!(signals.each_ref().map(StopSignal::is_revoked), [true, false]);
        assert_eq!(signals.each_ref().map(StopSignal::cancel_reason), [None, None]);
        assert_eq!(signals.map(|signal| signal.token().is_cancelled()), [true, false]);
    }

    #[test]
    fn superseded_attempt_is_revoked_and_not_cancelled() {
        let running = RunTable::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let RunReservation::Reserved(guard) = running.reserve(id, 1) else { panic!("the table is empty") };
        let signal = StopSignal::default();
        guard.begin(signal.clone());
        running.end_superseded((id, 2));
        assert_eq!(signal.stop_reason(), None, "another attempt");
        running.end_superseded((id, 1));
        assert_eq!(signal.stop_reason(), Some(StopReason::Revoked));
        assert!(signal.token().is_cancelled());
    }

    #[test]
    fn duplicate_is_notified_of_the_confirmed_start() {
        let running = RunTable::default();
        for n in 1..=2 {
            let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [n; 10]);
            let RunReservation::Reserved(guard) = running.reserve(id, 1) else { panic!("the table is empty") };
            let duplicate = || match running.reserve(id, 1) {
                RunReservation::Duplicate(safe) => safe,
                RunReservation::Reserved(_) | RunReservation::Ended => panic!("the attempt is in the table"),
            };
            // The first time a duplicate arrives before the confirmation, the second time none does.
            let early = (n == 1).then(duplicate);
            assert!(early.as_ref().is_none_or(|safe| !*safe.borrow()));
            guard.confirm();
            assert!(early.is_none_or(|safe| *safe.borrow()) && *duplicate().borrow());
        }
    }

    #[test]
    fn returned_delivery_can_be_reserved_again() {
        let running = RunTable::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        drop(running.reserve(id, 1));
        assert!(matches!(running.reserve(id, 1), RunReservation::Reserved(_)));
    }
}
