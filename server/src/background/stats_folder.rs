//! Folds the status counts that statements have appended.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    engine::{RunsOn, Service, context::Context},
    store::{Store, stats::FOLD_BATCH},
};

/// The time between two ticks. The overview reads what is not folded yet too, so nothing depends on it but the size of
/// the table.
const FOLD_INTERVAL: Duration = Duration::from_secs(5);

/// The background task that folds status counts.
#[derive(Debug)]
pub struct StatsFolder {
    /// The PostgreSQL store.
    pub store: Store,
}

impl StatsFolder {
    /// Creates the folder of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.store.clone() }
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StatsFoldReport {
    /// Deltas that were folded.
    pub deltas: i64,
    /// True if there are more.
    pub has_more: bool,
}

impl Service for StatsFolder {
    const NAME: &'static str = "stats-folder";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = StatsFoldReport;

    fn period(&self) -> Duration {
        FOLD_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<StatsFoldReport> {
        let mut report = StatsFoldReport::default();
        let slice_end = Self::slice_end();
        loop {
            let folded = self.store.fold_stats().await?;
            report.deltas += folded;
            report.has_more = folded >= FOLD_BATCH;
            if !report.has_more || Instant::now() > slice_end {
                return Ok(report);
            }
        }
    }

    fn has_more(report: &StatsFoldReport) -> bool {
        report.has_more
    }

    fn is_notable(_: &StatsFoldReport) -> bool {
        false
    }
}
