//! Ends runs that are overdue: their timeout has passed, and their worker is alive and reports no end.
//!
//! A worker enforces the timeout of its runs. If it cannot, because a thread is blocked or its reporter has died, its
//! heartbeats still list the run, so the run is not lost. It would stay open forever and keep its slot. The server therefore
//! has a limit of its own. It first asks the worker to end the run. If that does not help within the unreachable timeout,
//! the outcome of the run becomes unknown: it may still run, so it is not started again, and a late report still counts.

use std::time::Duration;

use milvaion_api::events::LiveEvent;
use milvaion_protocol::{message::CancelMessage, status::OccurrenceStatus};
use tokio::sync::watch;

use crate::{
    cache::Cache,
    clock::Clock,
    domain::{lost_run::OverdueRun, message::cancel_message},
    engine::{RunsOn, Service, context::Context, leadership::Leadership},
    live::Hub,
    store::{
        Store,
        lost_runs::{LostRunTimeouts, LostRunUpdate},
    },
};

/// The background task that ends overdue runs.
#[derive(Debug)]
pub struct OverdueRuns {
    /// The PostgreSQL store.
    pub store: Store,
    /// Redis, over which workers receive cancel requests.
    pub cache: Cache,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
    /// The leadership state, for the fencing token of writes.
    pub leadership: watch::Receiver<Leadership>,
    /// The timeouts of runs whose job sets none.
    pub timeouts: LostRunTimeouts,
}

impl OverdueRuns {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
            leadership: context.leadership.clone(),
            timeouts: LostRunTimeouts::of(&context.config.lost_runs),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct OverdueReport {
    /// Runs whose worker was asked to end them.
    pub asked: usize,
    /// Runs whose outcome became unknown.
    pub unknown: usize,
}

impl Service for OverdueRuns {
    const NAME: &'static str = "overdue-runs";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = OverdueReport;

    fn period(&self) -> Duration {
        Duration::from_secs(15)
    }

    async fn tick(&mut self) -> anyhow::Result<OverdueReport> {
        // After a clock step, every run may appear overdue.
        if self.clock.is_settling() {
            return Ok(OverdueReport::default());
        }
        let now = self.clock.now();
        let runs = self.store.overdue_runs(self.timeouts, now).await?;
        let (unknown, asked): (Vec<_>, Vec<_>) = runs.into_iter().partition(OverdueRun::is_unknown);
        let mut report = OverdueReport { asked: asked.len(), unknown: 0 };
        let Some(fence) = self.leadership.borrow().write_fence() else { return Ok(OverdueReport::default()) };
        let updates: Vec<LostRunUpdate> = unknown.iter().map(unknown_outcome).collect();
        let done = self.store.update_lost_runs(&updates, fence, now).await?;
        for row in &done.rows {
            tracing::warn!(
                occurrence.id = %row.id,
                occurrence.attempt = row.attempt,
                job.name = row.job_name,
                "the run of occurrence {} is overdue, and its worker has not ended it: its outcome is unknown; restart the worker",
                row.id
            );
        }
        report.unknown = done.rows.len();
        if !done.rows.is_empty() {
            self.hub.publish(now, vec![LiveEvent::Occurrences { rows: done.rows }]);
        }
        let requests: Vec<CancelMessage> = asked.iter().map(stop_request).collect();
        self.cache.request_cancellations(&requests).await?;
        Ok(report)
    }

    fn is_notable(report: &OverdueReport) -> bool {
        report.asked + report.unknown > 0
    }
}

fn stop_request(run: &OverdueRun) -> CancelMessage {
    let seconds = run.timeout.as_secs();
    let reason = format!("Overdue: its timeout of {seconds} s has passed, and no end was reported.");
    cancel_message(run.id, run.attempt, reason)
}

fn unknown_outcome(run: &OverdueRun) -> LostRunUpdate {
    LostRunUpdate {
        id: run.id,
        attempt: run.attempt,
        was: OccurrenceStatus::Running,
        // Its worker is alive, and its heartbeats list the run.
        last_seen_at: None,
        status: OccurrenceStatus::Unknown,
        note: format!(
            "Overdue: its timeout of {} s has passed, and its worker neither reported an end nor ended the run on request",
            run.timeout.as_secs()
        ),
        cause: None,
        is_quarantined: false,
        counts_as_requeue: true,
    }
}
