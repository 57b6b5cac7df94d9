//! The lost run detector: finds runs without heartbeats, and requeues or ends them.
//!
//! The decisions are in `domain::lost_run`, and the rule for heartbeats in Redis is in `domain::heartbeat_watch`. This module
//! gathers their input: which runs have had no heartbeat, whether an [echo](crate::broker::echo) shows that this server would
//! have received one, and what the instances of those runs write to Redis.
//!
//! A run of an instance that is alive and does not reach the broker is not started again behind its back. It is first
//! revoked through Redis, and requeued when the worker has released its claim.

mod update;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_api::events::LiveEvent;
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use update::{LossEvidence, lost_run_update, unknown_run_end};

use crate::{
    broker::echo::Echo,
    cache::{Cache, heartbeats::RunKeys},
    clock::Clock,
    domain::{
        heartbeat_watch::HeartbeatWatch,
        lost_run::{
            self, HeartbeatTracker, LATE_REPORT_WINDOW, LostRunDecision, MIN_HEARTBEAT_TIMEOUT, RevocationStep,
            SilenceVerdict, StaleRun, decide_lost_run,
        },
    },
    engine::{RunsOn, Service, context::Context, leadership::Leadership, observations::DeafSince},
    error::chain,
    faults,
    live::Hub,
    metrics::LostRunOutcome,
    store::{
        Store,
        lost_runs::{LostRunTimeouts, LostRunUpdate, UpdatedLostRuns},
    },
};

/// The time between two detections.
const DETECTION_INTERVAL: Duration = Duration::from_secs(2);
/// The age of the last heartbeat from which a run is considered: at least one heartbeat was missed.
const MISSED_HEARTBEAT: chrono::Duration = chrono::Duration::seconds(7);
/// The most runs that one statement changes, so that it holds its locks for a short time.
const UPDATE_BATCH_SIZE: usize = 500;

/// The background task that detects lost runs.
#[derive(Debug)]
pub struct LostRunDetector {
    /// The PostgreSQL store.
    pub store: Store,
    /// Redis, with the heartbeats and the claims of workers.
    pub cache: Cache,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
    /// The echoes that show whether this server would have received a heartbeat.
    pub echo: Echo,
    /// The time since which no echo returns.
    pub deaf_since: DeafSince,
    /// The leadership state, for the fencing token of writes.
    pub leadership: watch::Receiver<Leadership>,
    /// The timeouts of runs whose job sets none.
    pub timeouts: LostRunTimeouts,
    /// The activator of the dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// The activator of the republisher.
    pub activate_republisher: Arc<Notify>,
    /// The activator of the slot granter.
    pub activate_slot_granter: Arc<Notify>,
    /// What the detector keeps from one tick to the next.
    pub memory: DetectorMemory,
}

/// The state of a detector.
#[derive(Debug)]
pub struct DetectorMemory {
    /// The start of the detector's monotonic time.
    created: Instant,
    /// The tracker that counts observed time from one detection to the next.
    pub tracker: HeartbeatTracker,
    /// The heartbeats in Redis of silent instances.
    redis: HeartbeatWatch,
    /// The name of this detector's sight in Redis.
    name: String,
    /// The run id of the Redis of the last look.
    redis_run_id: String,
}

impl Default for DetectorMemory {
    fn default() -> Self {
        Self {
            created: Instant::now(),
            tracker: HeartbeatTracker::new(DETECTION_INTERVAL),
            redis: HeartbeatWatch::default(),
            name: format!("{:016x}", rand::random::<u64>()),
            redis_run_id: String::new(),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LostRunReport {
    /// Running occurrences that have missed at least one heartbeat.
    pub stale: usize,
    /// Runs of instances that are alive and do not reach the broker.
    pub unreachable: usize,
    /// Runs that their workers are asked to release.
    pub revoked: usize,
    /// Runs requeued for another worker.
    pub requeued: usize,
    /// Runs whose outcome is unknown until a late report arrives.
    pub unknown: usize,
    /// Runs that ended: failed as poison, cancelled, or failed after too long an unknown outcome.
    pub ended: usize,
    /// True if more runs are lost than one tick handles.
    pub has_more: bool,
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
            echo: context.echo.clone(),
            deaf_since: context.deaf_since.clone(),
            leadership: context.leadership.clone(),
            timeouts: LostRunTimeouts::of(&context.config.lost_runs),
            activate_dispatcher: context.activators.dispatcher.clone(),
            activate_republisher: context.activators.republisher.clone(),
            activate_slot_granter: context.activators.slot_granter.clone(),
            memory: DetectorMemory::default(),
        }
    }

    /// Decides about runs without heartbeats, at the monotonic instant `at`. `is_receiving` is true if this server
    /// could have received heartbeats.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails. Runs that were changed before stay changed.
    pub async fn detect(&mut self, at: Duration, is_receiving: bool) -> anyhow::Result<LostRunReport> {
        // After a clock step, every heartbeat may appear too old.
        let is_settling = self.clock.is_settling();
        let is_receiving = is_receiving && !is_settling;
        self.memory.tracker.observe(at, is_receiving);
        if is_settling {
            return Ok(LostRunReport::default());
        }
        let now = self.clock.now();
        let stale = self.store.stale_runs(now - MISSED_HEARTBEAT, self.timeouts, now).await?;
        let mut report = LostRunReport { stale: stale.len(), ..LostRunReport::default() };
        self.look_at_redis(at, &stale).await;
        let mut updates = Vec::new();
        let counts_outages = faults::is_sabotaged("skip_observed_time");
        if is_receiving || counts_outages {
            #[cfg(feature = "faults")]
            let stale = super::sabotage::by_wall_clock(stale, counts_outages, |run, decision| {
                updates.push(lost_run_update(run, decision, LossEvidence::Silence));
            });
            let judged = self.memory.tracker.judge(stale, &self.memory.redis);
            updates.extend(self.act_on_silence(judged, now, &mut report).await?);
            if self.memory.tracker.observed_for() >= MIN_HEARTBEAT_TIMEOUT {
                // Everything that waited at the broker for this server has been read by now.
                let expired = self.store.expired_unknown_runs(now - LATE_REPORT_WINDOW).await?;
                updates.extend(expired.into_iter().map(|(id, attempt)| unknown_run_end(id, attempt)));
            }
        } else {
            updates.extend(self.dead_while_deaf(stale).await);
        }
        self.apply(updates, now, &mut report).await?;
        Ok(report)
    }

    /// Looks at what the instances of silent runs write to Redis.
    async fn look_at_redis(&mut self, at: Duration, stale: &[StaleRun]) {
        let instances: BTreeSet<&str> = stale.iter().filter_map(|run| run.instance_id.as_deref()).collect();
        let instances = instances.into_iter().map(str::to_owned).collect();
        let memory = &mut self.memory;
        let look = match self.cache.look_at_heartbeats(&memory.name, &memory.redis_run_id, instances).await {
            Ok((look, run_id)) => {
                memory.redis_run_id = run_id;
                Some(look)
            }
            Err(error) => {
                tracing::debug!(error = %chain(&error), "the heartbeats in Redis cannot be read; silent workers keep their runs for longer");
                None
            }
        };
        memory.redis.record(at, look);
    }

    /// Records unreachable instances, revokes runs, and returns the changes of lost ones.
    async fn act_on_silence(
        &self,
        judged: Vec<(StaleRun, SilenceVerdict)>,
        now: DateTime<Utc>,
        report: &mut LostRunReport,
    ) -> anyhow::Result<Vec<LostRunUpdate>> {
        let (lost, alive): (Vec<_>, Vec<_>) =
            judged.into_iter().partition(|(_, verdict)| *verdict == SilenceVerdict::Lost);
        report.unreachable = alive.len();
        let instances: BTreeSet<&str> = alive.iter().filter_map(|(run, _)| run.instance_id.as_deref()).collect();
        let instances: Vec<String> = instances.into_iter().map(str::to_owned).collect();
        if self.store.note_seen_in_redis(&instances, now).await? > 0 {
            self.hub.publish(now, vec![LiveEvent::Workers]);
        }
        let too_long = alive.into_iter().filter(|(_, verdict)| *verdict == SilenceVerdict::Revoke).map(|(run, _)| run);
        let released = self.revoke(too_long.collect(), report).await;
        let lost = lost.into_iter().map(|(run, _)| (run, LossEvidence::Silence));
        let released = released.into_iter().map(|run| (run, LossEvidence::Released));
        Ok(lost.chain(released).map(|(run, evidence)| update_of(&run, evidence)).collect())
    }

    /// Asks workers through Redis to release runs. Returns the runs that they have released.
    async fn revoke(&self, runs: Vec<StaleRun>, report: &mut LostRunReport) -> Vec<StaleRun> {
        let Some(keys) = self.run_keys(&runs).await else { return Vec::new() };
        let (mut requests, mut released) = (Vec::new(), Vec::new());
        for (run, keys) in runs.into_iter().zip(keys) {
            match lost_run::revocation_step(&run, keys.claim.as_deref(), keys.revoked_below) {
                RevocationStep::Request => {
                    if keys.revoked_below.is_none_or(|attempt| attempt <= run.attempt) {
                        tracing::warn!(
                            occurrence.id = %run.id,
                            occurrence.attempt = run.attempt,
                            worker.instance = run.instance_id.as_deref().unwrap_or_default(),
                            "the run of occurrence {} is revoked: its worker is alive and does not reach RabbitMQ",
                            run.id
                        );
                    }
                    requests.push((run.id, run.attempt + 1));
                }
                RevocationStep::Released => released.push(run),
                RevocationStep::Wait => {}
            }
        }
        report.revoked = requests.len();
        if let Err(error) = self.cache.revoke(&requests).await {
            tracing::warn!(error = %chain(&error), runs = requests.len(), "{} runs could not be revoked; the next tick tries again", requests.len());
        }
        released
    }

    /// Returns the changes of runs whose instances are dead by their heartbeats in Redis, while no message of a worker can
    /// be received. A run whose claim says that it has ended is left: its report will be read.
    async fn dead_while_deaf(&self, stale: Vec<StaleRun>) -> Vec<LostRunUpdate> {
        let dead = lost_run::dead_by_watch(stale, &self.memory.redis);
        let Some(keys) = self.run_keys(&dead).await else { return Vec::new() };
        let has_ended = |keys: &RunKeys| keys.claim.as_deref().is_some_and(|claim| claim.starts_with("done:"));
        dead.into_iter()
            .zip(keys)
            .filter(|(_, keys)| !has_ended(keys))
            .map(|(run, _)| {
                let still = run.instance_id.as_deref().map_or(Duration::ZERO, |id| self.memory.redis.still_for(id));
                update_of(&run, LossEvidence::StillInRedis(still))
            })
            .collect()
    }

    async fn run_keys(&self, runs: &[StaleRun]) -> Option<Vec<RunKeys>> {
        let ids: Vec<OccurrenceId> = runs.iter().map(|run| run.id).collect();
        self.cache
            .run_keys(&ids)
            .await
            .inspect_err(|error| tracing::debug!(error = %chain(error), "the claims of silent runs cannot be read"))
            .ok()
    }

    /// Changes lost runs, as many as there is time for.
    async fn apply(
        &self,
        updates: Vec<LostRunUpdate>,
        now: DateTime<Utc>,
        report: &mut LostRunReport,
    ) -> anyhow::Result<()> {
        let end = Self::slice_end();
        for batch in updates.chunks(UPDATE_BATCH_SIZE) {
            let Some(fence) = self.leadership.borrow().write_fence() else { return Ok(()) };
            if Instant::now() >= end {
                report.has_more = true;
                return Ok(());
            }
            faults::crash_point("lost_runs.before_commit");
            let done = self.store.update_lost_runs(batch, fence, now).await?;
            faults::crash_point("lost_runs.after_commit");
            self.publish_changes(done, report).await;
        }
        Ok(())
    }

    async fn publish_changes(&self, done: UpdatedLostRuns, report: &mut LostRunReport) {
        for row in &done.rows {
            let (count, outcome) = match row.status {
                OccurrenceStatus::Queued => (&mut report.requeued, LostRunOutcome::Requeued),
                OccurrenceStatus::Unknown => (&mut report.unknown, LostRunOutcome::Unknown),
                _ => (&mut report.ended, LostRunOutcome::Ended),
            };
            *count += 1;
            self.store.metrics().lost(outcome);
            tracing::warn!(
                occurrence.id = %row.id,
                occurrence.attempt = row.attempt,
                job.name = row.job_name,
                becomes = row.status.label(),
                "the run of occurrence {} is lost: no heartbeat",
                row.id
            );
        }
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

/// Returns the change of a lost run.
fn update_of(run: &StaleRun, evidence: LossEvidence) -> LostRunUpdate {
    let decision: LostRunDecision = decide_lost_run(run.on_lost, run.requeues, run.is_cancelled, run.is_stopping);
    lost_run_update(run, decision, evidence)
}

impl Service for LostRunDetector {
    const NAME: &'static str = "lost-runs";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = LostRunReport;

    fn period(&self) -> Duration {
        DETECTION_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<LostRunReport> {
        let is_receiving = self.echo.returns().await;
        self.deaf_since.record(is_receiving, self.clock.now());
        self.detect(self.memory.created.elapsed(), is_receiving).await
    }

    fn has_more(report: &LostRunReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &LostRunReport) -> bool {
        report.requeued + report.unknown + report.ended > 0
    }
}
