//! Repairs what a clock that was ahead has left.
//!
//! PostgreSQL's clock may be ahead for a while, for example after a failover to a machine whose clock was never set. Jobs
//! are then dispatched for due times in the future, and their next ones are still later: when the clock is right again, such a
//! job would be silent until then. This task gives these jobs their next due time by the present clock. The dispatcher
//! recognizes due times that were dispatched before and passes them, so none runs twice. Heartbeats and delays from that
//! time are set back too: a lost run would otherwise not be noticed, and a retry would wait as long as the clock was ahead.
//!
//! The clock activates the task when a measurement finds that PostgreSQL's clock was set back. A server that was not running
//! then repairs the same when it begins to lead.

use std::time::Duration;

use milvaion_protocol::id::JobId;
use tokio::time::Instant;

use super::steps::Steps;
use crate::{
    command::jobs::JobCommands,
    engine::{RunsOn, Service, context::Context},
};

/// The background task that repairs due times and other instants in the future.
#[derive(Debug)]
pub struct ClockRepair {
    /// The commands that move due times.
    pub jobs: JobCommands,
    /// The job up to which the last tick came; the first one if it came to the end.
    pub after: JobId,
}

impl ClockRepair {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { jobs: JobCommands::of(context), after: JobId::default() }
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClockRepairReport {
    /// Jobs that got an earlier due time.
    pub moved: usize,
    /// Runs and worker instances with an instant in the future.
    pub pulled_back: u64,
    /// True if the tick ended before it had seen all jobs.
    pub has_more: bool,
}

impl Service for ClockRepair {
    const NAME: &'static str = "clock-repair";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    const TIME_LIMIT: Duration = Duration::from_secs(60);
    type Report = ClockRepairReport;

    fn period(&self) -> Duration {
        Duration::from_secs(3_600)
    }

    async fn tick(&mut self) -> anyhow::Result<ClockRepairReport> {
        let (mut report, mut steps) = (ClockRepairReport::default(), Steps::new(Self::NAME));
        let pulled_back = self.jobs.pull_back_instants().await;
        report.pulled_back = steps.result("instants", pulled_back).unwrap_or_default();
        let slice_end = Self::slice_end();
        loop {
            let page = self.jobs.wake_silent_jobs(self.after).await?;
            report.moved += page.moved;
            self.after = page.upto.unwrap_or_default();
            report.has_more = page.upto.is_some();
            if !report.has_more || Instant::now() > slice_end {
                return steps.end(report);
            }
        }
    }

    fn has_more(report: &ClockRepairReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &ClockRepairReport) -> bool {
        report.moved > 0 || report.pulled_back > 0
    }
}
