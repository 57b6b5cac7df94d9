//! Maintenance of the database: creates partitions in advance, deletes expired data, and finds inconsistencies.
//!
//! Deleted data cannot be restored, and the clock that says what has expired may be wrong. A step while a server runs is
//! noticed by the clock. A clock that is wrong when all servers start is noticed here: more than a day has passed since the
//! last look. Nothing is deleted then for a day, in which the clock can be corrected. An installation that was off for
//! longer deletes a day later than it could.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::{
    clock::Clock,
    command::sign_in::{DEVICE_RETENTION, FAILED_SIGN_IN_RETENTION},
    config::retention::RetentionConfig,
    engine::{RunsOn, Service, context::Context},
    store::{
        Store,
        api_requests::API_REQUEST_RETENTION,
        partitions::{PARTITIONED_TABLES, PartitionDropOutcome, PartitionedTable},
        redeliveries::REDELIVERY_MEMORY,
        stats::FOLD_BATCH,
    },
};

/// The retention of the statistics per minute.
const STATS_RETENTION: chrono::Duration = chrono::Duration::days(90);

/// The age from which the statistics are kept per quarter of an hour: longer than the longest window with finer bars.
pub const STATS_MINUTES_RETENTION: chrono::Duration = chrono::Duration::hours(25);

/// The retention of an invite after it was used or has expired.
const INVITE_RETENTION: chrono::Duration = chrono::Duration::days(30);

/// The retention of a worker instance after its last heartbeat. Each start of a worker process is a new instance.
const INSTANCE_RETENTION: chrono::Duration = chrono::Duration::days(1);

/// The background task that maintains the database.
#[derive(Debug)]
pub struct Maintenance {
    /// The PostgreSQL store.
    pub store: Store,
    /// The server's clock.
    pub clock: Clock,
    /// The retention periods.
    pub retention: RetentionConfig,
}

impl Maintenance {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.store.clone(), clock: context.clock.clone(), retention: context.config.retention.clone() }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MaintenanceReport {
    /// The number of partitions created.
    pub partitions: i32,
    /// Partitions dropped, one per day or month.
    pub dropped: Vec<String>,
    /// Expired partitions that were kept because an occurrence that is still kept needs a row of them.
    pub needed: Vec<String>,
    /// Expired partitions that were kept because they were being read.
    pub busy: Vec<String>,
    /// Expired failures deleted.
    pub failures: u64,
    /// Expired dead letters deleted.
    pub dead_letters: u64,
    /// Expired idempotency keys of manual runs deleted.
    pub trigger_keys: u64,
    /// Free uniqueness keys deleted.
    pub uniqueness_keys: u64,
    /// Checkpoints of ended occurrences deleted.
    pub checkpoints: u64,
    /// Expired idempotency keys of API requests deleted.
    pub api_requests: u64,
    /// Jobs whose due time belongs to another version, so that they are never due. They indicate a bug.
    pub mismatched_due_times: i64,
    /// Expired records of late starts deleted.
    pub late_starts: u64,
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
    /// True if nothing was deleted, because the time has jumped.
    pub is_held: bool,
    /// Worker instances deleted, long after their last heartbeat.
    pub instances: u64,
}

impl Maintenance {
    async fn drop_expired(
        &self,
        table: PartitionedTable,
        now: DateTime<Utc>,
        report: &mut MaintenanceReport,
    ) -> anyhow::Result<()> {
        let before = now - self.store.retention_of(table);
        for (partition, outcome) in self.store.drop_partitions(table, before).await? {
            match outcome {
                PartitionDropOutcome::Removed => report.dropped.push(partition),
                PartitionDropOutcome::Locked => report.busy.push(partition),
                PartitionDropOutcome::IsNeeded => report.needed.push(partition),
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
        report.mismatched_due_times = self.store.count_mismatched_due_times().await?;
        if report.mismatched_due_times > 0 {
            tracing::error!(
                jobs = report.mismatched_due_times,
                "{} jobs have a due time of another version and are never due; save each of them once",
                report.mismatched_due_times
            );
        }
        // After a clock step, everything may look expired, and dropped data cannot be restored.
        if self.clock.is_settling() {
            return Ok(report);
        }
        if let Some(until) = self.store.note_maintenance(now).await? {
            tracing::warn!(
                held_until = %until,
                "no expired data is deleted until {until}: more than a day has passed since the last time, and the clock \
                 of PostgreSQL may be ahead; set it back if it is wrong"
            );
            report.is_held = true;
            return Ok(report);
        }
        report.sessions = self.store.delete_expired_sessions(now).await?;
        report.stats = self.store.delete_old_stats(now - STATS_RETENTION).await?;
        while self.store.merge_old_stats(now - STATS_MINUTES_RETENTION).await? >= FOLD_BATCH {}
        report.sign_in_attempts = self.store.delete_old_sign_in_attempts(now - FAILED_SIGN_IN_RETENTION).await?;
        report.devices = self.store.delete_old_devices(now - DEVICE_RETENTION).await?;
        report.invites = self.store.delete_old_invites(now - INVITE_RETENTION).await?;
        report.resets = self.store.delete_expired_resets(now).await?;
        report.redeliveries = self.store.delete_old_redeliveries(now - REDELIVERY_MEMORY).await?;
        report.instances = self.store.delete_old_instances(now - INSTANCE_RETENTION).await?;
        report.trigger_keys = self.store.delete_old_trigger_keys(now).await?;
        report.uniqueness_keys = self.store.delete_free_uniqueness_keys(now).await?;
        report.checkpoints = self.store.delete_old_checkpoints(now).await?;
        report.api_requests = self.store.delete_old_api_requests(now - API_REQUEST_RETENTION).await?;
        report.failures = self.store.delete_old_failures(now - self.retention.failed).await?;
        report.dead_letters = self.store.delete_old_dead_letters(now - self.retention.dead_letters).await?;
        for (partition, outcome) in self.store.drop_audit_months(now - self.retention.audit).await? {
            match outcome {
                PartitionDropOutcome::Removed => report.dropped.push(partition),
                PartitionDropOutcome::Locked | PartitionDropOutcome::IsNeeded => report.busy.push(partition),
            }
        }
        // An occurrence that ended today may have a late start of yesterday.
        let late_starts_before = now - self.retention.occurrences - chrono::Duration::days(1);
        report.late_starts = self.store.delete_old_late_starts(late_starts_before).await?;
        for table in PARTITIONED_TABLES {
            self.drop_expired(table, now, &mut report).await?;
        }
        Ok(report)
    }

    fn is_notable(report: &MaintenanceReport) -> bool {
        // A partition may be needed for months.
        MaintenanceReport { needed: Vec::new(), is_held: false, ..report.clone() } != MaintenanceReport::default()
    }
}
