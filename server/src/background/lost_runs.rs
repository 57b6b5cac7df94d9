//! The lost run detector: finds runs without heartbeats, and requeues or ends them.
//!
//! The decision, and the rule for a missing heartbeat, are in `domain::lost_run`. This module gathers the input: which
//! runs have had no heartbeat, and whether this server could have received one. It could if both queues on which
//! workers report deliver to this server, and if neither holds a message so old that an unread heartbeat may be in it.

use std::{sync::Arc, time::Duration};

use milvaion_api::events::LiveEvent;
use milvaion_protocol::status::OccurrenceStatus;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::lease::Leadership;
use crate::{
    broker::{Broker, queue_probe::QueueProbe},
    cache::Cache,
    clock::Clock,
    domain::{
        lost_run::{
            HeartbeatTracker, LATE_REPORT_WINDOW, LostRunDecision, MIN_HEARTBEAT_TIMEOUT, QueueFreshness, StaleRun,
        },
        quarantine,
    },
    engine::{RunsOn, Service, context::Context},
    faults::{
        self,
        seams::{SEAMS, Seams},
    },
    live::Hub,
    store::{
        Store,
        lost_runs::{LostRunUpdate, UpdatedLostRuns},
    },
};

/// The time between two detections.
const DETECTION_INTERVAL: Duration = Duration::from_secs(2);
/// The age of the last heartbeat from which a run is considered: at least one heartbeat was missed.
const MISSED_HEARTBEAT: chrono::Duration = chrono::Duration::seconds(7);

/// The background task that detects lost runs.
#[derive(Debug)]
pub struct LostRunDetector {
    /// The PostgreSQL store.
    pub store: Store,
    /// The Redis cache with the due index.
    pub cache: Cache,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
    /// The check that this server receives heartbeats.
    pub heartbeat_feed: HeartbeatFeed,
    /// The leadership state, for the fencing token of writes.
    pub leadership: watch::Receiver<Leadership>,
    /// The heartbeat timeout of runs whose job sets none.
    pub heartbeat_timeout: Duration,
    /// The activator of the dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// The activator of the republisher.
    pub activate_republisher: Arc<Notify>,
    /// The activator of the slot granter.
    pub activate_slot_granter: Arc<Notify>,
    /// The tracker that counts observed time from one detection to the next.
    pub watch: HeartbeatTracker,
}

impl LostRunDetector {
    /// Creates the detector of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
            heartbeat_feed: HeartbeatFeed::new(context.broker.clone()),
            leadership: context.leadership.clone(),
            heartbeat_timeout: context.config.lost_runs.heartbeat_timeout,
            activate_dispatcher: context.activators.dispatcher.clone(),
            activate_republisher: context.activators.republisher.clone(),
            activate_slot_granter: context.activators.slot_granter.clone(),
            watch: Self::watch(),
        }
    }
}

/// The check that this server receives the heartbeats of workers.
#[derive(Debug)]
pub struct HeartbeatFeed {
    broker: Broker,
    probe: QueueProbe,
    created: Instant,
    status: QueueFreshness,
    registration: QueueFreshness,
}

impl HeartbeatFeed {
    /// Creates the check for `broker`.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        let probe = QueueProbe::new(broker.clone());
        Self {
            broker,
            probe,
            created: Instant::now(),
            status: QueueFreshness::default(),
            registration: QueueFreshness::default(),
        }
    }

    /// Returns the current monotonic instant, and true if every recent message of the workers has been processed.
    async fn check(&mut self) -> (Duration, bool) {
        let at = self.created.elapsed();
        let (status, registration) = (self.broker.topology().status(), self.broker.topology().registration());
        if !self.broker.is_consuming_from(&status) || !self.broker.is_consuming_from(&registration) {
            return (at, false);
        }
        let (Ok(reports), Ok(heartbeats)) =
            (self.probe.waiting(&status).await, self.probe.waiting(&registration).await)
        else {
            return (at, false);
        };
        let reports = self.status.is_fresh(reports, at, MIN_HEARTBEAT_TIMEOUT);
        let heartbeats = self.registration.is_fresh(heartbeats, at, MIN_HEARTBEAT_TIMEOUT);
        (at, reports && heartbeats)
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostRunReport {
    /// Running occurrences that have missed at least one heartbeat.
    pub stale: usize,
    /// Runs requeued for another worker.
    pub requeued: usize,
    /// Runs whose outcome is unknown until a late report arrives.
    pub unknown: usize,
    /// Runs that ended: failed as poison, cancelled, or failed after too long an unknown outcome.
    pub ended: usize,
}

impl LostRunDetector {
    /// Returns the tracker that a detector starts with.
    #[must_use]
    pub fn watch() -> HeartbeatTracker {
        HeartbeatTracker::new(DETECTION_INTERVAL)
    }

    /// Decides about runs without heartbeats, at the monotonic instant `at`. `is_receiving` is true if this server
    /// could have received heartbeats.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails; no run was changed then.
    pub async fn detect(&mut self, at: Duration, is_receiving: bool) -> anyhow::Result<LostRunReport> {
        // After a clock step, every heartbeat may appear too old.
        let is_receiving = is_receiving && !self.clock.is_settling();
        self.watch.observe(at, is_receiving);
        if !SEAMS.can_hear(is_receiving) {
            return Ok(LostRunReport::default());
        }
        let now = self.clock.now();
        let mut stale = self.store.stale_runs(now - MISSED_HEARTBEAT, self.heartbeat_timeout, now).await?;
        let mut report = LostRunReport { stale: stale.len(), ..LostRunReport::default() };
        let mut lost = SEAMS.take_lost(&mut stale);
        lost.extend(self.watch.lost_runs(stale));
        let mut updates: Vec<LostRunUpdate> =
            lost.iter().map(|(run, decision)| lost_run_update(run, *decision)).collect();
        if self.watch.observed_for() >= MIN_HEARTBEAT_TIMEOUT {
            // Everything that waited at the broker for this server has been read by now.
            updates.extend(self.store.expired_unknown_runs(now - LATE_REPORT_WINDOW).await?.into_iter().map(
                |(id, attempt)| LostRunUpdate {
                    id,
                    attempt,
                    was: OccurrenceStatus::Unknown,
                    last_seen_at: None,
                    status: OccurrenceStatus::Failed,
                    note: format!(
                        "Lost, and no report of its end arrived within {} minutes",
                        LATE_REPORT_WINDOW.num_minutes()
                    ),
                    cause: Some("lost"),
                    is_quarantined: false,
                },
            ));
        }
        if updates.is_empty() {
            return Ok(report);
        }
        let Some(fence) = self.leadership.borrow().write_fence() else { return Ok(report) };
        faults::crash_point("lost_runs.before_commit");
        let done = self.store.update_lost_runs(&updates, fence, now).await?;
        faults::crash_point("lost_runs.after_commit");
        for row in &done.rows {
            match row.status {
                OccurrenceStatus::Queued => report.requeued += 1,
                OccurrenceStatus::Unknown => report.unknown += 1,
                _ => report.ended += 1,
            }
            tracing::warn!(
                occurrence.id = %row.id,
                occurrence.attempt = row.attempt,
                job.name = row.job_name,
                becomes = row.status.label(),
                "the run of occurrence {} is lost: no heartbeat",
                row.id
            );
        }
        self.publish_changes(done, &report).await;
        Ok(report)
    }

    async fn publish_changes(&self, done: UpdatedLostRuns, report: &LostRunReport) {
        if report.requeued > 0 {
            self.activate_republisher.notify_one();
        }
        // A slot is free, or a run waits in quarantine.
        if report.ended > 0 || done.rows.iter().any(|row| row.waits_until.is_some()) {
            self.activate_slot_granter.notify_one();
        }
        if !done.rows.is_empty() {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Occurrences { rows: done.rows }]);
        }
    }
}

/// Describes the evidence that a run is lost. It states nothing about the run that no heartbeat showed: an instance may
/// be alive and no longer list the run, or may have stopped.
fn loss_evidence(run: &StaleRun) -> String {
    let age = run.age.as_secs();
    let instance = run.instance_id.as_deref().unwrap_or("its worker instance");
    if run.is_stopped {
        format!("Worker instance {instance} stopped before the run's end was reported")
    } else if run.is_unreported {
        format!("Worker instance {instance} sends heartbeats, but for at least {age} s none of them listed this run")
    } else if run.is_listed {
        format!("No heartbeat of worker instance {instance} for {age} s")
    } else {
        format!("No heartbeat listed this run for at least {age} s")
    }
}

fn lost_run_update(run: &StaleRun, decision: LostRunDecision) -> LostRunUpdate {
    let is_quarantined = decision == LostRunDecision::Requeue && quarantine::needs_quarantine(run.requeues + 1);
    let evidence = loss_evidence(run);
    let (status, cause, note) = match decision {
        LostRunDecision::Requeue => {
            let start = if is_quarantined { quarantine::QUARANTINE_NOTE } else { "at once" };
            let note = format!("{evidence}; attempt {} starts {start}", run.attempt + 1);
            (OccurrenceStatus::Queued, None, note)
        }
        LostRunDecision::Poison => (
            OccurrenceStatus::Failed,
            Some("poison"),
            format!("Failed as a poison run: lost with its worker {} times. {evidence}", run.requeues + 1),
        ),
        LostRunDecision::Unknown => (
            OccurrenceStatus::Unknown,
            None,
            format!(
                "{evidence}; the lost run policy is not to run it again; a report within {} minutes still counts",
                LATE_REPORT_WINDOW.num_minutes()
            ),
        ),
        LostRunDecision::Cancel => {
            (OccurrenceStatus::Cancelled, None, format!("Cancelled: a cancel request was open. {evidence}"))
        }
    };
    LostRunUpdate {
        id: run.id,
        attempt: run.attempt,
        was: OccurrenceStatus::Running,
        last_seen_at: Some(run.last_seen_at),
        status,
        note,
        cause,
        is_quarantined,
    }
}

impl Service for LostRunDetector {
    const NAME: &'static str = "lost-runs";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = LostRunReport;

    fn period(&self) -> Duration {
        DETECTION_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<LostRunReport> {
        let (at, is_receiving) = self.heartbeat_feed.check().await;
        self.detect(at, is_receiving).await
    }

    fn is_notable(report: &LostRunReport) -> bool {
        report.requeued + report.unknown + report.ended > 0
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;
    use crate::domain::lost_run::LostRunRule;

    fn run() -> StaleRun {
        StaleRun {
            id: OccurrenceId::default(),
            attempt: 1,
            last_seen_at: chrono::DateTime::UNIX_EPOCH,
            age: Duration::from_secs(16),
            is_listed: true,
            is_stopped: false,
            instance_id: Some("w-1".into()),
            is_unreported: false,
            heartbeat_timeout: Duration::from_secs(15),
            on_lost: LostRunRule::Requeue,
            requeues: 0,
            is_cancelled: false,
        }
    }

    #[test]
    fn note_names_the_evidence_of_the_loss() {
        let note = |run: StaleRun| lost_run_update(&run, LostRunDecision::Requeue).note;
        assert_eq!(note(run()), "No heartbeat of worker instance w-1 for 16 s; attempt 2 starts at once");
        assert_eq!(
            note(StaleRun { is_unreported: true, is_listed: false, ..run() }),
            "Worker instance w-1 sends heartbeats, but for at least 16 s none of them listed this run; attempt 2 starts \
             at once"
        );
        assert_eq!(
            note(StaleRun { is_stopped: true, is_listed: false, ..run() }),
            "Worker instance w-1 stopped before the run's end was reported; attempt 2 starts at once"
        );
        assert_eq!(
            note(StaleRun { is_listed: false, ..run() }),
            "No heartbeat listed this run for at least 16 s; attempt 2 starts at once"
        );
    }
}
