//! Between the hubs of all servers: Redis.
//!
//! One subscription, one order: every server delivers what it hears, its own events included, so that the id of an event
//! known from one server can be resumed at another. While Redis is away a server serves its own browsers directly; when
//! it is back, everybody reads again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::StreamExt;
use milvaion_api::events::EventEnvelope;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::Hub;
use crate::{backoff::ReconnectBackoff, cache::Cache, clock::Clock};

/// Carries events between the hub and Redis, and wakes the dispatcher when another server changed the schedule.
#[derive(Clone, Debug)]
pub struct EventBridge {
    /// Through which.
    pub cache: Cache,
    /// For whom.
    pub hub: Hub,
    /// When.
    pub clock: Clock,
    /// Woken when the schedule changed.
    pub activate_dispatcher: Arc<Notify>,
    /// Woken too: whoever paused everything may have resumed it.
    pub activate_slot_granter: Arc<Notify>,
    listening: Arc<AtomicBool>,
}

impl EventBridge {
    /// A bridge that is not listening yet.
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

    /// Listens for ever, until `stop`.
    pub async fn listen(self, stop: CancellationToken) {
        let mut backoff = ReconnectBackoff::default();
        loop {
            let opened = tokio::select! {
                opened = self.cache.listen() => opened,
                () = stop.cancelled() => return,
            };
            match opened {
                Ok(mut messages) => {
                    backoff = ReconnectBackoff::default();
                    self.listening.store(true, Ordering::Release);
                    // Whatever was said before this moment was said to nobody.
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
                                    tracing::debug!(error = %error, "another server said something unreadable")
                                }
                            },
                            Some((false, _)) => {
                                self.activate_dispatcher.notify_one();
                                self.activate_slot_granter.notify_one();
                            }
                            None => break,
                        }
                    }
                    self.listening.store(false, Ordering::Release);
                    tracing::warn!(
                        "lost the channel to the other servers; browsers here only hear of this server's doings"
                    );
                }
                Err(error) => tracing::debug!(error = %error, "cannot listen to the other servers yet"),
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.pause()) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Sends what the hub publishes, until the hub is gone or `stop`.
    pub async fn send(self, mut queue: mpsc::Receiver<Vec<EventEnvelope>>, stop: CancellationToken) {
        loop {
            let mut envelopes = tokio::select! {
                next = queue.recv() => match next {
                    Some(envelopes) => envelopes,
                    None => return,
                },
                () = stop.cancelled() => return,
            };
            // One round trip for everything that has piled up.
            while let Ok(more) = queue.try_recv() {
                envelopes.extend(more);
            }
            let texts: Vec<String> =
                envelopes.iter().filter_map(|envelope| serde_json::to_string(envelope).ok()).collect();
            let listening = self.listening.load(Ordering::Acquire);
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
