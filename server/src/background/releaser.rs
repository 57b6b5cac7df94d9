//! Lets go what waits for a slot.
//!
//! Jobs that take turns, jobs with a limit and jobs that share a key make their occurrences *held*. Whenever one is made
//! or one ends, this looks at all that wait and gives out what is free: most urgent first, then oldest. Jobs that
//! *replace* have their earlier occurrences cancelled here, and start when those have ended: never two at once.
//!
//! It also lets go what waits for its time: retries, and what a worker handed back for a while. It sleeps until the
//! earliest of them. Those that were lost with their worker too often take turns besides (`domain::lane`).
//!
//! It runs on every server, leader or not, for it is woken where something ended; the lock around the statement that
//! gives out slots makes that safe.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::{Task, sender::Sender};
use crate::{
    broker::publisher::Outgoing,
    cache::Cache,
    clock::Clock,
    command::jobs::Jobs,
    domain::{
        lane,
        message::{Queued, message},
    },
    store::{Store, jobs::Edit},
};

/// How many are let go at once.
const BATCH: i64 = 500;

/// The task.
#[derive(Debug)]
pub struct Releaser {
    /// The truth.
    pub store: Store,
    /// The fast clock.
    pub cache: Cache,
    /// The way to workers.
    pub sender: Sender,
    /// Cancels what is replaced.
    pub jobs: Jobs,
    /// What time it is.
    pub clock: Clock,
    /// Wakes the dispatcher.
    pub wake: Arc<Notify>,
    /// When something that waits for its time is to go, as far as the last tick saw.
    pub next: Option<DateTime<Utc>>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Given a slot and let go.
    pub released: usize,
    /// Attempts whose time has come.
    pub retried: usize,
    /// Cancelled, or asked to end, because a younger one takes their place.
    pub replaced: usize,
    /// Jobs whose pause after a run begins.
    pub paused: usize,
}

impl Task for Releaser {
    const NAME: &'static str = "releaser";
    type Report = Released;

    fn period(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn appointment(&self) -> Option<Duration> {
        Some((self.next? - self.clock.now()).to_std().unwrap_or_default())
    }

    async fn tick(&mut self) -> anyhow::Result<Released> {
        let mut report = Released::default();
        // Known again when this tick has gone well; after one that has not, the period is soon enough.
        self.next = None;
        let replaced: Vec<_> = self.store.replaced(BATCH).await?.into_iter().map(|(old, _)| old).collect();
        if !replaced.is_empty() {
            let edit = Edit { by: "system", at: self.clock.now() };
            let why = Some("A newer occurrence of its job takes its place.");
            report.replaced = self.jobs.cancel_all(&replaced, why, edit).await?.len();
        }
        loop {
            let queued = self.store.release(BATCH).await?;
            if queued.is_empty() {
                break;
            }
            report.released += queued.len();
            self.send(queued).await;
        }
        let waits = self.store.next_waits().await?;
        let is_due = |at: Option<DateTime<Utc>>| at.is_some_and(|at| at <= self.clock.now());
        if is_due(waits.in_lane) {
            let queued = self.store.take_turns(self.clock.now()).await?;
            report.retried += queued.len();
            self.send(queued).await;
        }
        // Who was acquitted is in no lane any more.
        let waits = if is_due(waits.plain) || is_due(waits.in_lane) {
            loop {
                let queued = self.store.let_go(self.clock.now(), BATCH).await?;
                if queued.is_empty() {
                    break;
                }
                report.retried += queued.len();
                self.send(queued).await;
            }
            self.store.next_waits().await?
        } else {
            waits
        };
        // Nobody tells when a turn is over; while somebody waits for one, it is looked for.
        let in_lane = waits.in_lane.map(|at| at.max(self.clock.now() + lane::LOOK));
        self.next = waits.plain.into_iter().chain(in_lane).min();
        let paused: Vec<_> = self.store.begin_pauses(self.clock.now()).await?;
        report.paused = paused.len();
        if !paused.is_empty() {
            let paused: Vec<_> = paused.into_iter().map(|(id, at)| (id, Some(at))).collect();
            self.wake.notify_one();
            // The dispatcher may be another server's. What Redis does not hear is found again by the rebuild.
            self.cache.note_due(&paused).await?;
            self.cache.wake().await?;
        }
        Ok(report)
    }

    fn is_news(report: &Released) -> bool {
        report.replaced > 0
    }
}

impl Releaser {
    async fn send(&self, queued: Vec<Queued>) {
        let now = self.clock.now();
        let messages = queued
            .into_iter()
            .map(|queued| Outgoing {
                worker_id: queued.worker_id.clone(),
                message: message(queued, now),
                republished: false,
            })
            .collect();
        self.sender.send(messages).await;
    }
}
