//! Maintenance of the database: creates partitions in advance, deletes expired data, and repairs inconsistencies.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use crate::{
    clock::Clock,
    command::sign_in::{DEVICE_RETENTION, FAILED_SIGN_IN_RETENTION},
    config::retention::RetentionConfig,
    engine::{RunsOn, Service, context::Context},
    store::{
        Store,
        partitions::{DailyTable, PartitionDropOutcome},
        redeliveries::REDELIVERY_MEMORY,
    },
};

/// The retention of the statistics per minute.
const STATS_RETENTION: chrono::Duration = chrono::Duration::days(90);

/// The retention of an invite after it was used or has expired.
const INVITE_RETENTION: chrono::Duration = chrono::Duration::days(30);

/// The background task that maintains the database.
#[derive(Debug)]
pub struct Maintenance {
    /// The PostgreSQL store.
    pub store: Store,
    /// The server's clock.
    pub clock: Clock,
    /// The retention periods.
    pub retention: RetentionConfig,
    /// The activator of the slot granter.
    pub activate_slot_granter: Arc<Notify>,
}

impl Maintenance {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            clock: context.clock.clone(),
            retention: context.config.retention.clone(),
            activate_slot_granter: context.activators.slot_granter.clone(),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// The number of partitions created.
    pub partitions: i32,
    /// Partitions dropped, one per day or month.
    pub dropped: Vec<String>,
    /// Expired partitions that were kept because an occurrence in them is still open.
    pub open: Vec<String>,
    /// Expired partitions that were kept because they were being read.
    pub busy: Vec<String>,
    /// Expired failures deleted.
    pub failures: u64,
    /// Expired dead letters deleted.
    pub dead_letters: u64,
    /// Expired idempotency keys of manual runs deleted.
    pub trigger_keys: u64,
    /// Slots freed that belonged to no open occurrence. Such slots indicate a bug.
    pub slots: u64,
    /// Expired sessions deleted.
    pub sessions: u64,
    /// Rows of the minute statistics deleted.
    pub stats: u64,
    /// Expired counts of failed sign-ins deleted.
    pub sign_in_attempts: u64,
    /// Known devices deleted, long after their last sign-in.
    pub devices: u64,
    /// Invites deleted, long after they were used or had expired.
    pub invites: u64,
    /// Expired links for a new passphrase deleted.
    pub resets: u64,
    /// Expired counts of redelivered messages deleted.
    pub redeliveries: u64,
}

impl Maintenance {
    async fn drop_days(
        &self,
        daily: DailyTable,
        before: DateTime<Utc>,
        report: &mut MaintenanceReport,
    ) -> anyhow::Result<()> {
        for day in self.store.partition_days_before(daily, before).await? {
            let partition = daily.partition(day);
            match self.store.drop_partition(daily, day).await? {
                PartitionDropOutcome::Removed => report.dropped.push(partition),
                PartitionDropOutcome::Locked => report.busy.push(partition),
                PartitionDropOutcome::HasOpenRuns => {
                    tracing::warn!(
                        partition,
                        "partition {partition} has expired, but an occurrence in it is still open; cancel it so that the partition can be dropped"
                    );
                    report.open.push(partition);
                }
            }
        }
        Ok(())
    }
}

impl Service for Maintenance {
    const NAME: &'static str = "maintenance";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    const TIME_LIMIT: Duration = Duration::from_secs(600);
    type Report = MaintenanceReport;

    fn period(&self) -> Duration {
        Duration::from_secs(3_600)
    }

    async fn tick(&mut self) -> anyhow::Result<MaintenanceReport> {
        let now = self.clock.now();
        // Partitions come first, because the next day cannot be written without them.
        let mut report =
            MaintenanceReport { partitions: self.store.ensure_partitions(now).await?, ..MaintenanceReport::default() };
        report.slots = self.store.delete_stale_slots().await?;
        if report.slots > 0 {
            tracing::error!(
                slots = report.slots,
                "{} slots belonged to no open occurrence and were freed",
                report.slots
            );
            self.activate_slot_granter.notify_one();
        }
        // After a clock step, everything may look expired, and dropped data cannot be restored.
        if self.clock.is_settling() {
            return Ok(report);
        }
        report.sessions = self.store.delete_expired_sessions(now).await?;
        report.stats = self.store.delete_old_stats(now - STATS_RETENTION).await?;
        report.sign_in_attempts = self.store.delete_old_sign_in_attempts(now - FAILED_SIGN_IN_RETENTION).await?;
        report.devices = self.store.delete_old_devices(now - DEVICE_RETENTION).await?;
        report.invites = self.store.delete_old_invites(now - INVITE_RETENTION).await?;
        report.resets = self.store.delete_expired_resets(now).await?;
        report.redeliveries = self.store.delete_old_redeliveries(now - REDELIVERY_MEMORY).await?;
        report.trigger_keys = self.store.delete_old_trigger_keys(now).await?;
        report.failures = self.store.delete_old_failures(now - self.retention.failed).await?;
        report.dead_letters = self.store.delete_old_dead_letters(now - self.retention.dead_letters).await?;
        for (partition, outcome) in self.store.drop_audit_months(now - self.retention.audit).await? {
            match outcome {
                PartitionDropOutcome::Removed => report.dropped.push(partition),
                PartitionDropOutcome::Locked | PartitionDropOutcome::HasOpenRuns => report.busy.push(partition),
            }
        }
        self.drop_days(DailyTable::Logs, now - self.retention.logs, &mut report).await?;
        self.drop_days(DailyTable::Occurrences, now - self.retention.occurrences, &mut report).await?;
        Ok(report)
    }

    fn is_notable(report: &MaintenanceReport) -> bool {
        // Partitions that are kept because of an open occurrence are logged separately.
        MaintenanceReport { open: Vec::new(), ..report.clone() } != MaintenanceReport::default()
    }
}
