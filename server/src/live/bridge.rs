//! Connects the hubs of all servers through Redis.
//!
//! There is one channel and one order of events: every server delivers the events it receives from the channel,
//! including its own. A browser can therefore resume at any server from an event id of another. While Redis is down, a
//! server delivers its own events directly. When Redis is back, every page reloads its data.
//!
//! Log lines that no page shows end here, on the server that has stored them.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{Stream, StreamExt};
use milvaion_api::events::{EventEnvelope, LiveEvent};
use milvaion_protocol::{backoff::Backoff, id::OccurrenceId};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::Hub;
use crate::{
    cache::{Cache, channel::LogWatchAnnouncer},
    clock::Clock,
    error::chain,
};

/// The size of the events from which a round trip takes no more of them, in bytes. Redis closes the connection of a
/// subscriber that has 32 MB to read.
const MAX_ROUND_BYTES: usize = 1 << 20;

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
                Ok((announcer, messages)) => {
                    backoff.reset();
                    let result = self.receive(announcer, messages, &stop).await;
                    self.hub.log_watches().disconnect();
                    self.listening.store(false, Ordering::Release);
                    if stop.is_cancelled() {
                        return;
                    }
                    tracing::warn!(
                        error = result.err().map(|error| chain(error.as_ref())),
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

    /// Receives messages and announces the logs that pages show, until the connection is lost or `stop`.
    async fn receive(
        &self,
        mut announcer: LogWatchAnnouncer,
        messages: impl Stream<Item = (bool, String)>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut messages = pin!(messages);
        let mut changes = self.hub.log_watches().changes();
        while !self.hub.log_watches().connect() {
            self.announce_watches(&mut announcer).await?;
        }
        self.listening.store(true, Ordering::Release);
        // Events published before the subscription were not received, nor lines of logs before their announcement.
        self.hub.resync(self.clock.now());
        self.activate_dispatcher.notify_one();
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = changes.next() => {
                    self.announce_watches(&mut announcer).await?;
                    continue;
                }
                () = stop.cancelled() => return Ok(()),
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
                None => return Ok(()),
            }
        }
    }

    /// Announces the logs that pages show, and withdraws those that they no longer show.
    async fn announce_watches(&self, announcer: &mut LogWatchAnnouncer) -> anyhow::Result<()> {
        let watches = self.hub.log_watches();
        let ended = watches.take_ended();
        if !ended.is_empty() {
            announcer.withdraw(&ended).await?;
        }
        let begun = watches.unannounced();
        if !begun.is_empty() {
            announcer.announce(&begun).await?;
            watches.note_announced(&begun);
        }
        Ok(())
    }

    /// Publishes the hub's events until the hub is dropped or `stop`.
    pub async fn send(self, queue: Arc<Mutex<mpsc::Receiver<Vec<EventEnvelope>>>>, stop: CancellationToken) {
        let mut queue = queue.lock().await;
        loop {
            let mut envelopes = tokio::select! {
                next = queue.recv() => match next {
                    Some(envelopes) => envelopes,
                    None => return,
                },
                () = stop.cancelled() => return,
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
            self.drop_unwatched_logs(&mut envelopes, listening).await;
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

    /// Removes the log lines that no page shows: a page of this server, or if `listening` a page of any.
    async fn drop_unwatched_logs(&self, envelopes: &mut Vec<EventEnvelope>, listening: bool) {
        let watches = self.hub.log_watches();
        let unwatched: HashSet<OccurrenceId> =
            envelopes.iter().filter_map(logged_occurrence).filter(|id| !watches.contains(*id)).collect();
        if unwatched.is_empty() {
            return;
        }
        let ids: Vec<OccurrenceId> = unwatched.iter().copied().collect();
        let elsewhere = if listening { self.cache.watched_logs(&ids).await } else { Ok(HashSet::new()) };
        match elsewhere {
            Ok(elsewhere) => envelopes.retain(|envelope| {
                logged_occurrence(envelope).is_none_or(|id| !unwatched.contains(&id) || elsewhere.contains(&id))
            }),
            // If Redis answers again in a moment, a page of another server still receives its lines.
            Err(error) => tracing::debug!(error = %error, "log lines are published, because a page may show them"),
        }
    }
}

/// Returns the occurrence whose log lines an event carries.
fn logged_occurrence(envelope: &EventEnvelope) -> Option<OccurrenceId> {
    match &envelope.event {
        LiveEvent::Log { occurrence_id, .. } => Some(*occurrence_id),
        _ => None,
    }
}
