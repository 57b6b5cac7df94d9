//! Publishes batches of job messages without blocking the caller, and marks the messages that the broker confirms.
//!
//! Runs of a batch that may share a message are sent as a bundle (`bundle_planner`), with one confirm for all of them, and
//! critical runs to a queue of their own if there is one.
//!
//! Up to `MAX_BATCHES_IN_FLIGHT` batches wait for confirms at the same time. An unconfirmed message stays unsent in
//! PostgreSQL, and the republisher publishes it again.
//!
//! Marking is [delayed](crate::background::publish_marker). A short run reports its end within half a second, and that report also marks the row. One
//! statement then marks the remaining rows together, instead of writing a third version of every row. If the server
//! crashes in between, its messages are published once more, which the worker's claim makes harmless.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::bundle_planner::BundlePlanner;
use crate::{
    broker::publisher::{OutgoingMessage, Publisher},
    clock::Clock,
    domain::{
        bundles::SendPlan,
        message::{ConfirmedMessage, QueuedRun, message, trace_id},
    },
    store::Store,
};

/// The most batches that wait for confirms at the same time.
const MAX_BATCHES_IN_FLIGHT: usize = 16;
/// The timeout for a permit. A healthy broker confirms sooner. Behind an unhealthy one, a longer wait would delay other
/// due jobs for a message that cannot be published anyway.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(1);
/// The most rows that one statement marks.
const MARK_BATCH: usize = 2_000;

/// The sender of job messages. Clones share its state.
#[derive(Clone, Debug)]
pub struct MessageSender {
    store: Store,
    publisher: Publisher,
    bundles: BundlePlanner,
    clock: Clock,
    /// The activator of the republisher.
    pub activate_republisher: Arc<Notify>,
    permits: Arc<Semaphore>,
    in_flight: TaskTracker,
    confirmed: Arc<Mutex<Vec<ConfirmedMessage>>>,
}

impl MessageSender {
    /// Creates a sender. `activate_republisher` is notified when a message could not be published.
    #[must_use]
    pub fn new(store: Store, publisher: Publisher, clock: Clock, activate_republisher: Arc<Notify>) -> Self {
        Self {
            bundles: BundlePlanner::new(store.clone()),
            store,
            publisher,
            clock,
            activate_republisher,
            permits: Arc::new(Semaphore::new(MAX_BATCHES_IN_FLIGHT)),
            in_flight: TaskTracker::new(),
            confirmed: Arc::default(),
        }
    }

    /// Returns a sender for the runs that users and programs request. It has permits of its own, so that many requests at
    /// once do not delay due jobs.
    #[must_use]
    pub fn for_requests(&self) -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_BATCHES_IN_FLIGHT)), ..self.clone() }
    }

    /// Waits until the broker connection is open.
    pub async fn wait_until_ready(&self) {
        self.publisher.wait_until_up().await;
    }

    /// Publishes the messages of committed runs in the background, except of those that are held. Waits for a permit while
    /// too many batches are in flight, at most one second. A batch that cannot be published now is left to the
    /// republisher, which is activated when the broker is back, so that the caller does not wait for the broker.
    pub async fn send_created(&self, runs: Vec<QueuedRun>) {
        self.send(self.messages(runs)).await;
    }

    /// Does the same after `moment` has completed; the caller waits for nothing.
    pub fn send_created_after(&self, moment: impl Future<Output = ()> + Send + 'static, runs: Vec<QueuedRun>) {
        let (this, messages) = (self.clone(), self.messages(runs));
        let send = async move {
            moment.await;
            this.send(messages).await;
        };
        self.in_flight.spawn(send.in_current_span());
    }

    fn messages(&self, runs: Vec<QueuedRun>) -> Vec<OutgoingMessage> {
        let now = self.clock.now();
        runs.into_iter().filter(|run| !run.is_held).map(|run| outgoing(run, now)).collect()
    }

    async fn send(&self, messages: Vec<OutgoingMessage>) {
        if messages.is_empty() {
            return;
        }
        if !self.publisher.is_up() {
            // The connection may have been opened since the check.
            self.send_again(messages.iter().map(|out| out.message.occurrence_id));
            #[cfg(feature = "faults")]
            self.sabotage_unsent(&messages, &[]).await;
            return;
        }
        let Ok(Ok(permit)) = tokio::time::timeout(PERMIT_TIMEOUT, self.permits.clone().acquire_owned()).await else {
            self.send_again(messages.iter().map(|out| out.message.occurrence_id));
            return;
        };
        let this = self.clone();
        let publish = async move {
            let _permit = permit;
            this.publish_batch(&messages).await;
        };
        self.in_flight.spawn(publish.in_current_span());
    }

    /// Leaves unsent occurrences to the republisher, however young they are.
    pub fn send_again(&self, occurrences: impl IntoIterator<Item = OccurrenceId>) {
        self.publisher.note_unsent(occurrences);
        self.activate_republisher.notify_one();
    }

    /// Returns how messages are sent. Those that may have been sent before share none.
    pub(crate) async fn plan<'a>(&self, messages: &'a [OutgoingMessage]) -> SendPlan<'a> {
        self.bundles.plan(messages, self.clock.now()).await
    }

    /// Publishes a batch and records the confirmed messages for marking.
    pub(crate) async fn publish_batch(&self, messages: &[OutgoingMessage]) {
        let plan = self.plan(messages).await;
        let sent = self.publisher.publish(messages, &plan).await;
        if sent.len() < messages.len() {
            #[cfg(feature = "faults")]
            self.sabotage_unsent(messages, &sent).await;
            self.activate_republisher.notify_one();
        }
        measure_confirms(&self.store, messages, &sent, self.clock.now());
        if let Ok(mut confirmed) = self.confirmed.lock() {
            confirmed.extend(sent);
        }
    }

    /// Fails the occurrences whose messages were not confirmed, if a test has disabled their retry.
    #[cfg(feature = "faults")]
    async fn sabotage_unsent(&self, messages: &[OutgoingMessage], confirmed: &[ConfirmedMessage]) {
        let confirmed: HashSet<_> = confirmed.iter().map(|message| message.id).collect();
        let unsent = messages.iter().map(|out| (out.message.occurrence_id, out.message.attempt));
        let unsent = unsent.filter(|(id, _)| !confirmed.contains(id));
        self.store.sabotage_unsent(unsent.collect(), self.clock.now()).await;
    }

    /// Waits for the batches in flight and marks them. Called in an orderly stop, after all callers of
    /// [`send_created`](Self::send_created) have stopped.
    pub async fn drain(&self) {
        self.in_flight.close();
        self.in_flight.wait().await;
        if let Err(error) = self.mark().await {
            tracing::warn!(error = %error, "published occurrences could not be marked; they are published again, and the worker drops the duplicates");
        }
    }

    /// Marks the messages confirmed so far. Returns the number of rows changed. Messages that could not be marked are
    /// kept for the next call, also if this one is dropped.
    pub(crate) async fn mark(&self) -> crate::store::Result<u64> {
        let confirmed = || self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut marked = 0;
        loop {
            let batch: Vec<ConfirmedMessage> = confirmed().iter().take(MARK_BATCH).copied().collect();
            if batch.is_empty() {
                return Ok(marked);
            }
            marked += self.store.mark_published(&batch, false, self.clock.now()).await?;
            confirmed().drain(..batch.len());
        }
    }
}

/// Builds the message of a run, with its destination.
pub(crate) fn outgoing(run: QueuedRun, now: DateTime<Utc>) -> OutgoingMessage {
    OutgoingMessage { worker_id: run.worker_id.clone(), republished: run.may_be_sent, message: message(run, now) }
}

/// Records the delay of the first messages that the broker has confirmed by `at`.
pub(crate) fn measure_confirms(
    store: &Store,
    messages: &[OutgoingMessage],
    sent: &[ConfirmedMessage],
    at: DateTime<Utc>,
) {
    let sent: HashSet<OccurrenceId> = sent.iter().map(|message| message.id).collect();
    for out in messages {
        let message = &out.message;
        if message.attempt == 1 && sent.contains(&message.occurrence_id) {
            store.metrics().confirmed(trace_id(message), message.scheduled_for, at);
        }
    }
}
