//! Lets go what waits for a slot.
//!
//! Jobs that take turns, jobs with a limit and jobs that share a key make their occurrences *held*. Whenever one is made
//! or one ends, this looks at all that wait and gives out what is free: most urgent first, then oldest. Jobs that
//! *replace* have their earlier occurrences cancelled here, and start when those have ended: never two at once.
//!
//! It also lets go what waits for its time: retries, and what a worker handed back for a while. It sleeps until the
//! earliest of them. Those that were lost with their worker too often take turns besides (`domain::quarantine`).
//!
//! It runs on every server, leader or not, for it is woken where something ended; the lock around the statement that
//! gives out slots makes that safe.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::{BackgroundTask, sender::MessageSender};
use crate::{
    broker::publisher::OutgoingMessage,
    cache::Cache,
    clock::Clock,
    command::jobs::JobCommands,
    domain::{
        message::{QueuedOccurrence, message},
        quarantine,
    },
    store::{Store, jobs::AuditStamp},
};

/// How many are let go at once.
const GRANT_BATCH: i64 = 500;

/// The task.
#[derive(Debug)]
pub struct SlotGranter {
    /// The truth.
    pub store: Store,
    /// The fast clock.
    pub cache: Cache,
    /// The way to workers.
    pub sender: MessageSender,
    /// Cancels what is replaced.
    pub jobs: JobCommands,
    /// What time it is.
    pub clock: Clock,
    /// Wakes the dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// When something that waits for its time is to go, as far as the last tick saw.
    pub next: Option<DateTime<Utc>>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotGrantReport {
    /// Given a slot and let go.
    pub granted: usize,
    /// Attempts whose time has come.
    pub retried: usize,
    /// Cancelled, or asked to end, because a younger one takes their place.
    pub replaced: usize,
    /// Jobs whose pause after a run begins.
    pub paused: usize,
}

impl BackgroundTask for SlotGranter {
    const NAME: &'static str = "slot-granter";
    type Report = SlotGrantReport;

    fn period(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn next_tick_in(&self) -> Option<Duration> {
        Some((self.next? - self.clock.now()).to_std().unwrap_or_default())
    }

    async fn tick(&mut self) -> anyhow::Result<SlotGrantReport> {
        let mut report = SlotGrantReport::default();
        // Known again when this tick has gone well; after one that has not, the period is soon enough.
        self.next = None;
        let replaced: Vec<_> =
            self.store.occurrences_to_replace(GRANT_BATCH).await?.into_iter().map(|(old, _)| old).collect();
        if !replaced.is_empty() {
            let edit = AuditStamp { by: "system", at: self.clock.now() };
            let why = Some("A newer occurrence of its job takes its place.");
            report.replaced = self.jobs.cancel_all(&replaced, why, edit).await?.len();
        }
        loop {
            let queued = self.store.grant_slots(GRANT_BATCH).await?;
            if queued.is_empty() {
                break;
            }
            report.granted += queued.len();
            self.send(queued).await;
        }
        let waits = self.store.next_delayed_times().await?;
        let is_due = |at: Option<DateTime<Utc>>| at.is_some_and(|at| at <= self.clock.now());
        if is_due(waits.in_lane) {
            let queued = self.store.release_quarantined(self.clock.now()).await?;
            report.retried += queued.len();
            self.send(queued).await;
        }
        // Who was acquitted is in no lane any more.
        let waits = if is_due(waits.plain) || is_due(waits.in_lane) {
            loop {
                let queued = self.store.release_delayed(self.clock.now(), GRANT_BATCH).await?;
                if queued.is_empty() {
                    break;
                }
                report.retried += queued.len();
                self.send(queued).await;
            }
            self.store.next_delayed_times().await?
        } else {
            waits
        };
        // Nobody tells when a turn is over; while somebody waits for one, it is looked for.
        let in_lane = waits.in_lane.map(|at| at.max(self.clock.now() + quarantine::QUARANTINE_POLL_INTERVAL));
        self.next = waits.plain.into_iter().chain(in_lane).min();
        let paused: Vec<_> = self.store.schedule_after_end(self.clock.now()).await?;
        report.paused = paused.len();
        if !paused.is_empty() {
            let paused: Vec<_> = paused.into_iter().map(|(id, at)| (id, Some(at))).collect();
            self.activate_dispatcher.notify_one();
            // The dispatcher may be another server's. What Redis does not hear is found again by the rebuild.
            self.cache.note_due(&paused).await?;
            self.cache.announce_schedule_change().await?;
        }
        Ok(report)
    }

    fn is_notable(report: &SlotGrantReport) -> bool {
        report.replaced > 0
    }
}

impl SlotGranter {
    async fn send(&self, queued: Vec<QueuedOccurrence>) {
        let now = self.clock.now();
        let messages = queued
            .into_iter()
            .map(|queued| OutgoingMessage {
                worker_id: queued.worker_id.clone(),
                message: message(queued, now),
                republished: false,
            })
            .collect();
        self.sender.send(messages).await;
    }
}
