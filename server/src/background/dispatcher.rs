//! Turns due jobs into occurrences, and occurrences into messages.
//!
//! The dispatcher sleeps until the earliest due time in Redis, or until it is activated after a schedule change. It
//! does not poll while Redis is available. Without Redis, or with an incomplete index, it queries PostgreSQL for the
//! earliest due time. Without Redis it does so at least once per sweep (one second by default), because it is not
//! notified of changes by other servers then.
//!
//! Only the leader dispatches; the statement that fires checks its fencing epoch. Correctness does not depend on this:
//! a compare-and-swap in the store lets exactly one server fire a given (job, due time), however many try. For that
//! reason all servers dispatch while Redis is down and no leader can be elected.
//!
//! Reading, deciding and committing take milliseconds, and a row must exist before its message is published. The
//! dispatcher therefore does this [`HEAD_START`] before the due time. At the due time a [`PreciseTimer`] wakes the
//! sender, which only publishes. Nothing is published early, and nothing is decided early that may still change: a job
//! that waits for a slot, or whose occurrence would be skipped because an earlier one is open, is read again when it is
//! due.
//!
//! Publishing does not delay the next tick; see [`crate::engine::sender`].

mod batch;
mod decide;
mod stuck;
mod unreadable;

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::bail;
use chrono::{DateTime, Utc};
use milvaion_protocol::id::JobId;
use milvaion_telemetry::SPANS;
use milvaion_timer::PreciseTimer;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

pub use batch::DispatchReport;
pub use decide::CatchUps;
use stuck::StuckCheck;
pub use unreadable::UnreadableJobs;

use crate::{
    cache::{Cache, schedule::DueChange},
    clock::Clock,
    config::background::BackgroundConfig,
    engine::{
        context::Context, dispatch_pulse::DispatchPulse, leadership::Leadership, sender::MessageSender,
        status::ServiceStatuses,
    },
    live::Hub,
    store::Store,
};

/// The dispatcher's name in the health report.
pub const NAME: &str = "dispatcher";
/// The longest time for a tick. A longer one is dropped, as if the process had crashed there.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The time by which an occurrence is created ahead of its due time. It is too short for a user to notice that an edit
/// or a pause came after the occurrence was created.
///
/// It is chosen from the histogram `milvaion_created_before_due_seconds`, which says how much of it is left after the
/// commit. While the 1st percentile is above 0, it is long enough for 99 of 100 occurrences; otherwise it is too short by
/// as much as the percentile is below 0. A longer one only costs: if a server is killed, the occurrences that it has
/// created ahead wait `REPUBLISH_SECONDS` for the republisher, and a head start of 60 ms makes them three times as many.
pub const HEAD_START: Duration = Duration::from_millis(20);
/// The longest sleep. Even if nothing is due for a year, the health report requires a tick within three times this
/// period.
const MAX_SLEEP: Duration = Duration::from_secs(30);
/// The time between two checks of a paused cluster, in case the activation after the resume was lost.
const PAUSED_RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait of the first tick for a broker connection. Without one, occurrences are recorded all the same.
const STARTUP_BROKER_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of due jobs that are tried even if more have failed.
const MIN_BATCH: i64 = 16;
/// The pause when another server is firing everything that is due.
const CONTENTION_PAUSE: Duration = Duration::from_millis(20);

/// The dispatcher of scheduled jobs.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    /// The PostgreSQL store.
    pub store: Store,
    /// The Redis cache with the due index.
    pub cache: Cache,
    /// The sender of job messages.
    pub sender: MessageSender,
    /// The timer that wakes the sender at a due time.
    pub timer: PreciseTimer,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
    /// The leadership state, which decides if this server dispatches.
    pub leadership: watch::Receiver<Leadership>,
    /// The dispatcher's own activator, notified when the schedule has changed.
    pub activate_dispatcher: Arc<Notify>,
    /// The activator of the index rebuild, for an index that may be incomplete.
    pub activate_due_index: Arc<Notify>,
    /// The activator of the slot granter, for occurrences that wait for a slot.
    pub activate_slot_granter: Arc<Notify>,
    /// The pulse by which the lease sees that this dispatcher ticks.
    pub pulse: DispatchPulse,
    /// The jobs that are catching up on misfires.
    pub catch_ups: CatchUps,
    /// The due jobs that are left to a newer server.
    pub unreadable: UnreadableJobs,
    /// The batch size and the sweep period.
    pub config: BackgroundConfig,
}

impl Dispatcher {
    /// Creates the dispatcher of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            sender: context.sender.clone(),
            timer: context.timer.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
            leadership: context.leadership.clone(),
            pulse: context.dispatch_pulse.clone(),
            activate_dispatcher: context.activators.dispatcher.clone(),
            activate_due_index: context.activators.due_index.clone(),
            activate_slot_granter: context.activators.slot_granter.clone(),
            catch_ups: CatchUps::default(),
            unreadable: UnreadableJobs::default(),
            config: context.config.background.clone(),
        }
    }

    /// Ticks until `stop`, while this server leads or while no server can lead.
    pub async fn run(mut self, statuses: ServiceStatuses, stop: CancellationToken) {
        // Without the wait, the backlog from before the start would be created before it can be published.
        let _ = tokio::time::timeout(STARTUP_BROKER_TIMEOUT, stop.run_until_cancelled(self.sender.wait_until_ready()))
            .await;
        let mut deferred_until: Option<DateTime<Utc>> = None;
        let mut batch = self.config.dispatch_batch;
        let mut stuck = StuckCheck::default();
        while !stop.is_cancelled() {
            let may_work = self.leadership.borrow_and_update().may_work();
            if !may_work {
                statuses.record_standby(NAME, MAX_SLEEP);
                tokio::select! {
                    _ = tokio::time::timeout(MAX_SLEEP, self.leadership.changed()) => {}
                    () = stop.cancelled() => {}
                }
                continue;
            }
            deferred_until = deferred_until.filter(|at| *at > self.clock.now());
            let since = Instant::now();
            let tick = tracing::info_span!(target: SPANS, "tick", otel.name = "tick dispatcher", jobs.max = batch);
            let dispatching = self.dispatch_batch(ahead(deferred_until), batch).instrument(tick);
            let dispatched = tokio::time::timeout(TIME_LIMIT, dispatching).await;
            let dispatched =
                dispatched.unwrap_or_else(|_| bail!("the tick took longer than {} s", TIME_LIMIT.as_secs()));
            let is_done = dispatched.is_ok();
            batch = next_batch(batch, self.config.dispatch_batch, is_done);
            let pause = match dispatched {
                Ok(report) => {
                    deferred_until = deferred_until.max(report.deferred_until);
                    if !report.fired.is_empty() {
                        tracing::debug!(
                            jobs.due = report.due,
                            occurrences.fired = report.fired.len(),
                            "fired due jobs"
                        );
                    }
                    let trouble = stuck.after(&self, &report).await;
                    statuses.record_tick(NAME, since.elapsed(), 3 * MAX_SLEEP, trouble);
                    self.pulse.expect_within(Duration::ZERO);
                    if let Some(left) = report.held_for {
                        left.min(MAX_SLEEP)
                    } else if report.is_paused {
                        PAUSED_RECHECK_INTERVAL
                    } else if report.fired.is_empty() && report.due > report.unreadable {
                        CONTENTION_PAUSE
                    } else if report.due > 0 {
                        continue;
                    } else {
                        self.sleep_length(&report, ahead(deferred_until)).await
                    }
                }
                Err(error) => {
                    let reason = crate::error::chain(error.as_ref());
                    tracing::warn!(error = reason, "due jobs could not be fired; retrying in 1 s");
                    statuses.record_tick(NAME, since.elapsed(), 3 * MAX_SLEEP, Some(reason));
                    Duration::from_secs(1)
                }
            };
            if is_done {
                self.pulse.expect_within(pause);
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.activate_dispatcher.notified() => {}
                _ = self.leadership.changed() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Returns how long to sleep after a tick, when the next tick reads `ahead` of its instant.
    async fn sleep_length(&self, report: &DispatchReport, ahead: Duration) -> Duration {
        let now = self.clock.now() + ahead;
        match self.cache.earliest().await {
            Ok((Some(at), true)) if at > report.scanned_until || report.deferred_until.is_some() => {
                until(at, now).min(MAX_SLEEP)
            }
            // The index contains due entries, but no job of this server is due in PostgreSQL: repair these entries.
            Ok((Some(_), true)) => {
                if let Err(error) = self.repair_due_index(report.scanned_until).await {
                    tracing::warn!(error = %error, "the due index in Redis could not be repaired");
                    return self.config.sweep;
                }
                Duration::ZERO
            }
            Ok((None, true)) => MAX_SLEEP,
            Ok((_, false)) => {
                self.activate_due_index.notify_one();
                self.time_to_stored_due(now).await.min(MAX_SLEEP)
            }
            // Changes by other servers do not arrive, so the sleep is at most one sweep.
            Err(_) => self.time_to_stored_due(now).await.min(self.config.sweep),
        }
    }

    /// Returns the time until the earliest due time in PostgreSQL.
    async fn time_to_stored_due(&self, now: DateTime<Utc>) -> Duration {
        match self.store.earliest_due_time(&self.unreadable.left_out()).await {
            Ok(Some(at)) => until(at, now),
            Ok(None) => MAX_SLEEP,
            Err(_) => self.config.sweep,
        }
    }

    /// Corrects the index entries that are due at `now` in Redis but not in PostgreSQL, and removes those of the jobs
    /// that are left out: this server need not wake for them, and a newer one that leads reads PostgreSQL first.
    async fn repair_due_index(&self, now: DateTime<Utc>) -> anyhow::Result<()> {
        let entries = self.cache.due_entries(now, 1_000).await?;
        let (jobs, foreign): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .map(|(member, score)| (Uuid::parse_str(&member), member, score))
            .partition(|(id, ..)| id.is_ok());
        let foreign: Vec<String> = foreign.into_iter().map(|(_, member, _)| member).collect();
        self.cache.remove_members(&foreign).await?;
        let scores: HashMap<Uuid, f64> =
            jobs.into_iter().filter_map(|(id, _, score)| Some((id.ok()?, score))).collect();
        let ids: Vec<Uuid> = scores.keys().copied().collect();
        // Read after Redis, so an entry that is still the same is older than what is read now.
        let mut stored: HashMap<JobId, DateTime<Utc>> = self.store.due_times(&ids).await?.into_iter().collect();
        for (id, _) in self.unreadable.left_out() {
            stored.remove(&id);
        }
        let changes: Vec<DueChange> = scores
            .into_iter()
            .map(|(id, score)| DueChange { id: JobId(id), seen: Some(score), at: stored.get(&JobId(id)).copied() })
            .collect();
        self.cache.replace_due(&changes).await?;
        Ok(())
    }
}

/// Returns the size of the next batch. A statement that exceeded its time limit would exceed it again with as many jobs,
/// and the earliest of them would never be fired.
fn next_batch(batch: i64, configured: i64, is_done: bool) -> i64 {
    if is_done { (2 * batch).min(configured) } else { (batch / 2).max(MIN_BATCH.min(configured)) }
}

/// Returns how far a tick reads ahead: not at all before `deferred_until`, where it would only find the same jobs
/// again.
fn ahead(deferred_until: Option<DateTime<Utc>>) -> Duration {
    if deferred_until.is_some() { Duration::ZERO } else { HEAD_START }
}

/// Returns the time from `now` until `at`, or zero if `at` has passed.
fn until(at: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    (at - now).to_std().unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_halved_until_it_is_done() {
        let mut batch = 500;
        let mut sizes = |outcomes: &[bool]| -> Vec<i64> {
            let mut next = |is_done| {
                batch = next_batch(batch, 500, is_done);
                batch
            };
            outcomes.iter().map(|is_done| next(*is_done)).collect()
        };
        assert_eq!(sizes(&[false, false, false, false, false, false]), [250, 125, 62, 31, 16, 16]);
        assert_eq!(sizes(&[true, true, true, true, true, true]), [32, 64, 128, 256, 500, 500]);
        assert_eq!(next_batch(4, 4, false), 4, "a configured batch may be smaller");
    }
}
