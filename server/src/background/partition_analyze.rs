//! Has a day that has grown measured anew, for the sake of plans.
//!
//! A statement's plan is made once and kept. The one for tomorrow's partition is made today, and PostgreSQL takes a table
//! that somebody's `ANALYZE` has found empty for one that is read at no cost. Kept past midnight, such a plan reads the
//! whole of the new day for every row that it looks for, more with every row that is written, until the autovacuum comes
//! by after a minute or later. What is measured invalidates the plans made before; so a day is looked at soon after it has
//! begun, and every ten seconds later, and is measured whenever it has become several times as large. Yesterday is looked
//! at too: what was made just before midnight is reported on after it.

use std::time::Duration;

use chrono::{DateTime, Days, NaiveTime, Utc};

use super::BackgroundTask;
use crate::{clock::Clock, store::Store};

/// How often a day is looked at that is no longer young.
const ANALYZE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How long after midnight it is looked at first.
const MIN_ANALYZE_DELAY: Duration = Duration::from_secs(1);

/// The task.
#[derive(Debug)]
pub struct AnalyzePartitions {
    /// The truth.
    pub store: Store,
    /// What day it is.
    pub clock: Clock,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionAnalyzeReport {
    /// The partitions that were measured.
    pub analyzed: Vec<String>,
}

impl BackgroundTask for AnalyzePartitions {
    const NAME: &'static str = "partition-analyze";
    type Report = PartitionAnalyzeReport;

    fn period(&self) -> Duration {
        ANALYZE_CHECK_INTERVAL
    }

    fn next_tick_in(&self) -> Option<Duration> {
        Some(next_look(self.clock.now()))
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

/// Until the next look: when the day is twice as old, for by then it may be twice as large, or when the next one has begun.
fn next_look(now: DateTime<Utc>) -> Duration {
    let midnight = now.date_naive().and_time(NaiveTime::MIN).and_utc();
    let old = (now - midnight).to_std().unwrap_or_default();
    let next_day = (midnight + Days::new(1) - now).to_std().unwrap_or_default() + MIN_ANALYZE_DELAY;
    old.max(MIN_ANALYZE_DELAY).min(next_day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_young_day_is_looked_at_whenever_it_is_twice_as_old() {
        let mut now: DateTime<Utc> = "2026-03-01T23:59:58.500Z".parse().expect("an instant");
        let mut looks = Vec::new();
        while looks.len() < 6 {
            now += next_look(now);
            looks.push(now.format("%H:%M:%S%.3f").to_string());
        }
        assert_eq!(
            looks,
            ["00:00:01", "00:00:02", "00:00:04", "00:00:08", "00:00:16", "00:00:32"].map(|at| format!("{at}.000"))
        );
        let noon = "2026-03-01T12:00:00Z".parse().expect("an instant");
        assert!(next_look(noon) > ANALYZE_CHECK_INTERVAL, "the period is shorter then");
    }
}
