//! Maintenance of the database: creates partitions in advance, deletes expired data, and finds inconsistencies.
//!
//! Deleted data cannot be restored, and the clock that says what has expired may be wrong. A step while a server runs is
//! noticed by the clock. A clock that is wrong when all servers start is noticed here: more than a day has passed since the
//! last look. Nothing is deleted then for a day, in which the clock can be corrected. An installation that was off for
//! longer deletes a day later than it could.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::steps::Steps;
use crate::{
    clock::Clock,
    command::sign_in::{DEVICE_RETENTION, FAILED_SIGN_IN_RETENTION},
    config::retention::RetentionConfig,
    engine::{RunsOn, Service, context::Context},
    store::{
        Result, Store,
        alerts::states::ALERT_RETENTION,
        api_requests::API_REQUEST_RETENTION,
        create::IDEMPOTENCY_KEY_RETENTION,
        partitions::{PARTITIONED_TABLES, PartitionDropOutcome},
        redeliveries::REDELIVERY_MEMORY,
        retention::{DELETE_BATCH_SIZE, ExpiringTable},
    },
};

/// The retention of the statistics per minute.
const STATS_RETENTION: TimeDelta = TimeDelta::days(90);

/// The age from which the statistics are kept per quarter of an hour: longer than the longest window with finer bars.
pub const STATS_MINUTES_RETENTION: TimeDelta = TimeDelta::hours(25);

/// The retention of an expired one-time link. Until then, an invitation can be renewed.
const LINK_RETENTION: TimeDelta = TimeDelta::days(30);

/// The retention of a worker instance after its last heartbeat. Each start of a worker process is a new instance.
const INSTANCE_RETENTION: TimeDelta = TimeDelta::days(1);

/// The time after which a checkpoint of an occurrence that is no longer open is deleted.
const CHECKPOINT_GRACE: TimeDelta = TimeDelta::hours(1);

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
    /// The number of rows deleted, by table; of the statistics, also those merged by quarter of an hour.
    pub deleted: BTreeMap<&'static str, u64>,
    /// Jobs whose due time belongs to another version, so that they are never due. They indicate a bug.
    pub mismatched_due_times: i64,
    /// True if nothing was deleted, because the time has jumped.
    pub is_held: bool,
    /// True if more rows have expired than one tick deletes.
    pub has_more: bool,
}

/// A tick under way.
struct MaintenanceTick {
    /// The instant from which on no step begins a second batch.
    slice_end: Instant,
    report: MaintenanceReport,
    steps: Steps,
}

impl MaintenanceTick {
    fn new(slice_end: Instant) -> Self {
        Self { slice_end, report: MaintenanceReport::default(), steps: Steps::new(Maintenance::NAME) }
    }

    /// Returns the result of a step, or `None` if it failed.
    fn step<T>(&mut self, name: &'static str, result: Result<T>) -> Option<T> {
        self.steps.result(name, result)
    }

    /// Records what became of the expired partitions of a table.
    fn drops(&mut self, table: &'static str, outcomes: Result<Vec<(String, PartitionDropOutcome)>>) {
        for (partition, outcome) in self.step(table, outcomes).unwrap_or_default() {
            match outcome {
                PartitionDropOutcome::Removed => self.report.dropped.push(partition),
                PartitionDropOutcome::Locked => self.report.busy.push(partition),
                PartitionDropOutcome::IsNeeded => self.report.needed.push(partition),
            }
        }
    }

    /// Records a batch of rows deleted from a table. Returns true if another one follows in this tick. Each table gets at
    /// least one batch, so that a backlog of one does not keep the others from being cleaned.
    fn continues(&mut self, table: &'static str, rows: Result<u64>) -> bool {
        let rows = self.step(table, rows).unwrap_or_default();
        if rows > 0 {
            *self.report.deleted.entry(table).or_default() += rows;
        }
        let is_full = rows >= DELETE_BATCH_SIZE.unsigned_abs();
        let is_over = Instant::now() >= self.slice_end;
        self.report.has_more |= is_full && is_over;
        is_full && !is_over
    }

    /// Returns the report, or an error with the names of the steps that failed.
    fn end(self) -> anyhow::Result<MaintenanceReport> {
        self.steps.end(self.report)
    }
}

impl Maintenance {
    /// Creates partitions and looks for inconsistencies, which no clock can make wrong.
    async fn prepare(&self, now: DateTime<Utc>, tick: &mut MaintenanceTick) {
        // Partitions come first, because the next day cannot be written without them.
        let created = self.store.ensure_partitions(now).await;
        tick.report.partitions = tick.step("new partitions", created).unwrap_or_default();
        let mismatched = self.store.count_mismatched_due_times().await;
        tick.report.mismatched_due_times = tick.step("due times", mismatched).unwrap_or_default();
        if tick.report.mismatched_due_times > 0 {
            tracing::error!(
                jobs = tick.report.mismatched_due_times,
                "{} jobs have a due time of another version and are never due; save each of them once",
                tick.report.mismatched_due_times
            );
        }
    }

    /// Returns true if expired data may be deleted: the clock is right, as far as can be seen.
    async fn may_delete(&self, now: DateTime<Utc>, tick: &mut MaintenanceTick) -> bool {
        // After a clock step, everything may look expired, and dropped data cannot be restored.
        if self.clock.is_settling() {
            return false;
        }
        let noted = self.store.note_maintenance(now).await;
        let Some(held_until) = tick.step("clock", noted) else { return false };
        if let Some(until) = held_until {
            tracing::warn!(
                held_until = %until,
                "no expired data is deleted until {until}: more than a day has passed since the last time, and the clock \
                 of PostgreSQL may be ahead; set it back if it is wrong"
            );
            tick.report.is_held = true;
        }
        held_until.is_none()
    }

    /// Deletes what has expired. Partitions come first: they hold the most rows, and dropping one takes the same time for
    /// any number of them.
    async fn delete_expired(&self, now: DateTime<Utc>, tick: &mut MaintenanceTick) {
        for table in PARTITIONED_TABLES {
            let before = now - self.store.retention_of(table);
            tick.drops(table.name(), self.store.drop_partitions(table, before).await);
        }
        tick.drops("audit_log", self.store.drop_audit_months(now - self.retention.audit).await);
        // Before the instances that offer them are deleted.
        tick.step("announcements", self.store.extend_announcements().await);
        // An occurrence that ended today may have a late start of yesterday.
        let of_occurrences = self.retention.occurrences + TimeDelta::days(1);
        for (table, retention) in [
            (ExpiringTable::Sessions, TimeDelta::zero()),
            (ExpiringTable::OneTimeLinks, LINK_RETENTION),
            (ExpiringTable::SignInThrottle, FAILED_SIGN_IN_RETENTION),
            (ExpiringTable::KnownDevices, DEVICE_RETENTION),
            (ExpiringTable::WorkerInstances, INSTANCE_RETENTION),
            (ExpiringTable::WorkerJobTypes, self.retention.workers),
            (ExpiringTable::Workers, self.retention.workers),
            (ExpiringTable::Redeliveries, REDELIVERY_MEMORY),
            (ExpiringTable::TriggerKeys, IDEMPOTENCY_KEY_RETENTION),
            (ExpiringTable::ApiRequests, API_REQUEST_RETENTION),
            (ExpiringTable::FailedOccurrences, self.retention.failed),
            (ExpiringTable::DeadLetters, self.retention.dead_letters),
            (ExpiringTable::LateStarts, of_occurrences),
            (ExpiringTable::RunNotes, of_occurrences),
            (ExpiringTable::AlertStates, ALERT_RETENTION),
            (ExpiringTable::RunCheckpoints, CHECKPOINT_GRACE),
            (ExpiringTable::StatsFolded, STATS_RETENTION),
        ] {
            while tick.continues(table.name(), self.store.delete_expired(table, now - retention).await) {}
        }
        let before = now - STATS_MINUTES_RETENTION;
        while tick.continues(ExpiringTable::StatsFolded.name(), self.store.merge_old_stats(before).await) {}
        // The last one, because it looks at all keys in one call.
        tick.continues("run_uniqueness", self.store.delete_free_uniqueness_keys(now).await);
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
        let mut tick = MaintenanceTick::new(Self::slice_end());
        self.prepare(now, &mut tick).await;
        if self.may_delete(now, &mut tick).await {
            self.delete_expired(now, &mut tick).await;
        }
        tick.end()
    }

    fn has_more(report: &MaintenanceReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &MaintenanceReport) -> bool {
        // A partition may be needed for months.
        MaintenanceReport { needed: Vec::new(), is_held: false, ..report.clone() } != MaintenanceReport::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    const FULL: u64 = DELETE_BATCH_SIZE.unsigned_abs();

    #[test]
    fn failed_step_is_named_and_stops_no_other() {
        let mut tick = MaintenanceTick::new(Instant::now() + Duration::from_secs(60));
        tick.drops("history", Err(StoreError::Exhausted));
        assert!(!tick.continues("sessions", Err(StoreError::Exhausted)));
        assert!(tick.continues("one_time_links", Ok(FULL)) && !tick.continues("one_time_links", Ok(1)));
        assert_eq!(tick.report.deleted, BTreeMap::from([("one_time_links", FULL + 1)]));
        let error = tick.end().expect_err("two steps failed").to_string();
        assert!(error.ends_with(": history, sessions"), "{error}");
    }

    #[test]
    fn backlog_beyond_the_slice_is_left_to_the_next_tick() {
        let mut tick = MaintenanceTick::new(Instant::now());
        assert!(!tick.continues("sessions", Ok(FULL - 1)));
        assert!(!tick.report.has_more);
        assert!(!tick.continues("one_time_links", Ok(FULL)));
        assert!(Maintenance::has_more(&tick.end().expect("no step failed")));
    }
}
