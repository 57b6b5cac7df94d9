//! The live event hub of one server: a ring of recent events for resuming listeners, and a broadcast for current ones.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use chrono::{DateTime, Utc};
use milvaion_api::events::{EventEnvelope, LiveEvent};
use tokio::sync::{broadcast, mpsc};

/// The number of events kept for resuming.
const REPLAY_CAPACITY: usize = 4_096;
/// The number of events a listener may lag behind before its page must reload its data.
const LISTENER_CAPACITY: usize = 2_048;
/// The number of batches that may wait for the bridge.
const OUTBOUND_CAPACITY: usize = 4_096;

/// The live event hub of one server. Clones share its state.
#[derive(Clone, Debug)]
pub struct Hub {
    inner: Arc<HubState>,
}

#[derive(Debug)]
struct HubState {
    ring: Mutex<VecDeque<Arc<EventFrame>>>,
    listeners: broadcast::Sender<Arc<EventFrame>>,
    outbound: mpsc::Sender<Vec<EventEnvelope>>,
    /// True if the outbound queue was full and events were dropped.
    overflowed: AtomicBool,
}

/// An event with its JSON, which is serialized once for all listeners.
#[derive(Debug)]
pub struct EventFrame {
    /// The event.
    pub envelope: EventEnvelope,
    /// The event as JSON.
    pub json: String,
}

/// The events that a new listener receives first.
#[derive(Debug)]
pub enum InitialReplay {
    /// The events after the last one that the listener has received.
    Replay(Vec<Arc<EventFrame>>),
    /// The last received event is no longer in the ring; the page must reload its data.
    Resync,
}

impl Hub {
    /// Creates the hub, and the queue of its events for the bridge.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Vec<EventEnvelope>>) {
        let (outbound, queue) = mpsc::channel(OUTBOUND_CAPACITY);
        let inner = HubState {
            ring: Mutex::default(),
            listeners: broadcast::channel(LISTENER_CAPACITY).0,
            outbound,
            overflowed: AtomicBool::new(false),
        };
        (Self { inner: Arc::new(inner) }, queue)
    }

    /// Publishes events after their commit, without waiting.
    pub fn publish(&self, at: DateTime<Utc>, events: Vec<LiveEvent>) {
        if events.is_empty() {
            return;
        }
        let envelopes = events.into_iter().map(|event| EventEnvelope { id: event_id(at), at, event }).collect();
        // Publishing must never block the caller. Events dropped because of a full queue lead to a resync later.
        if self.inner.outbound.try_send(envelopes).is_err() {
            self.inner.overflowed.store(true, Ordering::Release);
        }
    }

    /// Returns true if events were dropped since the last call.
    pub fn take_overflow(&self) -> bool {
        self.inner.overflowed.swap(false, Ordering::AcqRel)
    }

    /// Delivers an event to this server's listeners. The bridge calls it in the order that all servers share.
    pub fn deliver(&self, envelope: EventEnvelope) {
        let json = serde_json::to_string(&envelope).unwrap_or_default();
        let frame = Arc::new(EventFrame { envelope, json });
        if let Ok(mut ring) = self.inner.ring.lock() {
            if ring.len() == REPLAY_CAPACITY {
                ring.pop_front();
            }
            ring.push_back(frame.clone());
            // Sent under the lock, so that a listener that subscribes under the same lock receives each event once.
            let _ = self.inner.listeners.send(frame);
        }
    }

    /// Sends `resync` to all listeners and clears the ring, because events may have been missed.
    pub fn resync(&self, at: DateTime<Utc>) {
        if let Ok(mut ring) = self.inner.ring.lock() {
            ring.clear();
        }
        self.deliver(EventEnvelope { id: event_id(at), at, event: LiveEvent::Resync });
    }

    /// Adds a listener. `last` is the id of the last event that the browser received; the replay starts after it.
    pub fn listen(&self, last: Option<&str>) -> (InitialReplay, broadcast::Receiver<Arc<EventFrame>>) {
        let Ok(ring) = self.inner.ring.lock() else { return (InitialReplay::Resync, self.inner.listeners.subscribe()) };
        let receiver = self.inner.listeners.subscribe();
        let start = match last {
            None => InitialReplay::Replay(Vec::new()),
            Some(last) => match ring.iter().rposition(|frame| frame.envelope.id == last) {
                Some(at) => InitialReplay::Replay(ring.iter().skip(at + 1).cloned().collect()),
                None => InitialReplay::Resync,
            },
        };
        (start, receiver)
    }

    /// Returns the number of listeners.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.inner.listeners.receiver_count()
    }
}

/// Returns an id that is unique across servers: the instant and a random number.
fn event_id(at: DateTime<Utc>) -> String {
    format!("{:x}-{:016x}", at.timestamp_micros(), rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(id: &str) -> EventEnvelope {
        EventEnvelope { id: id.into(), at: DateTime::UNIX_EPOCH, event: LiveEvent::Workers }
    }

    fn ids(start: InitialReplay) -> Option<Vec<String>> {
        match start {
            InitialReplay::Replay(events) => Some(events.iter().map(|frame| frame.envelope.id.clone()).collect()),
            InitialReplay::Resync => None,
        }
    }

    #[tokio::test]
    async fn resumed_listener_gets_exactly_the_missed_events() {
        let (hub, _queue) = Hub::new();
        for id in ["a", "b", "c"] {
            hub.deliver(envelope(id));
        }
        let (start, mut receiver) = hub.listen(Some("a"));
        assert_eq!(ids(start), Some(vec!["b".into(), "c".into()]));
        hub.deliver(envelope("d"));
        assert_eq!(receiver.recv().await.map(|frame| frame.envelope.id.clone()), Ok("d".to_owned()));
    }

    #[test]
    fn listener_with_a_forgotten_event_is_resynced() {
        let (hub, _queue) = Hub::new();
        hub.deliver(envelope("a"));
        hub.resync(DateTime::UNIX_EPOCH);
        assert_eq!(ids(hub.listen(Some("a")).0), None);
        assert_eq!(ids(hub.listen(None).0), Some(Vec::new()));
    }

    #[test]
    fn ring_drops_the_oldest_event() {
        let (hub, _queue) = Hub::new();
        for n in 0..=REPLAY_CAPACITY {
            hub.deliver(envelope(&n.to_string()));
        }
        assert_eq!(ids(hub.listen(Some("0")).0), None);
        assert_eq!(ids(hub.listen(Some("1")).0).map(|events| events.len()), Some(REPLAY_CAPACITY - 1));
    }
}
