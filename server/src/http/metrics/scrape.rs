//! Reads the gauges of a scrape.
//!
//! What this server has in memory is read each time. What PostgreSQL, Redis and RabbitMQ know is kept for `CACHE_TTL`: servers
//! and Prometheus instances multiply, and their scrapes must not become a load. A part that fails or takes too long is left
//! out and marked, and the rest is shown: metrics are most needed while something is broken.

use std::{fmt, fs, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_api::views::HealthState;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, timeout_at},
};

use crate::{
    broker::{
        Broker,
        queue_probe::{QueueCounts, QueueProbe},
    },
    clock::Clock,
    command::singletons::LoopsRead,
    domain::liveness,
    engine::{
        leadership::Leadership,
        status::{ServiceHealth, ServiceStatuses},
    },
    error::chain,
    http::health::HealthCheck,
    metrics::{
        Metrics,
        gauges::{FloatGauge, Gauges, JobTypeGauge},
        labels::{
            JobTypeLabels, LoopLabel, MAX_LOOPS, PartLabel, PoolLabel, PoolStateLabels, QueueLabel, ServiceLabel,
            StateLabel, StatusLabel, WorkerLabel,
        },
    },
    store::{
        Result as StoreResult, Store,
        gauges::{OfferedJobType, OpenRunCounts, QueuedRuns, ScheduleState},
        jobs::JobCounts,
    },
};

/// The time for which values of PostgreSQL, Redis and RabbitMQ are shown again.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// The longest time for the values of PostgreSQL, for those of Redis, and for those of RabbitMQ. Together with the rest of a scrape it is shorter
/// than the default limit of Prometheus, ten seconds.
const READ_LIMIT: Duration = Duration::from_secs(4);

/// The parts of a scrape that PostgreSQL serves.
const DATABASE_PARTS: [&str; 4] = ["runs", "queued", "schedule", "workers"];
/// The part of a scrape that RabbitMQ serves.
const BROKER_PART: &str = "queues";
/// The part of a scrape that Redis serves, with the help of PostgreSQL.
const LOOPS_PART: &str = "loops";

/// The reader of all metrics of one server. Clones share the last values.
#[derive(Clone)]
pub struct MetricsReader {
    /// The metrics that are counted.
    pub metrics: Metrics,
    /// Access to PostgreSQL, with the connections of requests.
    pub store: Store,
    /// The stores whose pools are shown.
    pub pools: Vec<Store>,
    /// The health of the server.
    pub health: HealthCheck,
    /// The state of each service.
    pub services: ServiceStatuses,
    /// The leadership of this server.
    pub leadership: watch::Receiver<Leadership>,
    /// The clock of this server.
    pub clock: Clock,
    /// The values that are kept.
    pub last: LastRead,
}

impl fmt::Debug for MetricsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsReader").finish_non_exhaustive()
    }
}

/// The time of the last read, and the connection to RabbitMQ. Clones share them.
#[derive(Clone, Debug)]
pub struct LastRead(Arc<Mutex<ReadState>>);

#[derive(Debug)]
struct ReadState {
    at: Option<Instant>,
    probe: QueueProbe,
    /// The job types whose queues are counted.
    job_types: Vec<OfferedJobType>,
}

impl LastRead {
    /// Creates the state of a reader that has read nothing.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        Self(Arc::new(Mutex::new(ReadState { at: None, probe: QueueProbe::new(broker), job_types: Vec::new() })))
    }

    /// Closes the connection to RabbitMQ.
    pub async fn close(&self) {
        self.0.lock().await.probe.close().await;
    }
}

impl MetricsReader {
    /// Formats all metrics as OpenMetrics text. Scrapes at the same time wait for one read.
    ///
    /// # Errors
    ///
    /// Returns an error if a metric cannot be formatted.
    pub async fn text(&self) -> Result<String, fmt::Error> {
        let mut last = self.last.0.lock().await;
        let now = self.clock.now();
        if last.at.is_none_or(|at| at.elapsed() >= CACHE_TTL) {
            self.read_services(&mut last, now).await;
            last.at = Some(Instant::now());
        }
        self.set_own(now).await;
        self.metrics.text()
    }

    /// Records the start of the process.
    pub fn set_start(&self) {
        let start = seconds(self.clock.now() - DateTime::UNIX_EPOCH);
        self.gauges().process_start.set(start);
    }

    fn gauges(&self) -> &Gauges {
        self.metrics.gauges()
    }

    /// Sets what this server has in memory.
    async fn set_own(&self, now: DateTime<Utc>) {
        let gauges = self.gauges();
        gauges.leader.set(i64::from(self.leadership.borrow().held_lease().is_some()));
        for (service, health, age) in self.services.all() {
            let label = ServiceLabel { service };
            let is_healthy = matches!(health, ServiceHealth::Healthy | ServiceHealth::Standby);
            gauges.service_healthy.get_or_create(&label).set(i64::from(is_healthy));
            if let Some(age) = age {
                gauges.service_tick_age.get_or_create(&label).set(age.as_secs_f64());
            }
        }
        for item in self.health.items(now).await {
            let Some(part) = health_part(&item.name) else { continue };
            let state = match item.state {
                HealthState::Ok => 0,
                HealthState::Warn => 1,
                HealthState::Down => 2,
            };
            gauges.health.get_or_create(&PartLabel { part }).set(state);
        }
        for store in &self.pools {
            let state = store.pool_state();
            let pool = state.pool_use.slug();
            let connections =
                |state, count| gauges.pool_connections.get_or_create(&PoolStateLabels { pool, state }).set(count);
            connections("in_use", i64::from(state.in_use));
            connections("idle", i64::from(state.idle));
            gauges.pool_limit.get_or_create(&PoolLabel { pool }).set(i64::from(state.limit));
        }
        let since = |at: Option<DateTime<Utc>>| at.map_or(0.0, |at| seconds(now - at));
        gauges.oldest_snapshot.set(since(self.health.oldest_snapshot.get().map(|found| found.since)));
        gauges.no_messages.set(since(self.health.deaf_since.get(now)));
        set_process(gauges);
    }

    /// Reads PostgreSQL, Redis and RabbitMQ.
    async fn read_services(&self, last: &mut ReadState, now: DateTime<Utc>) {
        let deadline = Instant::now() + READ_LIMIT;
        // The names of the queues come from the last read, so that both services are read at once.
        let ReadState { probe, job_types, .. } = last;
        let (types, (), ()) = tokio::join!(
            self.read_database(now, deadline),
            self.read_loops(deadline),
            self.read_queues(probe, job_types, deadline)
        );
        let is_first = job_types.is_empty() && types.as_ref().is_some_and(|types| !types.is_empty());
        if let Some(types) = types {
            *job_types = types;
        }
        if is_first {
            self.read_queues(probe, job_types, deadline).await;
        }
    }

    /// Reads PostgreSQL, part by part on one connection. Returns the job types.
    async fn read_database(&self, now: DateTime<Utc>, deadline: Instant) -> Option<Vec<OfferedJobType>> {
        let [runs, queued, schedule, workers] = DATABASE_PARTS;
        let counts = self.part(runs, deadline, self.store.open_run_counts()).await;
        let has_many_unready = counts.as_ref().is_some_and(OpenRunCounts::has_many_unready);
        self.set_runs(counts, now);
        let read = async {
            match has_many_unready {
                true => self.store.queued_runs_at_ends().await,
                false => self.store.queued_runs().await,
            }
        };
        let types = self.part(queued, deadline, read).await;
        self.set_queued(types.unwrap_or_default(), now);
        let state = self.part(schedule, deadline, self.read_schedule()).await;
        self.set_schedule(state, now);
        let alive_since = liveness::alive_since(now);
        let read = async {
            let permits = self.store.worker_permits(alive_since).await?;
            StoreResult::Ok((permits, self.store.offered_job_types(alive_since).await?))
        };
        let found = self.part(workers, deadline, read).await;
        let gauges = self.gauges();
        gauges.instances.clear();
        gauges.permits.clear();
        gauges.permits_used.clear();
        gauges.job_type_instances.clear();
        let (permits, types) = found?;
        for worker in permits {
            let label = WorkerLabel { worker: worker.worker_id };
            gauges.instances.get_or_create(&label).set(worker.instances);
            gauges.permits.get_or_create(&label).set(worker.permits);
            gauges.permits_used.get_or_create(&label).set(worker.used);
        }
        for offered in &types {
            let label = self.metrics.job_type_labels(&offered.worker_id, &offered.job_type);
            gauges.job_type_instances.get_or_create(&label).inc_by(offered.instances);
        }
        Some(types)
    }

    /// Reads the singleton loops, the first ones by name.
    async fn read_loops(&self, deadline: Instant) {
        let read = async {
            LoopsRead::read::<anyhow::Error>(&self.store, &self.health.cache)
                .await
                .map_err(|error| std::io::Error::other(format!("{error:#}")))
        };
        let found = self.part(LOOPS_PART, deadline, read).await;
        let gauges = self.gauges();
        gauges.loop_leader.clear();
        gauges.loop_enabled.clear();
        gauges.loop_instances.clear();
        gauges.loop_epoch.clear();
        gauges.loop_lease.clear();
        for row in found.map(|read| read.views()).unwrap_or_default().into_iter().take(MAX_LOOPS) {
            let label = LoopLabel { r#loop: row.name };
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            gauges.loop_leader.get_or_create(&label).set(i64::from(row.leader.is_some()));
            gauges.loop_enabled.get_or_create(&label).set(i64::from(row.is_enabled));
            gauges.loop_instances.get_or_create(&label).set(number(row.instance_count));
            gauges.loop_epoch.get_or_create(&label).set(number(row.epoch));
            let remaining = row.leader.map_or(0, |leader| leader.lease_remaining_ms);
            gauges.loop_lease.get_or_create(&label).set(Duration::from_millis(remaining).as_secs_f64());
        }
    }

    async fn read_schedule(&self) -> StoreResult<(ScheduleState, JobCounts)> {
        Ok((self.store.schedule_state().await?, self.store.job_counts().await?))
    }

    /// Awaits a part, and marks it if it fails.
    async fn part<T, E: std::error::Error + 'static>(
        &self,
        part: &'static str,
        deadline: Instant,
        read: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        let found = match timeout_at(deadline, read).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err(format!("it took longer than {} s", READ_LIMIT.as_secs())),
        };
        self.gauges().scrape_error.get_or_create(&PartLabel { part }).set(i64::from(found.is_err()));
        found
            .inspect_err(|error| {
                tracing::warn!(
                    metrics.part = part,
                    error,
                    "the part {part} of the metrics could not be read and is missing"
                );
            })
            .ok()
    }

    fn set_runs(&self, counts: Option<OpenRunCounts>, now: DateTime<Utc>) {
        let gauges = self.gauges();
        gauges.open.clear();
        let number = |field: fn(&OpenRunCounts) -> i64| counts.as_ref().map(|all| count(field(all)));
        gauges.waiting.set(number(|all| all.waiting));
        gauges.delayed.set(number(|all| all.delayed));
        gauges.unsent.set(number(|all| all.unsent));
        let oldest = counts.as_ref().map(|all| all.unsent_since.map_or(0.0, |since| seconds(now - since)));
        gauges.unsent_oldest.set(oldest);
        let Some(counts) = counts else { return };
        for (status, value) in [("queued", counts.queued), ("running", counts.running), ("unknown", counts.unknown)] {
            gauges.open.get_or_create(&StatusLabel { status }).set(value);
        }
    }

    fn set_queued(&self, types: Vec<QueuedRuns>, now: DateTime<Utc>) {
        let gauges = self.gauges();
        gauges.queued.clear();
        gauges.queued_oldest.clear();
        for queued in types {
            let label: JobTypeLabels = self.metrics.job_type_labels(&queued.worker_id, &queued.job_type);
            gauges.queued.get_or_create(&label).inc_by(queued.count);
            raise(&gauges.queued_oldest.get_or_create(&label), seconds(now - queued.oldest_due));
        }
    }

    fn set_schedule(&self, state: Option<(ScheduleState, JobCounts)>, now: DateTime<Utc>) {
        let gauges = self.gauges();
        let schedule = state.as_ref().map(|(schedule, _)| schedule);
        gauges.cluster_paused.set(schedule.map(|schedule| f64::from(u8::from(schedule.is_paused))));
        let overdue = schedule.map(|schedule| schedule.earliest_due.map_or(0.0, |due| seconds(now - due)));
        gauges.dispatch_overdue.set(overdue);
        gauges.failures_open.set(schedule.map(|schedule| count(schedule.open_failures)));
        gauges.jobs.clear();
        let Some((_, jobs)) = state else { return };
        for (state, value) in [("active", jobs.active), ("paused", jobs.total - jobs.active)] {
            gauges.jobs.get_or_create(&StateLabel { state }).set(value);
        }
    }

    /// Counts the messages of the queues.
    async fn read_queues(&self, probe: &mut QueueProbe, job_types: &[OfferedJobType], deadline: Instant) {
        let names = self.health.broker.topology();
        let own = [
            ("status", names.status()),
            ("logs", names.logs()),
            ("registration", names.registration()),
            ("claims", names.claims()),
            ("ingest", names.ingest()),
            ("dead_letters", names.dead_letter_queue()),
        ];
        let of_types = job_types.iter().map(|offered| names.job_queue(&offered.worker_id, &offered.job_type));
        let critical: Vec<&OfferedJobType> = job_types.iter().filter(|offered| offered.has_critical_queue).collect();
        let of_critical = critical.iter().map(|offered| names.critical_queue(&offered.worker_id, &offered.job_type));
        let queues: Vec<String> =
            own.iter().map(|(_, queue)| queue.clone()).chain(of_types).chain(of_critical).collect();
        let found = self.part(BROKER_PART, deadline, probe.counts(&queues)).await;
        let gauges = self.gauges();
        gauges.server_queue_messages.clear();
        gauges.server_queue_consumers.clear();
        gauges.job_queue_messages.clear();
        gauges.job_queue_consumers.clear();
        gauges.critical_queue_messages.clear();
        gauges.critical_queue_consumers.clear();
        let Some(found) = found else { return };
        let (of_server, of_types) = found.split_at(own.len().min(found.len()));
        for ((queue, _), counts) in own.iter().zip(of_server) {
            let Some(counts) = counts else { continue };
            let label = QueueLabel { queue };
            gauges.server_queue_messages.get_or_create(&label).set(counts.messages.into());
            gauges.server_queue_consumers.get_or_create(&label).set(counts.consumers.into());
        }
        let (of_types, of_critical) = of_types.split_at(job_types.len().min(of_types.len()));
        let (messages, consumers) = (&gauges.job_queue_messages, &gauges.job_queue_consumers);
        self.set_queues(job_types.iter().zip(of_types), messages, consumers);
        let (messages, consumers) = (&gauges.critical_queue_messages, &gauges.critical_queue_consumers);
        self.set_queues(critical.into_iter().zip(of_critical), messages, consumers);
    }

    fn set_queues<'a>(
        &self,
        found: impl Iterator<Item = (&'a OfferedJobType, &'a Option<QueueCounts>)>,
        messages: &JobTypeGauge,
        consumers: &JobTypeGauge,
    ) {
        for (offered, counts) in found {
            let Some(counts) = counts else { continue };
            let label = self.metrics.job_type_labels(&offered.worker_id, &offered.job_type);
            messages.get_or_create(&label).inc_by(counts.messages.into());
            consumers.get_or_create(&label).inc_by(counts.consumers.into());
        }
    }
}

/// Sets a gauge to the larger of its value and another.
fn raise(gauge: &FloatGauge, value: f64) {
    gauge.set(gauge.get().max(value));
}

/// Returns a difference of times in seconds, at least 0.
fn seconds(difference: chrono::Duration) -> f64 {
    difference.to_std().unwrap_or_default().as_secs_f64()
}

/// Returns a bounded count as the value of a gauge.
fn count(value: i64) -> f64 {
    f64::from(i32::try_from(value).unwrap_or(i32::MAX))
}

/// Returns the label of a part of the health.
fn health_part(name: &str) -> Option<&'static str> {
    use milvaion_api::views::{DATABASE_PART, DISPATCHER_PART, TASKS_PART};
    match name {
        DATABASE_PART => Some("postgresql"),
        "Redis" => Some("redis"),
        "RabbitMQ" => Some("rabbitmq"),
        DISPATCHER_PART => Some("dispatcher"),
        TASKS_PART => Some("tasks"),
        _ => None,
    }
}

/// Sets the gauges of the process, as far as the system shows them.
fn set_process(gauges: &Gauges) {
    if let Some(kilobytes) = fs::read_to_string("/proc/self/status").ok().and_then(|status| resident_kilobytes(&status))
    {
        gauges.process_memory.set(kilobytes.saturating_mul(1_024));
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        gauges.process_files.set(i64::try_from(files.count()).unwrap_or(i64::MAX));
    }
}

fn resident_kilobytes(status: &str) -> Option<i64> {
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().trim_end_matches(" kB").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status_of_the_process() {
        assert_eq!(resident_kilobytes("Name:\tx\nVmRSS:\t   12345 kB\nThreads:\t1\n"), Some(12_345));
        assert_eq!(resident_kilobytes("Name:\tx\n"), None);
    }
}
