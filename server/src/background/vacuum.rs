//! Removes dead rows from the tables whose rows are short-lived.
//!
//! Each dispatch and each end of a run leaves a dead row, which look-ups pass until it is removed. Autovacuum looks at a
//! table once a minute at best, and all its workers may be busy with large tables for hours; the leader therefore does it
//! as soon as it is worthwhile. While another session holds an old snapshot, nothing can be removed, and an attempt would only
//! read the table.

use std::time::Duration;

use crate::{
    engine::{RunsOn, Service, context::Context, observations::LastSnapshot},
    store::Store,
};

/// The time between two ticks.
const VACUUM_INTERVAL: Duration = Duration::from_secs(10);
/// The number of dead rows from which a table is vacuumed.
const MIN_DEAD_ROWS: i64 = 50_000;

/// The background task that vacuums busy tables.
#[derive(Debug)]
pub struct Vacuum {
    /// The PostgreSQL store.
    pub store: Store,
    /// The oldest snapshot that a session of PostgreSQL holds.
    pub oldest_snapshot: LastSnapshot,
}

impl Vacuum {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.store.clone(), oldest_snapshot: context.oldest_snapshot.clone() }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct VacuumReport {
    /// The tables that were vacuumed.
    pub tables: Vec<String>,
}

impl Service for Vacuum {
    const NAME: &'static str = "vacuum";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    const TIME_LIMIT: Duration = Duration::from_secs(1_800);
    type Report = VacuumReport;

    fn period(&self) -> Duration {
        VACUUM_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<VacuumReport> {
        if self.oldest_snapshot.get().is_some() {
            return Ok(VacuumReport::default());
        }
        Ok(VacuumReport { tables: self.store.vacuum_busy_tables(MIN_DEAD_ROWS).await? })
    }

    fn is_notable(_: &VacuumReport) -> bool {
        false
    }
}
