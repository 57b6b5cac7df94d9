//! Stops runs whose occurrence has ended: cancelled in the queue and started all the same, or given up with a worker that
//! has come back.
//!
//! Their results count for nothing, and they would run beside the successor to which their slot was granted. The cancel
//! request goes to Redis, which may lose it, so it is repeated as long as the instance lists the run in its heartbeats.
//! Nothing is remembered between two ticks: a restart of the server, or a change of the leader, changes nothing.

use std::{collections::HashSet, time::Duration};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{CancelMessage, HEARTBEAT_INTERVAL_SECONDS},
};

use crate::{
    cache::Cache,
    clock::Clock,
    domain::{duplicates::LateRun, liveness},
    engine::{RunsOn, Service, context::Context},
    store::Store,
};

/// The time between two repetitions while such runs are listed.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two checks otherwise: heartbeats tell nothing new before.
const IDLE_INTERVAL: Duration = Duration::from_secs(HEARTBEAT_INTERVAL_SECONDS);

/// The background task that stops runs whose occurrence has ended.
#[derive(Debug)]
pub struct LateRunStopper {
    /// The PostgreSQL store.
    pub store: Store,
    /// The Redis cache, over which workers receive cancel requests.
    pub cache: Cache,
    /// The server's clock.
    pub clock: Clock,
    /// The occurrences that had such a run at the last tick.
    pub pending: HashSet<OccurrenceId>,
}

impl LateRunStopper {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            clock: context.clock.clone(),
            pending: HashSet::new(),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LateRunReport {
    /// Runs that were asked to stop.
    pub asked: usize,
    /// Those among them that had not been asked at the last tick.
    pub new: usize,
}

impl Service for LateRunStopper {
    const NAME: &'static str = "late-runs";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = LateRunReport;

    fn period(&self) -> Duration {
        if self.pending.is_empty() { IDLE_INTERVAL } else { REPEAT_INTERVAL }
    }

    async fn tick(&mut self) -> anyhow::Result<LateRunReport> {
        let runs = self.store.late_runs(liveness::alive_since(self.clock.now())).await?;
        let before = std::mem::replace(&mut self.pending, runs.iter().map(|run| run.id).collect());
        let new = self.pending.difference(&before).count();
        let requests: Vec<CancelMessage> = runs.into_iter().map(LateRun::cancel_message).collect();
        self.cache.request_cancellations(&requests).await?;
        Ok(LateRunReport { asked: requests.len(), new })
    }

    fn is_notable(report: &LateRunReport) -> bool {
        report.new > 0
    }
}
