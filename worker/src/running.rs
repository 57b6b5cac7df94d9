//! What this process runs right now, and what it ran a moment ago.
//!
//! The claim in Redis keeps two processes apart; this table keeps two copies in one process apart, also while Redis is
//! away, and tells the heartbeat whose claims to renew.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use protocol::id::OccurrenceId;
use tokio::sync::watch;

/// How many ended attempts are remembered.
const REMEMBERED: usize = 10_000;

type Key = (OccurrenceId, u32);

/// The table. Cloning gives the same one.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    now: HashMap<Key, Entry>,
    ended: HashSet<Key>,
    ended_order: VecDeque<Key>,
}

struct Entry {
    state: State,
    safe: watch::Sender<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A delivery that waits for its turn.
    Waiting,
    /// A run.
    Begun,
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
        if let Some(entry) = table.now.get(&key) {
            return Place::Taken(entry.safe.subscribe());
        }
        if table.ended.contains(&key) {
            return Place::Ended;
        }
        table.now.insert(key, Entry { state: State::Waiting, safe: watch::Sender::new(false) });
        Place::Free(Slot { running: self.clone(), key })
    }

    /// The attempts that have begun and not ended.
    pub(crate) fn begun(&self) -> Vec<(OccurrenceId, u32)> {
        self.lock().now.iter().filter(|(_, entry)| entry.state == State::Begun).map(|(key, _)| *key).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the table, held by the one delivery it belongs to.
pub(crate) struct Slot {
    running: Running,
    key: Key,
}

impl Slot {
    /// From now on the attempt runs.
    pub(crate) fn begin(&self) {
        self.set(State::Begun);
    }

    /// It runs no more.
    pub(crate) fn end(&self) {
        self.set(State::Over);
    }

    /// The broker has confirmed that it runs: copies may be dropped.
    pub(crate) fn safe(&self) {
        if let Some(entry) = self.running.lock().now.get(&self.key) {
            entry.safe.send_replace(true);
        }
    }

    fn set(&self, state: State) {
        if let Some(entry) = self.running.lock().now.get_mut(&self.key) {
            entry.state = state;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.running.lock();
        if table.now.remove(&self.key).is_some_and(|entry| entry.state != State::Waiting) {
            table.ended.insert(self.key);
            table.ended_order.push_back(self.key);
            if table.ended_order.len() > REMEMBERED
                && let Some(oldest) = table.ended_order.pop_front()
            {
                table.ended.remove(&oldest);
            }
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
        slot.begin();
        assert_eq!(running.begun(), [(id, 1)]);
        slot.end();
        assert!(running.begun().is_empty());
        assert!(matches!(running.take(id, 1), Place::Taken(_)));
        drop(slot);
        assert!(matches!(running.take(id, 1), Place::Ended));
    }

    #[test]
    fn a_delivery_handed_back_may_come_again() {
        let running = Running::default();
        let id = OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        drop(running.take(id, 1));
        assert!(matches!(running.take(id, 1), Place::Free(_)));
    }
}
