//! Occurrences that are committed but not known to be at the broker are sent again.
//!
//! A row exists before its message does, so a server that dies between the two, a broker that is away and a confirm that
//! is lost all leave the same trace: `published_at IS NULL`. Sending again is harmless, because a worker claims an
//! occurrence before it runs it; the copy is marked, so that the worker looks twice.
//!
//! A row without the mark may also be one whose message is on its way right now, from here or from another server. Only
//! its age tells these apart, except where this server knows better: what it tried to send and could not is sent again
//! as soon as there is a way, however young it is. A connection that ends costs a moment then, not seconds.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use milvaion_protocol::id::OccurrenceId;
use tokio::sync::Notify;

use super::BackgroundTask;
use crate::{
    broker::publisher::{MAX_UNSENT, OutgoingMessage, Publisher},
    clock::Clock,
    domain::message::{QueuedOccurrence, message},
    faults,
    store::Store,
};

/// How many are sent at once.
const REPUBLISH_BATCH: i64 = 500;

/// The task.
#[derive(Debug)]
pub struct Republisher {
    /// The truth.
    pub store: Store,
    /// The way to workers.
    pub publisher: Publisher,
    /// What time it is.
    pub clock: Clock,
    /// How often, and from which age on.
    pub period: Duration,
    /// What is known not to be on its way, and was not tried again yet.
    pub known_unsent: HashSet<OccurrenceId>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepublishReport {
    /// Found without a confirm.
    pub found: usize,
    /// Confirmed now.
    pub sent: usize,
}

impl BackgroundTask for Republisher {
    const NAME: &'static str = "republisher";
    type Report = RepublishReport;

    fn period(&self) -> Duration {
        self.period
    }

    async fn tick(&mut self) -> anyhow::Result<RepublishReport> {
        let mut total = RepublishReport::default();
        // Younger ones are most likely on their way right now, except those of which is known that they are not.
        let age = chrono::Duration::from_std(self.period).unwrap_or_default();
        while self.publisher.is_up() {
            let now = self.clock.now();
            let room = MAX_UNSENT.saturating_sub(self.known_unsent.len());
            self.known_unsent.extend(self.publisher.take_unsent().into_iter().take(room));
            let left: Vec<OccurrenceId> = self.known_unsent.iter().copied().collect();
            let mut found = self.store.unsent_occurrences(now - age, &left, REPUBLISH_BATCH).await?;
            let is_all = i64::try_from(found.len()).is_ok_and(|found| found < REPUBLISH_BATCH);
            // Nobody waits for the others: they are sent, or over. Except in a pause, after which some are sent.
            if is_all && !self.known_unsent.is_empty() && !self.store.is_cluster_paused().await? {
                self.known_unsent.clear();
            }
            for queued in &found {
                self.known_unsent.remove(&queued.id);
            }
            if faults::sabotaged("skip_republish_lookback") {
                only_newer(&mut found);
            }
            if found.is_empty() {
                break;
            }
            let messages: Vec<OutgoingMessage> = found
                .into_iter()
                .map(|queued| OutgoingMessage {
                    worker_id: queued.worker_id.clone(),
                    message: message(queued, now),
                    republished: true,
                })
                .collect();
            let sent = self.publisher.publish(&messages).await;
            self.store.mark_published(&sent, self.clock.now()).await?;
            total.found += messages.len();
            total.sent += sent.len();
            if sent.len() < messages.len() {
                break;
            }
        }
        Ok(total)
    }

    fn is_notable(report: &RepublishReport) -> bool {
        report.found > 0
    }
}

/// Sabotage: leaves out what is not beyond the last id that was seen.
fn only_newer(found: &mut Vec<QueuedOccurrence>) {
    static LAST: Mutex<Option<OccurrenceId>> = Mutex::new(None);
    if let Ok(mut last) = LAST.lock() {
        let seen = *last;
        found.retain(|queued| seen.is_none_or(|seen| queued.id > seen));
        *last = found.iter().map(|queued| queued.id).max().or(seen);
    }
}

/// Wakes the republisher whenever the broker comes back.
pub async fn activate_when_up(publisher: Publisher, wake: Arc<Notify>) {
    loop {
        publisher.wait_until_up().await;
        wake.notify_one();
        publisher.wait_until_down().await;
    }
}
