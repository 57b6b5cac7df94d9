//! Batches of messages on their way: published without holding up whoever made the rows, marked when confirmed.
//!
//! Up to `IN_FLIGHT` batches wait for their confirms at the same time. What is not confirmed stays unpublished in
//! PostgreSQL and belongs to the republisher.
//!
//! Marking is lazy. A short run has reported its end before half a second is over, and that report marks the row in
//! passing; what is then still to be marked is one statement for many rows instead of a third version of every row. A
//! server that dies in between has its messages sent once more, which the worker's claim makes harmless.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use protocol::id::OccurrenceId;
use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    broker::publisher::{Outgoing, Publisher},
    clock::Clock,
    store::Store,
};

/// How many batches may wait for confirms.
const IN_FLIGHT: usize = 16;
/// How long a confirmed message waits to be marked.
const LINGER: Duration = Duration::from_millis(500);
/// How many rows one statement marks.
const MARK: usize = 2_000;

/// The way to workers. Cloning gives the same one.
#[derive(Clone, Debug)]
pub struct Sender {
    store: Store,
    publisher: Publisher,
    clock: Clock,
    republish: Arc<Notify>,
    gate: Arc<Semaphore>,
    flights: TaskTracker,
    confirmed: Arc<Mutex<Vec<OccurrenceId>>>,
    marks: Arc<Notify>,
}

impl Sender {
    /// A sender; `republish` is woken when a message did not get through.
    #[must_use]
    pub fn new(store: Store, publisher: Publisher, clock: Clock, republish: Arc<Notify>) -> Self {
        Self {
            store,
            publisher,
            clock,
            republish,
            gate: Arc::new(Semaphore::new(IN_FLIGHT)),
            flights: TaskTracker::new(),
            confirmed: Arc::default(),
            marks: Arc::default(),
        }
    }

    /// Publishes a batch without waiting for it; waits only while too many are on their way.
    pub async fn send(&self, messages: Vec<Outgoing>) {
        if messages.is_empty() {
            return;
        }
        // Closed only when the process ends.
        let Ok(permit) = self.gate.clone().acquire_owned().await else { return };
        let this = self.clone();
        self.flights.spawn(async move {
            let _permit = permit;
            let sent = this.publisher.publish(&messages).await;
            if sent.len() < messages.len() {
                this.republish.notify_one();
            }
            if let Ok(mut confirmed) = this.confirmed.lock() {
                confirmed.extend(sent);
            }
            this.marks.notify_one();
        });
    }

    /// Marks what was confirmed, until `stop`; then waits for what is on its way and marks the rest.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.marks.notified() => {}
                () = stop.cancelled() => break,
            }
            tokio::select! {
                () = tokio::time::sleep(LINGER) => {}
                () = stop.cancelled() => break,
            }
            self.mark().await;
        }
        self.flights.close();
        self.flights.wait().await;
        self.mark().await;
    }

    /// Marks what was confirmed so far.
    pub async fn mark(&self) {
        let confirmed = self.confirmed.lock().map(|mut ids| std::mem::take(&mut *ids)).unwrap_or_default();
        for some in confirmed.chunks(MARK) {
            if let Err(error) = self.store.mark_published(some, self.clock.now()).await {
                tracing::warn!(error = %error, "published occurrences could not be marked; they will be sent once more and dropped by the worker");
            }
        }
    }
}
