//! Detects old snapshots.
//!
//! A job that fires leaves a dead row behind. PostgreSQL removes dead rows, but none that an open transaction of another
//! session may still read. While a dump or a forgotten session holds such a snapshot, every look-up passes more dead rows,
//! and after some minutes runs start late. Only an operator can end that session, so the health names it in time.

use std::time::Duration;

use crate::{
    clock::Clock,
    engine::{Service, context::Context, observations::LastSnapshot},
    store::{Store, snapshots::OldSnapshot},
};

/// The time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The age from which on a snapshot is reported. With the interval it is less than the two minutes in which lateness
/// begins to show.
const MIN_REPORTED_AGE: Duration = Duration::from_secs(90);

/// The background task that watches the age of snapshots.
#[derive(Debug)]
pub struct SnapshotWatch {
    /// The PostgreSQL store.
    pub store: Store,
    /// The server's clock.
    pub clock: Clock,
    /// The result, for the health of the server.
    pub last: LastSnapshot,
    /// The age from which on a snapshot is reported.
    pub min_age: Duration,
}

impl SnapshotWatch {
    /// Creates the watch of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            clock: context.clock.clone(),
            last: context.oldest_snapshot.clone(),
            min_age: MIN_REPORTED_AGE,
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SnapshotReport {
    /// The oldest snapshot, if it is old.
    pub oldest: Option<OldSnapshot>,
    /// True if the session was not reported before.
    pub is_new: bool,
}

impl Service for SnapshotWatch {
    const NAME: &'static str = "snapshots";
    type Report = SnapshotReport;

    fn period(&self) -> Duration {
        CHECK_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<SnapshotReport> {
        let oldest = self.store.oldest_snapshot(self.min_age).await?;
        let before = self.last.replace(oldest.clone());
        let is_new = oldest.is_some() && oldest != before;
        if let (true, Some(found)) = (is_new, &oldest) {
            let seconds = (self.clock.now() - found.since).num_seconds();
            tracing::warn!(
                postgres.pid = found.pid,
                postgres.application = found.application,
                age_s = seconds,
                "a transaction of session {} has been open for {seconds} s; dead rows accumulate, and runs will start late: end it, and take dumps from a replica",
                found.pid
            );
        }
        Ok(SnapshotReport { oldest, is_new })
    }

    fn is_notable(report: &SnapshotReport) -> bool {
        report.is_new
    }
}
