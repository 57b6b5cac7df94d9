//! Runs ANALYZE on a partition after it has grown, so that cached plans are replanned.
//!
//! A prepared statement is planned once and its plan is cached. The plan for tomorrow's partition is made today, and
//! PostgreSQL treats a table that ANALYZE found empty as one that costs nothing to scan. After midnight such a plan
//! scans the whole partition for every row that it looks up. Each row written makes that slower, until autovacuum
//! analyzes the table after a minute or more. ANALYZE invalidates the cached plans. The task therefore checks a
//! partition soon after its day has begun and every ten seconds later, and analyzes it whenever it has grown
//! severalfold. It also checks yesterday's partition, because occurrences created just before midnight are reported on
//! after it.

use std::time::Duration;

use chrono::{DateTime, Days, NaiveTime, Utc};

use crate::{
    clock::Clock,
    engine::{RunsOn, Service, context::Context},
    store::Store,
};

/// The longest time between two checks. Shortly after midnight, checks are more frequent; see [`next_check`].
const ANALYZE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The delay of the first check after midnight.
const MIN_ANALYZE_DELAY: Duration = Duration::from_secs(1);

/// The background task that analyzes growing partitions.
#[derive(Debug)]
pub struct PartitionAnalyzer {
    /// The PostgreSQL store.
    pub store: Store,
    /// The server's clock.
    pub clock: Clock,
}

impl PartitionAnalyzer {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.store.clone(), clock: context.clock.clone() }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionAnalyzeReport {
    /// The partitions that were analyzed.
    pub analyzed: Vec<String>,
}

impl Service for PartitionAnalyzer {
    const NAME: &'static str = "partition-analyze";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    const TIME_LIMIT: Duration = Duration::from_secs(300);
    type Report = PartitionAnalyzeReport;

    fn period(&self) -> Duration {
        ANALYZE_CHECK_INTERVAL
    }

    fn next_tick_in(&self) -> Option<Duration> {
        Some(next_check(self.clock.now()))
    }

    async fn tick(&mut self) -> anyhow::Result<PartitionAnalyzeReport> {
        Ok(PartitionAnalyzeReport {
            analyzed: self.store.analyze_grown_partitions(self.clock.now().date_naive()).await?,
        })
    }

    fn is_notable(report: &PartitionAnalyzeReport) -> bool {
        !report.analyzed.is_empty()
    }
}

/// Returns the time until the next check: when the day is twice as old, since its partition may then be twice as large,
/// or when the next day has begun.
fn next_check(now: DateTime<Utc>) -> Duration {
    let midnight = now.date_naive().and_time(NaiveTime::MIN).and_utc();
    let age = (now - midnight).to_std().unwrap_or_default();
    let next_day = (midnight + Days::new(1) - now).to_std().unwrap_or_default() + MIN_ANALYZE_DELAY;
    age.max(MIN_ANALYZE_DELAY).min(next_day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_day_is_checked_each_time_its_age_doubles() {
        let mut now: DateTime<Utc> = "2026-03-01T23:59:58.500Z".parse().expect("an instant");
        let mut checks = Vec::new();
        while checks.len() < 6 {
            now += next_check(now);
            checks.push(now.format("%H:%M:%S%.3f").to_string());
        }
        assert_eq!(
            checks,
            ["00:00:01", "00:00:02", "00:00:04", "00:00:08", "00:00:16", "00:00:32"].map(|at| format!("{at}.000"))
        );
        let noon = "2026-03-01T12:00:00Z".parse().expect("an instant");
        assert!(next_check(noon) > ANALYZE_CHECK_INTERVAL, "the period is shorter at noon");
    }
}
