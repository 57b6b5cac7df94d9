//! What this process runs right now, and what it ran a moment ago.
//!
//! The claim in Redis keeps two processes apart; this table keeps two copies in one process apart, also while Redis is
//! away, tells the heartbeat whose claims to renew, and leads a cancellation to the run it means.

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

/// The table. Cloning gives the same one.
#[derive(Clone, Default)]
pub(crate) struct RunTable(Arc<Mutex<RunTableState>>);

#[derive(Default)]
struct RunTableState {
    now: HashMap<AttemptKey, RunEntry>,
    ended: AttemptLruSet,
}

struct RunEntry {
    state: RunState,
    is_confirmed: bool,
    /// Made when the first twin comes, for hardly any delivery ever has one.
    duplicates: Option<watch::Sender<bool>>,
}

enum RunState {
    /// A delivery that waits for its turn; and why it is to end at once when its turn comes, if it is.
    Waiting(Option<String>),
    /// A run.
    Begun(StopSignal),
    /// A run that is over, and whose delivery waits for the broker.
    Over,
}

/// What the table says to a delivery.
pub(crate) enum RunReservation {
    /// It is the only one; the place is held until dropped.
    Reserved(RunGuard),
    /// Its twin is here already. The receiver turns true once the twin's delivery needs no copy any more, and closes if
    /// the twin leaves before that.
    Duplicate(watch::Receiver<bool>),
    /// Its twin ended a moment ago.
    Ended,
}

impl RunTable {
    /// Takes the place of an attempt.
    pub(crate) fn reserve(&self, occurrence: OccurrenceId, attempt: u32) -> RunReservation {
        let key = (occurrence, attempt);
        let mut table = self.lock();
        if let Some(entry) = table.now.get_mut(&key) {
            let is_confirmed = entry.is_confirmed;
            return RunReservation::Duplicate(
                entry.duplicates.get_or_insert_with(|| watch::Sender::new(is_confirmed)).subscribe(),
            );
        }
        if table.ended.contains(key) {
            return RunReservation::Ended;
        }
        table.now.insert(key, RunEntry { state: RunState::Waiting(None), is_confirmed: false, duplicates: None });
        RunReservation::Reserved(RunGuard { running: self.clone(), key })
    }

    /// The attempts that have begun and not ended.
    pub(crate) fn begun(&self) -> Vec<AttemptKey> {
        self.lock()
            .now
            .iter()
            .filter(|(_, entry)| matches!(entry.state, RunState::Begun(_)))
            .map(|(key, _)| *key)
            .collect()
    }

    /// The attempts that are over, and of which the broker has not confirmed that they had begun.
    pub(crate) fn unconfirmed(&self) -> Vec<AttemptKey> {
        let over = |entry: &RunEntry| matches!(entry.state, RunState::Over) && !entry.is_confirmed;
        self.lock().now.iter().filter(|(_, entry)| over(entry)).map(|(key, _)| *key).collect()
    }

    /// Ends what the request means among an occurrence's attempts; one that waits ends when its turn comes.
    pub(crate) fn cancel(&self, occurrence: OccurrenceId, request: &CancelRequest) {
        let mut table = self.lock();
        for ((_, attempt), entry) in table.now.iter_mut().filter(|((id, _), _)| *id == occurrence) {
            match &mut entry.state {
                _ if !request.applies_to(*attempt) => {}
                RunState::Begun(stop) => {
                    if stop.reason().is_none() {
                        tracing::info!(
                            occurrence.id = %occurrence,
                            occurrence.attempt = attempt,
                            reason = request.reason(),
                            "a running occurrence is cancelled"
                        );
                    }
                    stop.cancel(request.reason());
                }
                RunState::Waiting(reason) => *reason = Some(request.reason().to_owned()),
                RunState::Over => {}
            }
        }
    }

    /// Ends an attempt whose occurrence has been given to somebody else.
    pub(crate) fn end_superseded(&self, key: AttemptKey) {
        if let Some(RunEntry { state: RunState::Begun(stop), .. }) = self.lock().now.get(&key)
            && stop.reason().is_none()
        {
            tracing::warn!(
                occurrence.id = %key.0,
                occurrence.attempt = key.1,
                "a later attempt runs elsewhere, because this instance was silent for too long; this one is ended"
            );
            stop.cancel("A later attempt has taken its place.");
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunTableState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the table, held by the one delivery it belongs to.
pub(crate) struct RunGuard {
    running: RunTable,
    key: AttemptKey,
}

impl RunGuard {
    /// From now on the attempt runs, and `stop` ends it.
    pub(crate) fn begin(&self, stop: StopSignal) {
        if let RunState::Waiting(Some(reason)) = self.set(RunState::Begun(stop.clone())) {
            stop.cancel(&reason);
        }
    }

    /// It runs no more.
    pub(crate) fn end(&self) {
        self.set(RunState::Over);
    }

    /// The broker has confirmed that it runs: copies may be dropped.
    pub(crate) fn confirm(&self) {
        if let Some(entry) = self.running.lock().now.get_mut(&self.key) {
            entry.is_confirmed = true;
            if let Some(duplicates) = &entry.duplicates {
                duplicates.send_replace(true);
            }
        }
    }

    /// Answers what it was before.
    fn set(&self, state: RunState) -> RunState {
        match self.running.lock().now.get_mut(&self.key) {
            Some(entry) => std::mem::replace(&mut entry.state, state),
            // A slot has its entry as long as it lives.
            None => RunState::Over,
        }
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let mut table = self.running.lock();
        if table.now.remove(&self.key).is_some_and(|entry| !matches!(entry.state, RunState::Waiting(_))) {
            table.ended.insert(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_has_one_place() {
        let running = RunTable::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let RunReservation::Reserved(slot) = running.reserve(id, 1) else { panic!("nobody was here") };
        assert!(matches!(running.reserve(id, 1), RunReservation::Duplicate(_)));
        assert!(matches!(running.reserve(id, 2), RunReservation::Reserved(_)));
        assert!(running.begun().is_empty());
        slot.begin(StopSignal::default());
        assert_eq!(running.begun(), [(id, 1)]);
        slot.end();
        assert!(running.begun().is_empty());
        assert!(matches!(running.reserve(id, 1), RunReservation::Duplicate(_)));
        drop(slot);
        assert!(matches!(running.reserve(id, 1), RunReservation::Ended));
    }

    #[test]
    fn a_wish_reaches_the_attempts_it_means_and_also_one_that_has_not_begun() {
        let running = RunTable::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let take = |attempt| match running.reserve(id, attempt) {
            RunReservation::Reserved(slot) => slot,
            RunReservation::Duplicate(_) | RunReservation::Ended => panic!("nobody was here"),
        };
        let (slots, signs) = ([take(1), take(2), take(3)], [(); 3].map(|()| StopSignal::default()));
        slots[0].begin(signs[0].clone());
        slots[2].begin(signs[2].clone());
        running.cancel(id, &CancelRequest::read(r#"{"attempt": 2, "reason": "by ann"}"#));
        running.cancel(id, &CancelRequest::read(r#"{"attempt": 2, "reason": "once more"}"#));
        slots[1].begin(signs[1].clone());
        assert_eq!(signs.each_ref().map(StopSignal::reason), [Some("by ann"), Some("once more"), None]);
        assert_eq!(signs.map(|sign| sign.token().is_cancelled()), [true, true, false]);
    }

    #[test]
    fn a_twin_hears_that_its_sibling_is_safe_whenever_it_comes() {
        let running = RunTable::default();
        for n in 1..=2 {
            let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [n; 10]);
            let RunReservation::Reserved(slot) = running.reserve(id, 1) else { panic!("nobody was here") };
            let twin = || match running.reserve(id, 1) {
                RunReservation::Duplicate(safe) => safe,
                RunReservation::Reserved(_) | RunReservation::Ended => panic!("somebody is here"),
            };
            // The first time one comes before it is safe, the second time none.
            let early = (n == 1).then(twin);
            assert!(early.as_ref().is_none_or(|safe| !*safe.borrow()));
            slot.confirm();
            assert!(early.is_none_or(|safe| *safe.borrow()) && *twin().borrow());
        }
    }

    #[test]
    fn a_delivery_handed_back_may_come_again() {
        let running = RunTable::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        drop(running.reserve(id, 1));
        assert!(matches!(running.reserve(id, 1), RunReservation::Reserved(_)));
    }
}
