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
use tokio::{sync::watch, time::Instant};

use super::steps::Steps;
use crate::{
    command::jobs::JobCommands,
    engine::{
        RunsOn, Service,
        context::Context,
        leadership::{HeldLease, Leadership},
    },
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
    /// The leadership, whose epoch tells one term of this server from the next.
    pub leadership: watch::Receiver<Leadership>,
    /// The last repair after a clock that was ahead; `None` if this task has begun none.
    pub last_repair: Option<ClockRepair>,
}

/// A repair after a clock that was ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRepair {
    begun: Instant,
    /// The steps that the clock had counted, and the epoch of this server's lease, when it began.
    cause: (u64, Option<i64>),
    /// True while instants in the future may be left.
    pulls_back: bool,
    /// The job up to which silent jobs were looked for; `None` if it came to the end.
    after: Option<JobId>,
}

impl ClockRepair {
    fn begin(begun: Instant, cause: (u64, Option<i64>)) -> Self {
        Self { begun, cause, pulls_back: true, after: Some(JobId::default()) }
    }

    const fn is_done(&self) -> bool {
        !self.pulls_back && self.after.is_none()
    }

    /// Returns the repair that goes on now: a new one at first, for a new cause, or after [`REPAIR_INTERVAL`].
    fn next(last: Option<Self>, cause: (u64, Option<i64>), now: Instant) -> Self {
        match last {
            Some(last) if last.cause == cause && now - last.begun < REPAIR_INTERVAL => last,
            _ => Self::begin(now, cause),
        }
    }
}

impl DueTimeUpdater {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { jobs: JobCommands::of(context), leadership: context.leadership.clone(), last_repair: None }
    }

    /// Goes on with a repair until `slice_end`.
    async fn repair(
        &self,
        repair: &mut ClockRepair,
        slice_end: Instant,
        steps: &mut Steps,
        report: &mut DueTimeReport,
    ) {
        while repair.pulls_back && Instant::now() <= slice_end {
            let Some((rows, has_more)) = steps.result("instants", self.jobs.pull_back_instants().await) else { break };
            report.pulled_back += rows;
            repair.pulls_back = has_more;
        }
        while let Some(after) = repair.after
            && Instant::now() <= slice_end
        {
            let Some(page) = steps.result("silent jobs", self.jobs.wake_silent_jobs(after).await) else { break };
            report.moved += page.moved;
            repair.after = page.upto;
        }
    }
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
        // Each cause has half of the slice, so that a long repair and a large edit do not wait for each other.
        let (now, slice_end) = (Instant::now(), Self::slice_end());
        let half = now + (slice_end - now) / 2;
        while let Some(page) = steps.result("calendars", self.jobs.apply_calendar_edit().await).flatten() {
            report.moved += page.moved;
            if Instant::now() > half {
                report.has_more = true;
                break;
            }
        }
        let epoch = self.leadership.borrow().held_lease().map(HeldLease::epoch);
        let mut repair = ClockRepair::next(self.last_repair, (self.jobs.clock.set_backs(), epoch), now);
        if !repair.is_done() {
            self.repair(&mut repair, slice_end, &mut steps, &mut report).await;
            report.has_more |= !repair.is_done();
        }
        self.last_repair = Some(repair);
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
    fn repair_begins_at_first_for_a_new_cause_and_hourly() {
        let (now, cause) = (Instant::now(), (2, Some(7)));
        let begun = ClockRepair::next(None, cause, now);
        assert!(!begun.is_done());
        let done = ClockRepair { pulls_back: false, after: None, ..begun };
        assert_eq!(ClockRepair::next(Some(done), cause, now + REPAIR_INTERVAL / 2), done);
        for (cause, at) in [((3, Some(7)), now), ((2, Some(8)), now), (cause, now + REPAIR_INTERVAL)] {
            assert!(!ClockRepair::next(Some(done), cause, at).is_done(), "{cause:?}");
        }
    }
}
