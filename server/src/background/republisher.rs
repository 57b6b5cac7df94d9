//! Publishes unsent occurrences again: those that are committed but not confirmed by the broker.
//!
//! A row exists before its message does. A server that crashes between the two, a broker that is down and a lost
//! confirm all leave the same state: `publish_after` is set and has passed. Publishing again is safe, because a worker claims an
//! occurrence before it runs it; the message is marked as republished, so that the worker checks the claim first.
//!
//! Such a row may also belong to a message that this or another server is publishing right now.
//! In general only the age of the row distinguishes the two. For messages that this server itself failed to publish,
//! the age does not matter: they are published again as soon as the connection is back. A lost connection then costs a
//! moment instead of seconds.

use std::{collections::HashSet, sync::Arc, time::Duration};

use milvaion_protocol::id::OccurrenceId;
use tokio::{sync::Notify, time::Instant};

use crate::{
    broker::publisher::{MAX_UNSENT, OutgoingMessage, Publisher},
    clock::Clock,
    engine::{
        Service,
        context::Context,
        sender::{MessageSender, measure_confirms, outgoing},
    },
    store::Store,
};

/// The most messages published per query.
const REPUBLISH_BATCH: i64 = 500;

/// The background task that republishes unsent occurrences.
#[derive(Debug)]
pub struct Republisher {
    /// The PostgreSQL store.
    pub store: Store,
    /// The publisher of job messages.
    pub publisher: Publisher,
    /// The sender, which plans how messages are sent.
    pub sender: MessageSender,
    /// The server's clock.
    pub clock: Clock,
    /// The time between two ticks, and the minimum age of a row that is republished.
    pub period: Duration,
    /// Occurrences that this server failed to publish and has not tried again yet.
    pub known_unsent: HashSet<OccurrenceId>,
}

impl Republisher {
    /// Creates the republisher of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            publisher: context.publisher.clone(),
            sender: context.sender.clone(),
            clock: context.clock.clone(),
            period: context.config.background.republish,
            known_unsent: HashSet::new(),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RepublishReport {
    /// Unsent occurrences that were found.
    pub found: usize,
    /// Occurrences that were published and confirmed in this tick.
    pub sent: usize,
    /// True if the tick ended before it had seen all.
    pub has_more: bool,
}

impl Service for Republisher {
    const NAME: &'static str = "republisher";
    type Report = RepublishReport;

    fn period(&self) -> Duration {
        self.period
    }

    async fn tick(&mut self) -> anyhow::Result<RepublishReport> {
        let mut total = RepublishReport::default();
        // Younger rows are most likely being published right now, except those that failed here.
        let age = chrono::Duration::from_std(self.period).unwrap_or_default();
        let slice_end = Self::slice_end();
        // What fails during this tick is left to the next one.
        let capacity = MAX_UNSENT.saturating_sub(self.known_unsent.len());
        self.known_unsent.extend(self.publisher.take_unsent().into_iter().take(capacity));
        while self.publisher.is_up() {
            if Instant::now() > slice_end {
                total.has_more = true;
                break;
            }
            let now = self.clock.now();
            let failed_here: Vec<OccurrenceId> = self.known_unsent.iter().copied().collect();
            let parked = self.publisher.parked();
            let found = self.store.claim_unsent(now - age, &failed_here, &parked, REPUBLISH_BATCH, now).await?;
            let is_all = i64::try_from(found.len()).is_ok_and(|found| found < REPUBLISH_BATCH);
            // The remaining known occurrences need no message, because they were published or have ended. During a
            // cluster pause they may still need one.
            if is_all && !self.known_unsent.is_empty() && !self.store.is_cluster_paused().await? {
                self.known_unsent.clear();
            }
            for queued in &found {
                self.known_unsent.remove(&queued.id);
            }
            #[cfg(feature = "faults")]
            let found = super::sabotage::newer_than_before(found);
            if found.is_empty() {
                break;
            }
            let messages: Vec<OutgoingMessage> = found.into_iter().map(|run| outgoing(run, now)).collect();
            // Each has a message of its own: what is sent again may run already, and is checked one by one.
            let plan = self.sender.plan(&messages).await;
            let sent = self.publisher.publish(&messages, &plan).await;
            measure_confirms(&self.store, &messages, &sent, self.clock.now());
            self.store.mark_published(&sent, true, self.clock.now()).await?;
            total.found += messages.len();
            total.sent += sent.len();
            // A refused queue is parked and not found again. Without one, the broker takes no message at all.
            if sent.is_empty() && self.publisher.parked().len() <= parked.len() {
                break;
            }
        }
        Ok(total)
    }

    fn has_more(report: &RepublishReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &RepublishReport) -> bool {
        report.found > 0
    }
}

/// Activates the republisher whenever the broker connection is back.
pub async fn activate_when_up(publisher: Publisher, activator: Arc<Notify>) {
    loop {
        publisher.wait_until_up().await;
        activator.notify_one();
        publisher.wait_until_down().await;
    }
}
