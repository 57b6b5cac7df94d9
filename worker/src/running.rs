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

use crate::{cancel_request::Wish, claim::Attempt, recent::Recent, stop_signal::StopSign};

/// The table. Cloning gives the same one.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    now: HashMap<Attempt, Entry>,
    ended: Recent,
}

struct Entry {
    state: State,
    is_safe: bool,
    /// Made when the first twin comes, for hardly any delivery ever has one.
    twins: Option<watch::Sender<bool>>,
}

enum State {
    /// A delivery that waits for its turn; and why it is to end at once when its turn comes, if it is.
    Waiting(Option<String>),
    /// A run.
    Begun(StopSign),
    /// A run that is over, and whose delivery waits for the broker.
    Over,
}

/// What the table says to a delivery.
pub(crate) enum Place {
    /// It is the only one; the place is held until dropped.
    Free(Slot),
    /// Its twin is here already. The receiver turns true once the twin's delivery needs no copy any more, and closes if
    /// the twin leaves before that.
    Taken(watch::Receiver<bool>),
    /// Its twin ended a moment ago.
    Ended,
}

impl Running {
    /// Takes the place of an attempt.
    pub(crate) fn take(&self, occurrence: OccurrenceId, attempt: u32) -> Place {
        let key = (occurrence, attempt);
        let mut table = self.lock();
        if let Some(entry) = table.now.get_mut(&key) {
            let is_safe = entry.is_safe;
            return Place::Taken(entry.twins.get_or_insert_with(|| watch::Sender::new(is_safe)).subscribe());
        }
        if table.ended.has(key) {
            return Place::Ended;
        }
        table.now.insert(key, Entry { state: State::Waiting(None), is_safe: false, twins: None });
        Place::Free(Slot { running: self.clone(), key })
    }

    /// The attempts that have begun and not ended.
    pub(crate) fn begun(&self) -> Vec<Attempt> {
        self.lock()
            .now
            .iter()
            .filter(|(_, entry)| matches!(entry.state, State::Begun(_)))
            .map(|(key, _)| *key)
            .collect()
    }

    /// The attempts that are over, and of which the broker has not confirmed that they had begun.
    pub(crate) fn unheard(&self) -> Vec<Attempt> {
        let over = |entry: &Entry| matches!(entry.state, State::Over) && !entry.is_safe;
        self.lock().now.iter().filter(|(_, entry)| over(entry)).map(|(key, _)| *key).collect()
    }

    /// Ends what the wish means among an occurrence's attempts; one that waits ends when its turn comes.
    pub(crate) fn cancel(&self, occurrence: OccurrenceId, wish: &Wish) {
        let mut table = self.lock();
        for ((_, attempt), entry) in table.now.iter_mut().filter(|((id, _), _)| *id == occurrence) {
            match &mut entry.state {
                _ if !wish.means(*attempt) => {}
                State::Begun(stop) => {
                    if stop.reason().is_none() {
                        tracing::info!(
                            occurrence.id = %occurrence,
                            occurrence.attempt = attempt,
                            reason = wish.reason(),
                            "a running occurrence is cancelled"
                        );
                    }
                    stop.cancel(wish.reason());
                }
                State::Waiting(reason) => *reason = Some(wish.reason().to_owned()),
                State::Over => {}
            }
        }
    }

    /// Ends an attempt whose occurrence has been given to somebody else.
    pub(crate) fn overtaken(&self, key: Attempt) {
        if let Some(Entry { state: State::Begun(stop), .. }) = self.lock().now.get(&key)
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the table, held by the one delivery it belongs to.
pub(crate) struct Slot {
    running: Running,
    key: Attempt,
}

impl Slot {
    /// From now on the attempt runs, and `stop` ends it.
    pub(crate) fn begin(&self, stop: StopSign) {
        if let State::Waiting(Some(reason)) = self.set(State::Begun(stop.clone())) {
            stop.cancel(&reason);
        }
    }

    /// It runs no more.
    pub(crate) fn end(&self) {
        self.set(State::Over);
    }

    /// The broker has confirmed that it runs: copies may be dropped.
    pub(crate) fn safe(&self) {
        if let Some(entry) = self.running.lock().now.get_mut(&self.key) {
            entry.is_safe = true;
            if let Some(twins) = &entry.twins {
                twins.send_replace(true);
            }
        }
    }

    /// Answers what it was before.
    fn set(&self, state: State) -> State {
        match self.running.lock().now.get_mut(&self.key) {
            Some(entry) => std::mem::replace(&mut entry.state, state),
            // A slot has its entry as long as it lives.
            None => State::Over,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.running.lock();
        if table.now.remove(&self.key).is_some_and(|entry| !matches!(entry.state, State::Waiting(_))) {
            table.ended.note(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_has_one_place() {
        let running = Running::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let Place::Free(slot) = running.take(id, 1) else { panic!("nobody was here") };
        assert!(matches!(running.take(id, 1), Place::Taken(_)));
        assert!(matches!(running.take(id, 2), Place::Free(_)));
        assert!(running.begun().is_empty());
        slot.begin(StopSign::default());
        assert_eq!(running.begun(), [(id, 1)]);
        slot.end();
        assert!(running.begun().is_empty());
        assert!(matches!(running.take(id, 1), Place::Taken(_)));
        drop(slot);
        assert!(matches!(running.take(id, 1), Place::Ended));
    }

    #[test]
    fn a_wish_reaches_the_attempts_it_means_and_also_one_that_has_not_begun() {
        let running = Running::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let take = |attempt| match running.take(id, attempt) {
            Place::Free(slot) => slot,
            Place::Taken(_) | Place::Ended => panic!("nobody was here"),
        };
        let (slots, signs) = ([take(1), take(2), take(3)], [(); 3].map(|()| StopSign::default()));
        slots[0].begin(signs[0].clone());
        slots[2].begin(signs[2].clone());
        running.cancel(id, &Wish::read(r#"{"attempt": 2, "reason": "by ann"}"#));
        running.cancel(id, &Wish::read(r#"{"attempt": 2, "reason": "once more"}"#));
        slots[1].begin(signs[1].clone());
        assert_eq!(signs.each_ref().map(StopSign::reason), [Some("by ann"), Some("once more"), None]);
        assert_eq!(signs.map(|sign| sign.token().is_cancelled()), [true, true, false]);
    }

    #[test]
    fn a_twin_hears_that_its_sibling_is_safe_whenever_it_comes() {
        let running = Running::default();
        for n in 1..=2 {
            let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [n; 10]);
            let Place::Free(slot) = running.take(id, 1) else { panic!("nobody was here") };
            let twin = || match running.take(id, 1) {
                Place::Taken(safe) => safe,
                Place::Free(_) | Place::Ended => panic!("somebody is here"),
            };
            // The first time one comes before it is safe, the second time none.
            let early = (n == 1).then(twin);
            assert!(early.as_ref().is_none_or(|safe| !*safe.borrow()));
            slot.safe();
            assert!(early.is_none_or(|safe| *safe.borrow()) && *twin().borrow());
        }
    }

    #[test]
    fn a_delivery_handed_back_may_come_again() {
        let running = Running::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        drop(running.take(id, 1));
        assert!(matches!(running.take(id, 1), Place::Free(_)));
    }
}
