//! Computes due times again that changed without a dispatch. There are two causes.
//!
//! *Edits of calendars.* The request that saves a calendar applies the edit to the first jobs itself, so that a page shows
//! their new due times at once. This task does the rest. It also takes over what a request left because its browser was
//! closed or its server stopped.
//!
//! *A clock that was ahead.* PostgreSQL's clock may be ahead for a while, for example after a failover to a machine whose
//! clock was never set. Jobs are then dispatched for due times in the future, and their next ones are still later: when the
//! clock is right again, such a job would be silent until then. This task gives these jobs their next due time by the
//! present clock. The dispatcher recognizes due times that were dispatched before and passes them, so none runs twice.
//! Heartbeats and delays from that time are set back too: a lost run would otherwise not be noticed, and a retry would wait
//! as long as the clock was ahead. The clock activates the task when a measurement finds that PostgreSQL's clock was set
//! back. A server that was not running then repairs the same when it begins to lead.

use std::time::Duration;

use milvaion_protocol::id::JobId;
use tokio::time::Instant;

use super::steps::Steps;
use crate::{
    command::jobs::JobCommands,
    engine::{RunsOn, Service, context::Context},
};

/// The time between two looks for edited calendars.
const TICK_INTERVAL: Duration = Duration::from_secs(5);
/// The time after which instants in the future are looked for although no step of the clock was noticed.
const REPAIR_INTERVAL: Duration = Duration::from_secs(3_600);

/// The background task that computes due times again.
#[derive(Debug)]
pub struct DueTimeUpdater {
    /// The commands that move due times.
    pub jobs: JobCommands,
    /// The last repair after a clock that was ahead, with the number of steps that the clock had counted; `None` repairs
    /// at the next tick.
    pub last_repair: Option<(Instant, u64)>,
    /// The job up to which the repair came; `None` if it came to the end.
    pub repair_after: Option<JobId>,
}

impl DueTimeUpdater {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { jobs: JobCommands::of(context), last_repair: None, repair_after: None }
    }
}

/// Returns true if a repair begins now: for the first time, after a step of the clock, or after [`REPAIR_INTERVAL`].
fn is_repair_due(last: Option<(Instant, u64)>, set_backs: u64, now: Instant) -> bool {
    last.is_none_or(|(at, seen)| seen != set_backs || now - at >= REPAIR_INTERVAL)
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DueTimeReport {
    /// Jobs that got another due time.
    pub moved: usize,
    /// Runs and worker instances with an instant in the future.
    pub pulled_back: u64,
    /// True if the tick ended before it had seen all jobs.
    pub has_more: bool,
}

impl Service for DueTimeUpdater {
    const NAME: &'static str = "due-times";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    const TIME_LIMIT: Duration = Duration::from_secs(60);
    type Report = DueTimeReport;

    fn period(&self) -> Duration {
        TICK_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<DueTimeReport> {
        let (mut report, mut steps) = (DueTimeReport::default(), Steps::new(Self::NAME));
        let set_backs = self.jobs.clock.set_backs();
        if is_repair_due(self.last_repair, set_backs, Instant::now()) {
            self.repair_after = Some(JobId::default());
            let pulled_back = self.jobs.pull_back_instants().await;
            if let Some(rows) = steps.result("instants", pulled_back) {
                report.pulled_back = rows;
                self.last_repair = Some((Instant::now(), set_backs));
            }
        }
        let slice_end = Self::slice_end();
        while let Some(after) = self.repair_after {
            let page = self.jobs.wake_silent_jobs(after).await;
            let Some(page) = steps.result("silent jobs", page) else { break };
            report.moved += page.moved;
            self.repair_after = page.upto;
            if Instant::now() > slice_end {
                break;
            }
        }
        report.has_more = self.repair_after.is_some();
        // An edit gets at least one page, however long a repair takes.
        while let Some(page) = steps.result("calendars", self.jobs.apply_calendar_edit().await).flatten() {
            report.moved += page.moved;
            if Instant::now() > slice_end {
                report.has_more = true;
                break;
            }
        }
        steps.end(report)
    }

    fn has_more(report: &DueTimeReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &DueTimeReport) -> bool {
        report.moved > 0 || report.pulled_back > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_begins_at_first_after_a_step_and_hourly() {
        let now = Instant::now();
        assert!(is_repair_due(None, 0, now));
        assert!(!is_repair_due(Some((now, 2)), 2, now + REPAIR_INTERVAL / 2));
        assert!(is_repair_due(Some((now, 2)), 3, now));
        assert!(is_repair_due(Some((now, 2)), 2, now + REPAIR_INTERVAL));
    }
}
