//! Batches of messages on their way: published without holding up whoever made the rows, marked when confirmed.
//!
//! Up to `MAX_BATCHES_IN_FLIGHT` batches wait for their confirms at the same time. What is not confirmed stays unpublished in
//! PostgreSQL and belongs to the republisher.
//!
//! Marking is lazy. A short run has reported its end before half a second is over, and that report marks the row in
//! passing; what is then still to be marked is one statement for many rows instead of a third version of every row. A
//! server that dies in between has its messages sent once more, which the worker's claim makes harmless.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use milvaion_api::failures::FailureCause;
use milvaion_protocol::id::OccurrenceId;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::TaskTracker;

use super::BackgroundTask;
use crate::{
    broker::publisher::{ConfirmedMessage, OutgoingMessage, Publisher},
    clock::Clock,
    faults,
    store::{Store, dead_letters::DeadLetteredRun},
};

/// How many batches may wait for confirms.
const MAX_BATCHES_IN_FLIGHT: usize = 16;
/// How long a confirmed message waits to be marked.
const MARK_DELAY: Duration = Duration::from_millis(500);
/// How long a batch waits for its turn. A broker that is well confirms sooner; behind one that is not, due jobs would wait
/// for a message that cannot go anywhere.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How many rows one statement marks.
const MARK_BATCH: usize = 2_000;

/// The way to workers. Cloning gives the same one.
#[derive(Clone, Debug)]
pub struct MessageSender {
    store: Store,
    publisher: Publisher,
    clock: Clock,
    activate_republisher: Arc<Notify>,
    permits: Arc<Semaphore>,
    in_flight: TaskTracker,
    confirmed: Arc<Mutex<Vec<ConfirmedMessage>>>,
}

impl MessageSender {
    /// A sender; `activate_republisher` is woken when a message did not get through.
    #[must_use]
    pub fn new(store: Store, publisher: Publisher, clock: Clock, activate_republisher: Arc<Notify>) -> Self {
        Self {
            store,
            publisher,
            clock,
            activate_republisher,
            permits: Arc::new(Semaphore::new(MAX_BATCHES_IN_FLIGHT)),
            in_flight: TaskTracker::new(),
            confirmed: Arc::default(),
        }
    }

    /// Waits until there is a way to the broker.
    pub async fn wait_until_ready(&self) {
        self.publisher.wait_until_up().await;
    }

    /// Publishes a batch without waiting for it; waits a little while too many are on their way. What cannot be sent now
    /// is left to the republisher, which is woken when the broker is back: whoever sends has more to do than wait for it.
    pub async fn send(&self, messages: Vec<OutgoingMessage>) {
        if messages.is_empty() {
            return;
        }
        if !self.publisher.is_up() {
            self.publisher.note_unsent(messages.iter().map(|out| out.message.occurrence_id));
            // The way may have opened since it was asked for.
            self.activate_republisher.notify_one();
            return self.give_up(&messages, &[]).await;
        }
        let Ok(Ok(permit)) = tokio::time::timeout(PERMIT_TIMEOUT, self.permits.clone().acquire_owned()).await else {
            self.publisher.note_unsent(messages.iter().map(|out| out.message.occurrence_id));
            self.activate_republisher.notify_one();
            return;
        };
        let this = self.clone();
        self.in_flight.spawn(async move {
            let _permit = permit;
            this.publish_batch(&messages).await;
        });
    }

    /// Publishes a batch when `moment` has come; returns at once.
    pub fn send_after(&self, moment: impl Future<Output = ()> + Send + 'static, messages: Vec<OutgoingMessage>) {
        let this = self.clone();
        self.in_flight.spawn(async move {
            moment.await;
            this.send(messages).await;
        });
    }

    /// Publishes a batch and notes what was confirmed.
    pub(super) async fn publish_batch(&self, messages: &[OutgoingMessage]) {
        let sent = self.publisher.publish(messages).await;
        if sent.len() < messages.len() {
            self.give_up(messages, &sent).await;
            self.activate_republisher.notify_one();
        }
        if let Ok(mut confirmed) = self.confirmed.lock() {
            confirmed.extend(sent);
        }
    }

    /// Sabotage: gives up what is not `sent`, instead of leaving it to the republisher.
    async fn give_up(&self, messages: &[OutgoingMessage], sent: &[ConfirmedMessage]) {
        if !faults::sabotaged("fail_unpublished") {
            return;
        }
        let sent: HashSet<OccurrenceId> = sent.iter().map(|(id, _)| *id).collect();
        let left: Vec<DeadLetteredRun> = messages
            .iter()
            .filter(|out| !sent.contains(&out.message.occurrence_id))
            .map(|out| DeadLetteredRun {
                id: out.message.occurrence_id,
                attempt: i32::try_from(out.message.attempt).unwrap_or(i32::MAX),
                cause: FailureCause::Rejected,
                reason: "Its message could not be published.".to_owned(),
                fingerprint: "unpublished".to_owned(),
                by_worker: false,
            })
            .collect();
        for given_up in left {
            if let Err(error) = self.store.fail_dead_lettered(&given_up, self.clock.now()).await {
                tracing::warn!(error = %error, "a sabotage could not be done");
            }
        }
    }

    /// Waits for what is on its way and marks it. For an orderly stop, after whoever sends has stopped.
    pub async fn drain(&self) {
        self.in_flight.close();
        self.in_flight.wait().await;
        if let Err(error) = self.mark().await {
            tracing::warn!(error = %error, "published occurrences could not be marked; they will be sent once more and dropped by the worker");
        }
    }

    /// Marks what was confirmed so far. Returns how many rows that changed.
    async fn mark(&self) -> crate::store::Result<u64> {
        let confirmed = self.confirmed.lock().map(|mut ids| std::mem::take(&mut *ids)).unwrap_or_default();
        let mut marked = 0;
        for some in confirmed.chunks(MARK_BATCH) {
            marked += self.store.mark_published(some, self.clock.now()).await?;
        }
        Ok(marked)
    }
}

/// The task that marks.
#[derive(Debug)]
pub struct PublishMarker {
    /// Whose messages.
    pub sender: MessageSender,
}

/// What one tick did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishMarkReport {
    /// Rows that no report had marked in passing.
    pub rows: u64,
}

impl BackgroundTask for PublishMarker {
    const NAME: &'static str = "publish-marker";
    type Report = PublishMarkReport;

    fn period(&self) -> Duration {
        MARK_DELAY
    }

    async fn tick(&mut self) -> anyhow::Result<PublishMarkReport> {
        Ok(PublishMarkReport { rows: self.sender.mark().await? })
    }

    fn is_notable(_: &PublishMarkReport) -> bool {
        false
    }
}
