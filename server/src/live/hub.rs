//! The live event hub of one server: a ring of recent events for resuming listeners, and a broadcast for current ones.
//!
//! The ring owns the events and is limited by their size. A listener that falls behind holds none of them: what the ring
//! has dropped, its page reads again.

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use chrono::{DateTime, Utc};
use milvaion_api::events::{EventEnvelope, LiveEvent};
use milvaion_protocol::id::OccurrenceId;
use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc,
};

use super::event_size::{event_bytes, split};

/// The number of events kept for resuming.
const REPLAY_CAPACITY: usize = 4_096;
/// The size of the events kept for resuming, in bytes.
const REPLAY_BYTES: usize = 32 << 20;
/// The largest replay for one listener, in bytes. A page that missed more reads its data again.
const MAX_REPLAY_BYTES: usize = 1 << 20;
/// The number of events a listener may lag behind before its page must reload its data.
const LISTENER_CAPACITY: usize = 2_048;
/// The number of batches that may wait for the bridge.
const OUTBOUND_CAPACITY: usize = 4_096;
/// The size of the events that may wait for the bridge, in bytes.
const OUTBOUND_BYTES: usize = 32 << 20;
/// The most occurrences that an event about log lines names. While more runs write, it names none, and every page that
/// shows a log reads.
const MAX_NAMED_LOGS: usize = 50;

/// The live event hub of one server. Clones share its state.
#[derive(Clone, Debug)]
pub struct Hub {
    inner: Arc<HubState>,
}

#[derive(Debug)]
struct HubState {
    ring: Mutex<Ring>,
    listeners: broadcast::Sender<Weak<EventFrame>>,
    outbound: mpsc::Sender<Vec<EventEnvelope>>,
    /// The size of the events that wait for the bridge, in bytes.
    outbound_bytes: AtomicUsize,
    /// True if the outbound queue was full and events were dropped.
    overflowed: AtomicBool,
    /// The occurrences with new log lines that no event was published about; at most one more than an event names.
    logged: Mutex<BTreeSet<OccurrenceId>>,
}

/// An event with its JSON, which is serialized once for all listeners.
#[derive(Debug)]
pub struct EventFrame {
    /// The event.
    pub envelope: EventEnvelope,
    /// The event as JSON.
    pub json: String,
}

impl EventFrame {
    /// Returns the approximate size in memory, in bytes.
    fn bytes(&self) -> usize {
        event_bytes(&self.envelope.event) + self.json.len()
    }
}

/// The recent events, oldest first.
#[derive(Debug, Default)]
struct Ring {
    frames: VecDeque<Arc<EventFrame>>,
    bytes: usize,
}

impl Ring {
    fn push(&mut self, frame: Arc<EventFrame>) {
        self.bytes += frame.bytes();
        self.frames.push_back(frame);
        while self.frames.len() > REPLAY_CAPACITY || (self.bytes > REPLAY_BYTES && self.frames.len() > 1) {
            let Some(oldest) = self.frames.pop_front() else { break };
            self.bytes -= oldest.bytes();
        }
    }

    fn position(&self) -> Option<String> {
        self.frames.back().map(|frame| frame.envelope.id.clone())
    }
}

/// The events for one listener.
#[derive(Debug)]
pub struct EventReceiver(broadcast::Receiver<Weak<EventFrame>>);

impl EventReceiver {
    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// Returns `Lagged` if events were dropped because the listener fell behind, and `Closed` if the hub is gone.
    pub async fn recv(&mut self) -> Result<Arc<EventFrame>, RecvError> {
        self.0.recv().await?.upgrade().ok_or(RecvError::Lagged(1))
    }

    /// Returns the next event, or `None` if there is none yet or events were dropped.
    pub fn try_recv(&mut self) -> Option<Arc<EventFrame>> {
        self.0.try_recv().ok()?.upgrade()
    }
}

/// The events that a new listener receives first.
#[derive(Debug)]
pub enum InitialReplay {
    /// The events after the last one that the listener has received.
    Replay(Vec<Arc<EventFrame>>),
    /// The last received event is no longer in the ring, or too much has followed it; the page must reload its data.
    Resync,
}

/// The subscription of a new listener.
#[derive(Debug)]
pub struct HubSubscription {
    /// The events that the listener missed.
    pub replay: InitialReplay,
    /// The id of the newest event, at which a listener without missed events resumes.
    pub position: Option<String>,
    /// The events from now on.
    pub receiver: EventReceiver,
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
            outbound_bytes: AtomicUsize::new(0),
            overflowed: AtomicBool::new(false),
            logged: Mutex::default(),
        };
        (Self { inner: Arc::new(inner) }, queue)
    }

    /// Publishes events after their commit, without waiting.
    pub fn publish(&self, at: DateTime<Utc>, events: Vec<LiveEvent>) {
        if events.is_empty() {
            return;
        }
        let envelopes: Vec<_> =
            split(events).into_iter().map(|event| EventEnvelope { id: event_id(at), at, event }).collect();
        let bytes = queued_bytes(&envelopes);
        let waiting = self.inner.outbound_bytes.fetch_add(bytes, Ordering::AcqRel);
        // Publishing must never block the caller. Events dropped because of a full queue lead to a resync later.
        if waiting > OUTBOUND_BYTES || self.inner.outbound.try_send(envelopes).is_err() {
            self.inner.outbound_bytes.fetch_sub(bytes, Ordering::AcqRel);
            self.inner.overflowed.store(true, Ordering::Release);
        }
    }

    /// Records that log lines were stored, for the next event about log lines.
    pub fn note_log_lines(&self, ids: impl IntoIterator<Item = OccurrenceId>) {
        if let Ok(mut logged) = self.inner.logged.lock() {
            for id in ids {
                if logged.len() <= MAX_NAMED_LOGS {
                    logged.insert(id);
                }
            }
        }
    }

    /// Publishes one event about all log lines that were stored since the last call.
    pub fn publish_log_lines(&self, at: DateTime<Utc>) {
        let mut logged = self.inner.logged.lock().map(|mut logged| mem::take(&mut *logged)).unwrap_or_default();
        if logged.is_empty() {
            return;
        }
        if logged.len() > MAX_NAMED_LOGS {
            logged.clear();
        }
        self.publish(at, vec![LiveEvent::Log { ids: logged.into_iter().collect() }]);
    }

    /// Records that events were taken out of the queue for the bridge. Returns their size in bytes.
    pub fn taken(&self, envelopes: &[EventEnvelope]) -> usize {
        let bytes = queued_bytes(envelopes);
        self.inner.outbound_bytes.fetch_sub(bytes, Ordering::AcqRel);
        bytes
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
            let sent = Arc::downgrade(&frame);
            ring.push(frame);
            // Sent under the lock, so that a listener that subscribes under the same lock receives each event once.
            let _ = self.inner.listeners.send(sent);
        }
    }

    /// Sends `resync` to all listeners and clears the ring, because events may have been missed.
    pub fn resync(&self, at: DateTime<Utc>) {
        if let Ok(mut ring) = self.inner.ring.lock() {
            *ring = Ring::default();
        }
        self.deliver(EventEnvelope { id: event_id(at), at, event: LiveEvent::Resync });
    }

    /// Returns the id of the newest event. Data that is read afterwards contains its change and those before it.
    #[must_use]
    pub fn position(&self) -> Option<String> {
        self.inner.ring.lock().ok()?.position()
    }

    /// Adds a listener. `last` is the id of the last event that the browser received; the replay starts after it.
    pub fn subscribe(&self, last: Option<&str>) -> HubSubscription {
        let Ok(ring) = self.inner.ring.lock() else {
            let receiver = EventReceiver(self.inner.listeners.subscribe());
            return HubSubscription { replay: InitialReplay::Resync, position: None, receiver };
        };
        let receiver = EventReceiver(self.inner.listeners.subscribe());
        let position = ring.position();
        let frames = &ring.frames;
        let Some(last) = last else {
            return HubSubscription { replay: InitialReplay::Replay(Vec::new()), position, receiver };
        };
        let found = frames.iter().rposition(|frame| frame.envelope.id == last);
        let is_small =
            |at: &usize| frames.iter().skip(at + 1).map(|frame| frame.json.len()).sum::<usize>() <= MAX_REPLAY_BYTES;
        let replay = match found.filter(is_small) {
            Some(at) => InitialReplay::Replay(frames.iter().skip(at + 1).cloned().collect()),
            None => InitialReplay::Resync,
        };
        HubSubscription { replay, position, receiver }
    }

    /// Adds a listener, as [`subscribe`](Self::subscribe) without the position.
    pub fn listen(&self, last: Option<&str>) -> (InitialReplay, EventReceiver) {
        let subscription = self.subscribe(last);
        (subscription.replay, subscription.receiver)
    }

    /// Returns the number of listeners.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.inner.listeners.receiver_count()
    }
}

fn queued_bytes(envelopes: &[EventEnvelope]) -> usize {
    envelopes.iter().map(|envelope| event_bytes(&envelope.event)).sum()
}

/// Returns an id that is unique across servers: the instant and a random number.
fn event_id(at: DateTime<Utc>) -> String {
    format!("{:x}-{:016x}", at.timestamp_micros(), rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::{super::event_size, *};

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
    fn listener_with_a_forgotten_event_is_resynced() {
        let (hub, _queue) = Hub::new();
        hub.deliver(envelope("a"));
        hub.resync(DateTime::UNIX_EPOCH);
        assert_eq!(ids(hub.listen(Some("a")).0), None);
        assert_eq!(ids(hub.listen(None).0), Some(Vec::new()));
    }

    fn large(id: &str, bytes: usize) -> EventEnvelope {
        let rows = vec![event_size::tests::row(1, "x".repeat(bytes))];
        EventEnvelope { event: LiveEvent::Occurrences { rows }, ..envelope(id) }
    }

    #[tokio::test]
    async fn ring_is_limited_by_size_and_frees_what_slow_listeners_have_not_read() {
        let (hub, _queue) = Hub::new();
        let (_, mut slow) = hub.listen(None);
        for n in 0..100 {
            hub.deliver(large(&n.to_string(), 1 << 19));
        }
        let kept = hub.inner.ring.lock().expect("the lock is not poisoned").frames.len();
        assert!((30..=32).contains(&kept), "{kept} events with their JSON fit into 32 MiB");
        assert!(matches!(slow.recv().await, Err(RecvError::Lagged(_))), "the oldest is gone for the listener too");
    }

    #[test]
    fn page_that_missed_too_much_reads_again() {
        let (hub, _queue) = Hub::new();
        hub.deliver(envelope("seen"));
        hub.deliver(large("a", 1 << 19));
        assert_eq!(ids(hub.listen(Some("seen")).0), Some(vec!["a".into()]));
        hub.deliver(large("b", 1 << 19));
        assert_eq!(ids(hub.listen(Some("seen")).0), None);
    }

    #[tokio::test]
    async fn queue_of_the_bridge_is_limited_by_size() {
        let (hub, mut queue) = Hub::new();
        let events = |bytes| vec![large("", bytes).event];
        for _ in 0..40 {
            hub.publish(DateTime::UNIX_EPOCH, events(1 << 20));
        }
        assert!(hub.take_overflow());
        let mut taken = 0;
        while let Ok(envelopes) = queue.try_recv() {
            taken += hub.taken(&envelopes);
        }
        assert!(taken <= OUTBOUND_BYTES + (2 << 20), "{taken}");
        hub.publish(DateTime::UNIX_EPOCH, events(1 << 20));
        assert!(!hub.take_overflow(), "there is room again");
    }

    #[test]
    fn log_lines_of_all_batches_are_one_event() {
        let (hub, mut queue) = Hub::new();
        let id = |n| OccurrenceId::from_parts(DateTime::UNIX_EPOCH, [n; 10]);
        let mut published = || {
            hub.publish_log_lines(DateTime::UNIX_EPOCH);
            queue.try_recv().ok().map(|envelopes| envelopes[0].event.clone())
        };
        assert_eq!(published(), None);
        hub.note_log_lines([id(2), id(1)]);
        hub.note_log_lines([id(2)]);
        assert_eq!(published(), Some(LiveEvent::Log { ids: vec![id(1), id(2)] }));
        hub.note_log_lines((0..u8::MAX).map(id));
        assert_eq!(published(), Some(LiveEvent::Log { ids: Vec::new() }), "it may be any log");
        assert_eq!(published(), None);
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
