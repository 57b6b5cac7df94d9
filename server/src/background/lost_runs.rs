//! The zombie detector: runs whose worker fell silent are given to another, or settled.
//!
//! The decision, and what counts as silence, is `domain::lost_run`. Here is what the decision needs to know of the world:
//! which runs are silent, and whether we could have heard them. We could if both queues by which workers speak deliver to
//! this server, and hold nothing so old that an unread sign of life may be in it.

use std::{sync::Arc, time::Duration};

use milvaion_api::events::LiveEvent;
use milvaion_protocol::status::OccurrenceStatus;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{BackgroundTask, lease::Leadership};
use crate::{
    broker::{Broker, queue_probe::QueueProbe},
    cache::Cache,
    clock::Clock,
    domain::{
        lost_run::{
            LATE_REPORT_WINDOW, LostRunDecision, MAX_REQUEUES, MIN_HEARTBEAT_TIMEOUT, QueueFreshness, SilenceTracker,
            SilentRun, decide_lost_run,
        },
        quarantine,
    },
    faults,
    live::Hub,
    store::{
        Store,
        lost_runs::{LostRunUpdate, UpdatedLostRuns},
    },
};

/// How often silence is looked for.
const DETECTION_INTERVAL: Duration = Duration::from_secs(2);
/// From when on a run counts as silent at all: one heartbeat was missed.
const MISSED_HEARTBEAT: chrono::Duration = chrono::Duration::seconds(7);

/// The task.
#[derive(Debug)]
pub struct LostRunDetector {
    /// The truth.
    pub store: Store,
    /// Told when a job is due again.
    pub cache: Cache,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Whether workers can be heard.
    pub heartbeat_feed: HeartbeatFeed,
    /// In which term this is done.
    pub leadership: watch::Receiver<Leadership>,
    /// How long a run may be silent whose job says nothing else.
    pub heartbeat_timeout: Duration,
    /// Wakes the dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// Wakes the republisher.
    pub activate_republisher: Arc<Notify>,
    /// Wakes whoever hands out slots.
    pub activate_slot_granter: Arc<Notify>,
    /// What is remembered from look to look; see [`LostRunDetector::watch`].
    pub watch: SilenceTracker,
}

/// Whether workers can be heard.
#[derive(Debug)]
pub struct HeartbeatFeed {
    broker: Broker,
    probe: QueueProbe,
    begun: Instant,
    status: QueueFreshness,
    registration: QueueFreshness,
}

impl HeartbeatFeed {
    /// HeartbeatFeed at a broker.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        let probe = QueueProbe::new(broker.clone());
        Self {
            broker,
            probe,
            begun: Instant::now(),
            status: QueueFreshness::default(),
            registration: QueueFreshness::default(),
        }
    }

    /// The present instant of the monotonic clock, and whether everything workers said up to a moment ago has been heard.
    async fn listen(&mut self) -> (Duration, bool) {
        let at = self.begun.elapsed();
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

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostRunReport {
    /// Runs that are silent at the moment.
    pub silent: usize,
    /// Given to another worker.
    pub requeued: usize,
    /// Open until a late report comes.
    pub unknown: usize,
    /// Ended: poison, cancelled, or unknown for too long.
    pub ended: usize,
}

impl LostRunDetector {
    /// The memory to begin with.
    #[must_use]
    pub fn watch() -> SilenceTracker {
        SilenceTracker::new(DETECTION_INTERVAL)
    }

    /// Judges what is silent, for a look at `at` of the monotonic clock by somebody who `hears` or not.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was settled.
    pub async fn detect(&mut self, at: Duration, hears: bool) -> anyhow::Result<LostRunReport> {
        // By a clock that was just set, everything is silent at once.
        let hears = hears && !self.clock.is_settling();
        self.watch.observe(at, hears);
        let by_age = faults::sabotaged("skip_observed_time");
        if !hears && !by_age {
            return Ok(LostRunReport::default());
        }
        let now = self.clock.now();
        let silent = self.store.silent_runs(now - MISSED_HEARTBEAT, self.heartbeat_timeout, now).await?;
        let mut judged = LostRunReport { silent: silent.len(), ..LostRunReport::default() };
        let (aged, silent): (Vec<SilentRun>, Vec<SilentRun>) = silent
            .into_iter()
            .partition(|run| by_age && !run.is_unreported && run.age >= run.limit.max(MIN_HEARTBEAT_TIMEOUT));
        let mut lost = self.watch.lost_runs(silent);
        lost.extend(aged.into_iter().map(|run| {
            let fate = decide_lost_run(run.on_lost, run.requeues, run.is_cancelled);
            (run, fate)
        }));
        let mut settled = settle(&lost);
        if self.watch.observed_for() >= MIN_HEARTBEAT_TIMEOUT {
            // Whatever waited at the broker for us has been read by now.
            settled.extend(self.store.expired_unknown_runs(now - LATE_REPORT_WINDOW).await?.into_iter().map(
                |(id, attempt)| LostRunUpdate {
                    id,
                    attempt,
                    was: OccurrenceStatus::Unknown,
                    last_seen_at: None,
                    status: OccurrenceStatus::Failed,
                    note: format!(
                        "lost: its worker fell silent, and no report came within {} minutes",
                        LATE_REPORT_WINDOW.num_minutes()
                    ),
                    cause: Some("lost"),
                    is_quarantined: false,
                },
            ));
        }
        if settled.is_empty() {
            return Ok(judged);
        }
        let Some(fence) = self.leadership.borrow().write_fence() else { return Ok(judged) };
        faults::point("lost_runs.before_commit");
        let done = self.store.update_lost_runs(&settled, fence, now).await?;
        faults::point("lost_runs.after_commit");
        for row in &done.rows {
            match row.status {
                OccurrenceStatus::Queued => judged.requeued += 1,
                OccurrenceStatus::Unknown => judged.unknown += 1,
                _ => judged.ended += 1,
            }
            tracing::warn!(
                occurrence.id = %row.id,
                occurrence.attempt = row.attempt,
                job.name = row.job_name,
                becomes = row.status.label(),
                "a run's worker fell silent"
            );
        }
        self.told(done, &judged).await;
        Ok(judged)
    }

    async fn told(&self, done: UpdatedLostRuns, judged: &LostRunReport) {
        if judged.requeued > 0 {
            self.activate_republisher.notify_one();
        }
        // A slot is free, or somebody waits for a turn.
        if judged.ended > 0 || done.rows.iter().any(|row| row.waits_until.is_some()) {
            self.activate_slot_granter.notify_one();
        }
        if !done.rows.is_empty() {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Occurrences { rows: done.rows }]);
        }
    }
}

/// What becomes of lost runs. Those that have one chance left open the lane of their worker, also for who died with them.
fn settle(lost: &[(SilentRun, LostRunDecision)]) -> Vec<LostRunUpdate> {
    let again = |fate: LostRunDecision| fate == LostRunDecision::Requeue;
    let requeued = lost.iter().filter(|(_, fate)| again(*fate));
    let opened = quarantine::newly_quarantined(requeued.map(|(run, _)| (run.worker_id.as_str(), run.requeues + 1)));
    lost.iter()
        .map(|(run, fate)| {
            // Up to when it was heard of last: for how long nobody has heard of it says nothing about the run.
            let lived = run.started_at.map(|started| run.last_seen_at - started);
            let is_open = run.quarantine_is_open || opened.contains(run.worker_id.as_str());
            settle_one(run, *fate, again(*fate) && quarantine::needs_quarantine(run.requeues + 1, lived, is_open))
        })
        .collect()
}

fn settle_one(run: &SilentRun, fate: LostRunDecision, is_quarantined: bool) -> LostRunUpdate {
    let silence = run.age.as_secs();
    let (status, cause, note) = match fate {
        LostRunDecision::Requeue => {
            let when = if is_quarantined { quarantine::QUARANTINE_NOTE } else { "at once" };
            let note = format!("its worker fell silent {silence} s ago; it is run again {when}");
            (OccurrenceStatus::Queued, None, note)
        }
        LostRunDecision::Poison => (
            OccurrenceStatus::Failed,
            Some("poison"),
            format!(
                "its run ended {MAX_REQUEUES} workers' lives, and now one more: it is not given to another; last heard of {silence} s ago"
            ),
        ),
        LostRunDecision::Unknown => (
            OccurrenceStatus::Unknown,
            None,
            format!(
                "its worker fell silent {silence} s ago, and the job must not be run twice; a report within {} minutes still counts",
                LATE_REPORT_WINDOW.num_minutes()
            ),
        ),
        LostRunDecision::Cancel => (
            OccurrenceStatus::Cancelled,
            None,
            format!("it was asked to end, and its worker fell silent {silence} s ago"),
        ),
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

impl BackgroundTask for LostRunDetector {
    const NAME: &'static str = "lost-runs";
    type Report = LostRunReport;

    fn period(&self) -> Duration {
        DETECTION_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<LostRunReport> {
        let (at, hears) = self.heartbeat_feed.listen().await;
        self.detect(at, hears).await
    }

    fn is_notable(report: &LostRunReport) -> bool {
        report.requeued + report.unknown + report.ended > 0
    }
}
