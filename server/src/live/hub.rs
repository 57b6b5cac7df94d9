//! The hub inside one server: a ring of recent events for those who resume, and a broadcast for those who listen.

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

/// How many events are kept for resuming.
const REPLAY_CAPACITY: usize = 4_096;
/// How many events a listener may lag behind before it must read again.
const LISTENER_CAPACITY: usize = 2_048;
/// How many batches may wait for the bridge.
const OUTBOUND_CAPACITY: usize = 4_096;

/// One server's hub. Cloning gives the same one.
#[derive(Clone, Debug)]
pub struct Hub {
    inner: Arc<HubState>,
}

#[derive(Debug)]
struct HubState {
    ring: Mutex<VecDeque<Arc<EventFrame>>>,
    listeners: broadcast::Sender<Arc<EventFrame>>,
    outbound: mpsc::Sender<Vec<EventEnvelope>>,
    /// Set when the outbox was full and something was left out.
    overflowed: AtomicBool,
}

/// An event with its JSON, written once for all who listen.
#[derive(Debug)]
pub struct EventFrame {
    /// The event.
    pub envelope: EventEnvelope,
    /// The same as text.
    pub json: String,
}

/// What a new listener gets first.
#[derive(Debug)]
pub enum InitialReplay {
    /// Everything since the event it knows.
    Replay(Vec<Arc<EventFrame>>),
    /// That event is no longer known: read again.
    Resync,
}

impl Hub {
    /// The hub, and the queue of what it publishes, for the bridge.
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

    /// Publishes what was just committed. Returns at once.
    pub fn publish(&self, at: DateTime<Utc>, events: Vec<LiveEvent>) {
        if events.is_empty() {
            return;
        }
        let envelopes = events.into_iter().map(|event| EventEnvelope { id: event_id(at), at, event }).collect();
        // Publishing must never hold up whoever committed. A full outbox is told by a resync later.
        if self.inner.outbound.try_send(envelopes).is_err() {
            self.inner.overflowed.store(true, Ordering::Release);
        }
    }

    /// Whether something was left out since this was asked last.
    pub fn take_overflow(&self) -> bool {
        self.inner.overflowed.swap(false, Ordering::AcqRel)
    }

    /// Hands an event to this server's listeners: called by the bridge, in the order all servers see.
    pub fn deliver(&self, envelope: EventEnvelope) {
        let json = serde_json::to_string(&envelope).unwrap_or_default();
        let frame = Arc::new(EventFrame { envelope, json });
        if let Ok(mut ring) = self.inner.ring.lock() {
            if ring.len() == REPLAY_CAPACITY {
                ring.pop_front();
            }
            ring.push_back(frame.clone());
            // Sent under the lock, so that a listener that subscribes under it sees each event once.
            let _ = self.inner.listeners.send(frame);
        }
    }

    /// Tells everybody to read again, and forgets what could be resumed: something may have been missed.
    pub fn resync(&self, at: DateTime<Utc>) {
        if let Ok(mut ring) = self.inner.ring.lock() {
            ring.clear();
        }
        self.deliver(EventEnvelope { id: event_id(at), at, event: LiveEvent::Resync });
    }

    /// Starts listening. With the id of the last event a browser knows, it is told what it missed.
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

    /// How many browsers listen.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.inner.listeners.receiver_count()
    }
}

/// Unique over all servers: the instant and a random part.
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
    async fn who_resumes_hears_exactly_what_it_missed() {
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
    fn who_knows_an_event_nobody_remembers_reads_again() {
        let (hub, _queue) = Hub::new();
        hub.deliver(envelope("a"));
        hub.resync(DateTime::UNIX_EPOCH);
        assert_eq!(ids(hub.listen(Some("a")).0), None);
        assert_eq!(ids(hub.listen(None).0), Some(Vec::new()));
    }

    #[test]
    fn the_ring_is_bounded() {
        let (hub, _queue) = Hub::new();
        for n in 0..=REPLAY_CAPACITY {
            hub.deliver(envelope(&n.to_string()));
        }
        assert_eq!(ids(hub.listen(Some("0")).0), None);
        assert_eq!(ids(hub.listen(Some("1")).0).map(|events| events.len()), Some(REPLAY_CAPACITY - 1));
    }
}
