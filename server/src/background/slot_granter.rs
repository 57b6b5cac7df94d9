//! Grants slots to occurrences that wait for a concurrency limit.
//!
//! Occurrences of jobs that do not overlap, that have a limit or that share a concurrency key are created waiting for a
//! slot. Whenever one is created or ends, the slot granter grants the free slots: highest priority first, then oldest
//! first. For jobs with the overlap rule *replace*, it cancels the earlier occurrences and starts the new one when they
//! have ended, so that never two run at once.
//!
//! It also publishes occurrences whose delay has passed: retries, and attempts that a worker handed back for a while.
//! It sleeps until the earliest of them. Runs that were lost with their worker too often are quarantined and start one
//! after another (`domain::quarantine`).
//!
//! The task runs on every server, leader or not, because it is activated where a run ended. A lock around the statement
//! that grants slots makes that safe.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::{sync::Notify, time::Instant};

use super::steps::Steps;
use crate::{
    cache::Cache,
    clock::Clock,
    command::jobs::JobCommands,
    engine::{Service, activators::EndedJobs, context::Context, sender::MessageSender},
    store::{Store, jobs::AuditStamp},
};

/// The most occurrences to which one statement grants a slot, or which it releases after their delay.
const GRANT_BATCH: i64 = 500;

/// The time between two looks at all jobs whose pause counts from the end of a run.
const SWEEP_INTERVAL: Duration = Duration::from_secs(9);

/// The interval at which the quarantine is checked while a run waits in it.
const QUARANTINE_POLL_INTERVAL: chrono::Duration = chrono::Duration::milliseconds(500);

/// The background task that grants slots and releases delayed occurrences.
#[derive(Debug)]
pub struct SlotGranter {
    /// The PostgreSQL store.
    pub store: Store,
    /// The Redis cache with the due index.
    pub cache: Cache,
    /// The sender of job messages.
    pub sender: MessageSender,
    /// The commands that cancel replaced occurrences.
    pub jobs: JobCommands,
    /// The server's clock.
    pub clock: Clock,
    /// The activator of the dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// The jobs of which a run has ended since the last tick.
    pub ended_jobs: EndedJobs,
    /// The instant of the last look at all jobs whose pause counts from the end of a run.
    pub last_sweep: Option<Instant>,
    /// The instant at which the next delayed occurrence is due, as of the last tick.
    pub next: Option<DateTime<Utc>>,
}

impl SlotGranter {
    /// Creates the granter of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            sender: context.sender.clone(),
            jobs: JobCommands::of(context),
            clock: context.clock.clone(),
            activate_dispatcher: context.activators.dispatcher.clone(),
            ended_jobs: context.activators.ended_jobs.clone(),
            last_sweep: None,
            next: None,
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SlotGrantReport {
    /// Occurrences that were granted a slot.
    pub granted: usize,
    /// Delayed attempts that became due.
    pub retried: usize,
    /// Occurrences that were cancelled, or whose cancellation was requested, because a newer one replaces them.
    pub replaced: usize,
    /// Jobs whose pause after the end of a run has begun.
    pub paused: usize,
    /// True if the tick ended before it had granted or released all.
    pub has_more: bool,
}

impl Service for SlotGranter {
    const NAME: &'static str = "slot-granter";
    type Report = SlotGrantReport;

    fn period(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn next_tick_in(&self) -> Option<Duration> {
        Some((self.next? - self.clock.now()).to_std().unwrap_or_default())
    }

    async fn tick(&mut self) -> anyhow::Result<SlotGrantReport> {
        let (mut report, mut steps) = (SlotGrantReport::default(), Steps::new(Self::NAME));
        let slice_end = Self::slice_end();
        report.replaced = steps.result("replacement", self.cancel_replaced().await).unwrap_or_default();
        steps.result("delays", self.end_delays(&mut report, slice_end).await);
        // After the delays have ended, because some of the released occurrences wait for a slot now.
        steps.result("slots", self.grant(&mut report, slice_end).await);
        report.paused = steps.result("pauses", self.begin_pauses().await).unwrap_or_default();
        steps.end(report)
    }

    fn has_more(report: &SlotGrantReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &SlotGrantReport) -> bool {
        report.replaced > 0
    }
}

impl SlotGranter {
    /// Cancels the occurrences that a newer one of their job replaces. Returns their number.
    async fn cancel_replaced(&self) -> anyhow::Result<usize> {
        let replaced: Vec<_> =
            self.store.occurrences_to_replace(GRANT_BATCH).await?.into_iter().map(|(old, _)| old).collect();
        if replaced.is_empty() {
            return Ok(0);
        }
        let edit = AuditStamp { by: "system", at: self.clock.now(), address: None };
        let why = Some("Replaced by a newer occurrence of the job.");
        Ok(self.jobs.cancel_all(&replaced, why, edit).await?.len())
    }

    /// Sends the occurrences whose delay has ended, and notes when the next delay ends.
    async fn end_delays(&mut self, report: &mut SlotGrantReport, slice_end: Instant) -> anyhow::Result<()> {
        // Success sets it again. After a failure, the next tick follows within the period.
        self.next = None;
        let delays = self.store.next_delayed_times().await?;
        let is_due = |at: Option<DateTime<Utc>>| at.is_some_and(|at| at <= self.clock.now());
        if is_due(delays.in_quarantine) {
            let queued = self.store.release_quarantined(self.clock.now()).await?;
            report.retried += queued.len();
            self.sender.send_created(queued).await;
        }
        let delays = if is_due(delays.outside_quarantine) || is_due(delays.in_quarantine) {
            loop {
                let queued = self.store.release_delayed(self.clock.now(), GRANT_BATCH).await?;
                if queued.is_empty() {
                    break;
                }
                report.retried += queued.len();
                self.sender.send_created(queued).await;
                if Instant::now() > slice_end {
                    report.has_more = true;
                    break;
                }
            }
            self.store.next_delayed_times().await?
        } else {
            delays
        };
        // Not each change of the run ahead of it activates this task, so the quarantine is polled while a run waits in it.
        let quarantined = delays.in_quarantine.map(|at| at.max(self.clock.now() + QUARANTINE_POLL_INTERVAL));
        self.next = delays.outside_quarantine.into_iter().chain(quarantined).min();
        Ok(())
    }

    /// Grants the free slots, and sends the occurrences that get one.
    async fn grant(&self, report: &mut SlotGrantReport, slice_end: Instant) -> anyhow::Result<()> {
        loop {
            let queued = self.store.grant_slots(GRANT_BATCH, self.clock.now()).await?;
            if queued.is_empty() {
                return Ok(());
            }
            report.granted += queued.len();
            self.sender.send_created(queued).await;
            if Instant::now() > slice_end {
                report.has_more = true;
                return Ok(());
            }
        }
    }

    /// Sets the due times of jobs whose pause counts from the end of a run that has just ended, and now and then of all
    /// such jobs. After an error, the next tick looks at all. Returns their number.
    async fn begin_pauses(&mut self) -> anyhow::Result<usize> {
        let ended = self.ended_jobs.take();
        let last_sweep = self.last_sweep.take().filter(|at| at.elapsed() < SWEEP_INTERVAL);
        if last_sweep.is_some() && ended.is_empty() {
            self.last_sweep = last_sweep;
            return Ok(0);
        }
        let of = last_sweep.is_some().then_some(&ended[..]);
        let paused = self.store.schedule_after_end(of, self.clock.now()).await?;
        self.last_sweep = last_sweep.or_else(|| Some(Instant::now()));
        if !paused.is_empty() {
            let paused: Vec<_> = paused.iter().map(|(id, at)| (*id, Some(*at))).collect();
            self.activate_dispatcher.notify_one();
            // Another server may be the leader. Entries that do not reach Redis are found by the next rebuild.
            self.cache.note_changed(&paused, async |ids| anyhow::Ok(self.store.due_times(ids).await?)).await?;
            self.cache.announce_schedule_change().await?;
        }
        Ok(paused.len())
    }
}
