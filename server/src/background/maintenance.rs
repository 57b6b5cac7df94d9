//! Housekeeping: partitions made ahead, what has expired taken away, what should not be mended.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::BackgroundTask;
use crate::{
    clock::Clock,
    command::sign_in::FAILED_SIGN_IN_RETENTION,
    config::retention::RetentionConfig,
    store::{
        Store,
        partitions::{DailyTable, PartitionDropOutcome},
    },
};

/// How long the roll-up is kept.
const STATS_RETENTION: chrono::Duration = chrono::Duration::days(90);

/// How long an invitation is kept after it has ended.
const INVITE_RETENTION: chrono::Duration = chrono::Duration::days(30);

/// The task.
#[derive(Debug)]
pub struct Maintenance {
    /// The truth.
    pub store: Store,
    /// What time it is.
    pub clock: Clock,
    /// How long things are kept.
    pub retention: RetentionConfig,
    /// Wakes whoever hands out slots.
    pub activate_slot_granter: Arc<Notify>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Partitions made.
    pub partitions: i32,
    /// Partitions dropped, whole days.
    pub dropped: Vec<String>,
    /// Partitions old enough to be dropped in which an occurrence is still open.
    pub open: Vec<String>,
    /// Partitions that were being read when they should have been dropped.
    pub busy: Vec<String>,
    /// Failures that were too old.
    pub failures: u64,
    /// Messages nobody understood that were too old.
    pub dead_letters: u64,
    /// Keys of manual runs that were too old.
    pub trigger_keys: u64,
    /// Slots that belonged to nothing open: there should never be any.
    pub slots: u64,
    /// Sessions that had expired.
    pub sessions: u64,
    /// Minutes of the roll-up that were too old.
    pub stats: u64,
    /// Counts of wrong passphrases that have rested long enough.
    pub sign_in_attempts: u64,
    /// Invitations long used up or past.
    pub invites: u64,
}

impl Maintenance {
    async fn drop_days(
        &self,
        daily: DailyTable,
        before: DateTime<Utc>,
        kept: &mut MaintenanceReport,
    ) -> anyhow::Result<()> {
        for day in self.store.partition_days_before(daily, before).await? {
            let partition = daily.partition(day);
            match self.store.drop_partition(daily, day).await? {
                PartitionDropOutcome::Removed => kept.dropped.push(partition),
                PartitionDropOutcome::Locked => kept.busy.push(partition),
                PartitionDropOutcome::HasOpenRuns => {
                    tracing::warn!(
                        partition,
                        "a day is older than it is to be kept, but an occurrence of it is still open; cancel it to let the day go"
                    );
                    kept.open.push(partition);
                }
            }
        }
        Ok(())
    }
}

impl BackgroundTask for Maintenance {
    const NAME: &'static str = "maintenance";
    type Report = MaintenanceReport;

    fn period(&self) -> Duration {
        Duration::from_secs(3_600)
    }

    async fn tick(&mut self) -> anyhow::Result<MaintenanceReport> {
        let now = self.clock.now();
        // First what the next day cannot do without.
        let mut kept =
            MaintenanceReport { partitions: self.store.ensure_partitions(now).await?, ..MaintenanceReport::default() };
        kept.slots = self.store.delete_stale_slots().await?;
        if kept.slots > 0 {
            tracing::error!(slots = kept.slots, "slots belonged to nothing that is open; they are free again");
            self.activate_slot_granter.notify_one();
        }
        // By a clock that was just set, everything may be too old at once, and what is dropped does not come back.
        if self.clock.is_settling() {
            return Ok(kept);
        }
        kept.sessions = self.store.delete_expired_sessions(now).await?;
        kept.stats = self.store.delete_old_stats(now - STATS_RETENTION).await?;
        kept.sign_in_attempts = self.store.delete_old_sign_in_attempts(now - FAILED_SIGN_IN_RETENTION).await?;
        kept.invites = self.store.delete_old_invites(now - INVITE_RETENTION).await?;
        kept.trigger_keys = self.store.delete_old_trigger_keys(now).await?;
        kept.failures = self.store.delete_old_failures(now - self.retention.failed).await?;
        kept.dead_letters = self.store.delete_old_dead_letters(now - self.retention.dead_letters).await?;
        self.drop_days(DailyTable::Logs, now - self.retention.logs, &mut kept).await?;
        self.drop_days(DailyTable::Occurrences, now - self.retention.occurrences, &mut kept).await?;
        Ok(kept)
    }

    fn is_notable(report: &MaintenanceReport) -> bool {
        // What stays open is told by a line of its own.
        MaintenanceReport { open: Vec::new(), ..report.clone() } != MaintenanceReport::default()
    }
}
