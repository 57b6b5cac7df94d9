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
use milvaion_protocol::id::OccurrenceId;
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

/// The subscription of a new listener.
#[derive(Debug)]
pub struct HubSubscription {
    /// The events that the listener missed.
    pub replay: InitialReplay,
    /// The log lines in the ring of the occurrences that the listener did not receive before, oldest first. The reader
    /// drops the lines that it has.
    pub retained_logs: Vec<Arc<EventFrame>>,
    /// The id of the newest event, at which a listener without missed events resumes.
    pub position: Option<String>,
    /// The events from now on.
    pub receiver: broadcast::Receiver<Arc<EventFrame>>,
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

    /// Returns the id of the newest event. Data that is read afterwards contains its change and those before it.
    #[must_use]
    pub fn position(&self) -> Option<String> {
        self.inner.ring.lock().ok()?.back().map(|frame| frame.envelope.id.clone())
    }

    /// Adds a listener. `last` is the id of the last event that the browser received; the replay starts after it.
    /// `new_logs` are the occurrences whose log lines the browser begins to follow.
    pub fn subscribe(&self, last: Option<&str>, new_logs: &[OccurrenceId]) -> HubSubscription {
        let Ok(ring) = self.inner.ring.lock() else {
            let receiver = self.inner.listeners.subscribe();
            return HubSubscription {
                replay: InitialReplay::Resync,
                retained_logs: Vec::new(),
                position: None,
                receiver,
            };
        };
        let receiver = self.inner.listeners.subscribe();
        let position = ring.back().map(|frame| frame.envelope.id.clone());
        let Some(last) = last else {
            return HubSubscription {
                replay: InitialReplay::Replay(Vec::new()),
                retained_logs: Vec::new(),
                position,
                receiver,
            };
        };
        let Some(at) = ring.iter().rposition(|frame| frame.envelope.id == last) else {
            return HubSubscription { replay: InitialReplay::Resync, retained_logs: Vec::new(), position, receiver };
        };
        let is_new_log = |frame: &&Arc<EventFrame>| match &frame.envelope.event {
            LiveEvent::Log { occurrence_id, .. } => new_logs.contains(occurrence_id),
            _ => false,
        };
        let retained_logs = ring.iter().take(at + 1).filter(is_new_log).cloned().collect();
        let replay = InitialReplay::Replay(ring.iter().skip(at + 1).cloned().collect());
        HubSubscription { replay, retained_logs, position, receiver }
    }

    /// Adds a listener that follows no log.
    pub fn listen(&self, last: Option<&str>) -> (InitialReplay, broadcast::Receiver<Arc<EventFrame>>) {
        let subscription = self.subscribe(last, &[]);
        (subscription.replay, subscription.receiver)
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
        assert_eq!(hub.position().as_deref(), Some("d"));
        assert_eq!(ids(hub.listen(Some("d")).0), Some(Vec::new()));
    }

    #[test]
    fn new_log_gets_its_retained_lines() {
        let (hub, _queue) = Hub::new();
        let [old, new] = [1, 2].map(|n| OccurrenceId(uuid::Uuid::from_u128(n)));
        let log = |id: &str, occurrence_id| EventEnvelope {
            event: LiveEvent::Log { occurrence_id, lines: Vec::new() },
            ..envelope(id)
        };
        hub.deliver(log("a", new));
        hub.deliver(log("b", old));
        hub.deliver(envelope("c"));
        hub.deliver(log("d", new));
        let subscription = hub.subscribe(Some("c"), &[new]);
        let retained: Vec<_> = subscription.retained_logs.iter().map(|frame| frame.envelope.id.as_str()).collect();
        assert_eq!(retained, ["a"]);
        assert_eq!(ids(subscription.replay), Some(vec!["d".into()]));
        assert_eq!(subscription.position.as_deref(), Some("d"));
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
