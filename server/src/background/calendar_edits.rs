//! Applies edits of calendars to the due times of the jobs that use them.
//!
//! The request that saves a calendar applies the edit to the first jobs itself, so that a page shows their new due times
//! at once. This task does the rest. It also takes over what a request left because its browser was closed or its server
//! stopped.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    command::jobs::JobCommands,
    engine::{RunsOn, Service, context::Context},
};

/// The background task that applies edits of calendars.
#[derive(Debug)]
pub struct CalendarEdits {
    /// The commands that move due times.
    pub jobs: JobCommands,
}

impl CalendarEdits {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { jobs: JobCommands::of(context) }
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CalendarEditReport {
    /// Jobs that got another due time.
    pub moved: usize,
    /// True if the tick ended before all jobs had theirs.
    pub has_more: bool,
}

impl Service for CalendarEdits {
    const NAME: &'static str = "calendar-edits";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = CalendarEditReport;

    fn period(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn tick(&mut self) -> anyhow::Result<CalendarEditReport> {
        let mut report = CalendarEditReport::default();
        let slice_end = Self::slice_end();
        while let Some(page) = self.jobs.apply_calendar_edit().await? {
            report.moved += page.moved;
            if Instant::now() > slice_end {
                report.has_more = true;
                break;
            }
        }
        Ok(report)
    }

    fn has_more(report: &CalendarEditReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &CalendarEditReport) -> bool {
        report.moved > 0
    }
}
