//! The state of each service, from which the health of the server is derived.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use crate::metrics::Metrics;

/// The failed ticks in a row from which on a service is in trouble.
const LASTING_FAILURES: u32 = 3;
/// The time for which a panic shows in the health of a service that has no ticks.
const PANIC_MEMORY: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
struct ServiceRecord {
    /// The last tick; of a service without ticks, its start.
    at: Instant,
    /// The instant at which a service with ticks counts as stalled.
    due: Option<Instant>,
    failure: Option<String>,
    /// The number of failed ticks since the last good one.
    failures_in_a_row: u32,
    panicked_at: Option<Instant>,
    is_standby: bool,
    counts: ServiceCounts,
}

/// The counts of a service since the server has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Ticks, with those that failed.
    pub ticks: u64,
    /// Ticks that failed or took too long.
    pub failures: u64,
    /// Panics.
    pub panics: u64,
    /// The duration of the longest tick.
    pub longest_tick: Duration,
}

/// The state of every service. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct ServiceStatuses {
    entries: Arc<Mutex<BTreeMap<&'static str, ServiceRecord>>>,
    metrics: Metrics,
}

/// The health of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceHealth {
    /// The last tick succeeded.
    Healthy,
    /// The last tick failed, or the service has panicked, with this error.
    Failing(String),
    /// Another server does the work of the service, and this one is ready to take over.
    Standby,
    /// The next tick is overdue, or there is no service of this name.
    Stalled,
}

impl ServiceStatuses {
    /// Creates statuses that also count in the metrics of the server.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// Records the start of a service.
    pub(super) fn record_start(&self, name: &'static str) {
        self.metrics.add_service(name);
        self.update(name, |_| {});
    }

    /// Records a tick. Without another one within `due_in`, the service counts as stalled.
    pub fn record_tick(&self, name: &'static str, took: Duration, due_in: Duration, failure: Option<String>) {
        self.metrics.tick(name, took, failure.is_some());
        self.update(name, |record| {
            record.at = Instant::now();
            record.due = Some(record.at + due_in);
            record.counts.ticks += 1;
            record.counts.failures += u64::from(failure.is_some());
            record.counts.longest_tick = record.counts.longest_tick.max(took);
            record.failures_in_a_row = if failure.is_some() { record.failures_in_a_row + 1 } else { 0 };
            if failure.is_none() {
                record.panicked_at = None;
            }
            record.failure = failure;
            record.is_standby = false;
        });
    }

    /// Records that a service is on standby, which it records again within `period`.
    pub fn record_standby(&self, name: &'static str, period: Duration) {
        self.update(name, |record| {
            record.at = Instant::now();
            record.due = Some(record.at + 3 * period);
            record.failure = None;
            record.is_standby = true;
        });
    }

    /// Records a panic.
    pub fn record_panic(&self, name: &'static str, reason: &str) {
        self.metrics.restarted(name);
        self.update(name, |record| {
            record.counts.panics += 1;
            record.panicked_at = Some(Instant::now());
            record.failure = Some(reason.to_owned());
        });
    }

    fn update(&self, name: &'static str, change: impl FnOnce(&mut ServiceRecord)) {
        if let Ok(mut entries) = self.entries.lock() {
            change(entries.entry(name).or_insert_with(|| ServiceRecord {
                at: Instant::now(),
                due: None,
                failure: None,
                failures_in_a_row: 0,
                panicked_at: None,
                is_standby: false,
                counts: ServiceCounts::default(),
            }));
        }
    }

    /// Returns the health of a service.
    #[must_use]
    pub fn health(&self, name: &str) -> ServiceHealth {
        let Ok(entries) = self.entries.lock() else { return ServiceHealth::Stalled };
        entries.get(name).map_or(ServiceHealth::Stalled, health)
    }

    /// Returns every service with its health and, if it has ticks, the time since the last one.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, ServiceHealth, Option<Duration>)> {
        let Ok(entries) = self.entries.lock() else { return Vec::new() };
        let age = |record: &ServiceRecord| record.due.map(|_| record.at.elapsed());
        entries.iter().map(|(name, record)| (*name, health(record), age(record))).collect()
    }

    /// Returns the services that fail again and again, have panicked or have stalled, with the reason.
    #[must_use]
    pub fn troubles(&self) -> Vec<(&'static str, String)> {
        let Ok(entries) = self.entries.lock() else { return Vec::new() };
        let trouble = |record: &ServiceRecord| match health(record) {
            ServiceHealth::Failing(reason) if is_lasting(record) => Some(reason),
            ServiceHealth::Failing(_) => None,
            ServiceHealth::Stalled => Some("has stalled".to_owned()),
            ServiceHealth::Healthy | ServiceHealth::Standby => None,
        };
        entries.iter().filter_map(|(name, record)| Some((*name, trouble(record)?))).collect()
    }

    /// Returns the counts of a service; zeros if there is none of this name.
    #[must_use]
    pub fn counts(&self, name: &str) -> ServiceCounts {
        let Ok(entries) = self.entries.lock() else { return ServiceCounts::default() };
        entries.get(name).map(|record| record.counts).unwrap_or_default()
    }

    /// Returns the time since the last tick of a service.
    #[must_use]
    pub fn since_last_tick(&self, name: &str) -> Option<Duration> {
        let entries = self.entries.lock().ok()?;
        let record = entries.get(name).filter(|record| record.counts.ticks > 0 || record.is_standby)?;
        Some(record.at.elapsed())
    }
}

/// Returns true if the failure is more than a tick that was repeated at once.
fn is_lasting(record: &ServiceRecord) -> bool {
    record.failures_in_a_row >= LASTING_FAILURES || record.panicked_at.is_some()
}

fn health(record: &ServiceRecord) -> ServiceHealth {
    let has_ticks = record.due.is_some();
    let is_old = !has_ticks && record.panicked_at.is_some_and(|at| at.elapsed() > PANIC_MEMORY);
    match record {
        ServiceRecord { due: Some(due), .. } if Instant::now() > *due => ServiceHealth::Stalled,
        ServiceRecord { failure: Some(failure), .. } if !is_old => ServiceHealth::Failing(failure.clone()),
        ServiceRecord { is_standby: true, .. } => ServiceHealth::Standby,
        _ => ServiceHealth::Healthy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn service_with_an_overdue_tick_is_stalled() {
        let statuses = ServiceStatuses::default();
        assert_eq!(statuses.health("x"), ServiceHealth::Stalled);
        statuses.record_tick("x", SECOND, 3 * SECOND, None);
        tokio::time::advance(Duration::from_millis(2_900)).await;
        assert_eq!(statuses.health("x"), ServiceHealth::Healthy);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert_eq!(statuses.health("x"), ServiceHealth::Stalled);
        assert_eq!(statuses.troubles(), [("x", "has stalled".to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_lasting_failure_is_a_trouble() {
        let statuses = ServiceStatuses::default();
        for failures in 1..=3 {
            statuses.record_tick("x", SECOND, SECOND, Some("no answer".into()));
            assert_eq!(statuses.health("x"), ServiceHealth::Failing("no answer".into()));
            assert_eq!(statuses.troubles().len(), usize::from(failures == 3));
        }
        statuses.record_tick("x", SECOND, SECOND, None);
        assert!(statuses.troubles().is_empty());
        statuses.record_panic("x", "it panicked");
        statuses.record_tick("x", SECOND, SECOND, None);
        statuses.record_tick("x", SECOND, SECOND, Some("no answer".into()));
        assert!(statuses.troubles().is_empty(), "a panic is over with the next good tick");
    }

    #[tokio::test(start_paused = true)]
    async fn standby_service_that_stops_reporting_is_stalled() {
        let statuses = ServiceStatuses::default();
        statuses.record_standby("x", SECOND);
        assert_eq!(statuses.health("x"), ServiceHealth::Standby);
        tokio::time::advance(Duration::from_millis(3_100)).await;
        assert_eq!(statuses.health("x"), ServiceHealth::Stalled);
    }

    #[tokio::test(start_paused = true)]
    async fn panic_shows_until_the_next_good_tick_or_for_five_minutes() {
        let statuses = ServiceStatuses::default();
        for name in ["with ticks", "without ticks"] {
            statuses.record_start(name);
            assert_eq!(statuses.health(name), ServiceHealth::Healthy);
            statuses.record_panic(name, "it panicked");
            assert_eq!(statuses.health(name), ServiceHealth::Failing("it panicked".into()));
        }
        statuses.record_tick("with ticks", SECOND, SECOND, None);
        assert_eq!(statuses.health("with ticks"), ServiceHealth::Healthy);
        tokio::time::advance(PANIC_MEMORY - SECOND).await;
        assert_eq!(statuses.troubles().len(), 2, "one has stalled, and one has panicked");
        tokio::time::advance(2 * SECOND).await;
        assert_eq!(statuses.health("without ticks"), ServiceHealth::Healthy);
        assert_eq!(statuses.counts("without ticks").panics, 1);
    }
}
