//! Connects the hubs of all servers through Redis.
//!
//! There is one channel and one order of events: every server delivers the events it receives from the channel,
//! including its own. A browser can therefore resume at any server from an event id of another. While Redis is down, a
//! server delivers its own events directly. When Redis is back, every page reloads its data.
//!
//! A server that stores log lines publishes an event about them, without the lines, at most twice a second, however many
//! runs write.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt};
use milvaion_api::events::EventEnvelope;
use milvaion_protocol::backoff::Backoff;
use tokio::{
    sync::{Mutex, Notify, mpsc},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

use super::Hub;
use crate::{cache::Cache, clock::Clock};

/// The size of the events from which a round trip takes no more of them, in bytes. Redis closes the connection of a
/// subscriber that has 32 MB to read.
const MAX_ROUND_BYTES: usize = 1 << 20;
/// The time between two events about log lines.
const LOG_EVENT_INTERVAL: Duration = Duration::from_millis(500);

/// The bridge between the hub and Redis. It also activates the dispatcher after schedule changes by other servers.
#[derive(Clone, Debug)]
pub struct EventBridge {
    /// The Redis cache.
    pub cache: Cache,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
    /// The activator of the dispatcher, for schedule changes.
    pub activate_dispatcher: Arc<Notify>,
    /// The activator of the slot granter: a schedule change may be the end of a cluster pause.
    pub activate_slot_granter: Arc<Notify>,
    listening: Arc<AtomicBool>,
}

impl EventBridge {
    /// Creates a bridge that does not listen yet.
    #[must_use]
    pub fn new(
        cache: Cache,
        hub: Hub,
        clock: Clock,
        activate_dispatcher: Arc<Notify>,
        activate_slot_granter: Arc<Notify>,
    ) -> Self {
        Self { cache, hub, clock, activate_dispatcher, activate_slot_granter, listening: Arc::default() }
    }

    /// Receives messages of other servers until `stop`.
    pub async fn listen(self, stop: CancellationToken) {
        let mut backoff = Backoff::default();
        loop {
            let opened = tokio::select! {
                opened = self.cache.listen() => opened,
                () = stop.cancelled() => return,
            };
            match opened {
                Ok(messages) => {
                    backoff.reset();
                    self.receive(messages, &stop).await;
                    self.listening.store(false, Ordering::Release);
                    if stop.is_cancelled() {
                        return;
                    }
                    tracing::warn!(
                        "lost the Redis channel to the other servers; pages receive only this server's events until it is back"
                    );
                }
                Err(error) => tracing::debug!(error = %error, "cannot subscribe to the other servers yet"),
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay(rand::random())) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Receives messages until the connection is lost or `stop`.
    async fn receive(&self, messages: impl Stream<Item = (bool, String)>, stop: &CancellationToken) {
        let mut messages = pin!(messages);
        self.listening.store(true, Ordering::Release);
        // Events published before the subscription were not received.
        self.hub.resync(self.clock.now());
        self.activate_dispatcher.notify_one();
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = stop.cancelled() => return,
            };
            match message {
                Some((true, text)) => match serde_json::from_str::<EventEnvelope>(&text) {
                    Ok(envelope) => self.hub.deliver(envelope),
                    Err(error) => {
                        tracing::debug!(error = %error, "an event of another server cannot be read")
                    }
                },
                Some((false, _)) => {
                    self.activate_dispatcher.notify_one();
                    self.activate_slot_granter.notify_one();
                }
                None => return,
            }
        }
    }

    /// Publishes the hub's events until the hub is dropped or `stop`.
    pub async fn send(self, queue: Arc<Mutex<mpsc::Receiver<Vec<EventEnvelope>>>>, stop: CancellationToken) {
        let mut queue = queue.lock().await;
        let mut log_events = tokio::time::interval(LOG_EVENT_INTERVAL);
        log_events.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_last = false;
        while !is_last {
            let mut envelopes = tokio::select! {
                next = queue.recv() => match next {
                    Some(envelopes) => envelopes,
                    None => return,
                },
                _ = log_events.tick() => {
                    self.hub.publish_log_lines(self.clock.now());
                    continue;
                }
                // Lines that were stored last are announced too: no later event would show them on the pages of other
                // servers.
                () = stop.cancelled() => {
                    is_last = true;
                    self.hub.publish_log_lines(self.clock.now());
                    match queue.try_recv() {
                        Ok(envelopes) => envelopes,
                        Err(_) => return,
                    }
                }
            };
            let mut bytes = self.hub.taken(&envelopes);
            // Queued events are sent in one round trip, up to a size that Redis forwards without a large buffer.
            while bytes < MAX_ROUND_BYTES
                && let Ok(more) = queue.try_recv()
            {
                bytes += self.hub.taken(&more);
                envelopes.extend(more);
            }
            let listening = self.listening.load(Ordering::Acquire);
            let texts: Vec<String> =
                envelopes.iter().filter_map(|envelope| serde_json::to_string(envelope).ok()).collect();
            let announced = if listening { self.cache.publish_events(&texts).await.is_ok() } else { false };
            if self.hub.take_overflow() {
                self.hub.resync(self.clock.now());
            }
            if !announced {
                for envelope in envelopes {
                    self.hub.deliver(envelope);
                }
            }
        }
    }
}
