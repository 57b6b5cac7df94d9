//! The gauges that are read when Prometheus asks.
//!
//! They are families without a history: the reader clears each one and sets what it finds, so that a queue or a worker that
//! is gone leaves no stale value. A part that cannot be read is left out and marked in `milvaion_scrape_error`.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use super::labels::{
    JobTypeLabels, LoopLabel, PartLabel, PoolLabel, PoolStateLabels, QueueLabel, ServiceLabel, StateLabel, StatusLabel,
    WorkerLabel,
};

/// A gauge of seconds or of other fractions.
pub type FloatGauge = Gauge<f64, AtomicU64>;

/// A gauge of each job type.
pub type JobTypeGauge = Family<JobTypeLabels, Gauge>;

/// A gauge without labels that is left out while its value is not known.
#[derive(Clone, Debug, Default)]
pub struct OptionalGauge(Arc<Mutex<Option<f64>>>);

impl OptionalGauge {
    /// Sets the value; none leaves the gauge out.
    pub fn set(&self, value: Option<f64>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }

    fn get(&self) -> Option<f64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EncodeMetric for OptionalGauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        self.get().map_or(Ok(()), |value| encoder.encode_gauge(&value))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.get().is_none()
    }
}

/// The gauges of one server.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// 1 if the part could not be read in this scrape.
    pub scrape_error: Family<PartLabel, Gauge>,

    /// 1 on the leader.
    pub leader: Gauge,
    /// 1 while a service is healthy or on standby.
    pub service_healthy: Family<ServiceLabel, Gauge>,
    /// Time since the last tick of a service.
    pub service_tick_age: Family<ServiceLabel, FloatGauge>,
    /// State of a part of the health: 0 good, 1 restricted, 2 down.
    pub health: Family<PartLabel, Gauge>,
    /// Connections to PostgreSQL.
    pub pool_connections: Family<PoolStateLabels, Gauge>,
    /// Limit of connections to PostgreSQL.
    pub pool_limit: Family<PoolLabel, Gauge>,
    /// Age of the oldest snapshot that is reported.
    pub oldest_snapshot: FloatGauge,
    /// Time for which no message of workers has arrived.
    pub no_messages: FloatGauge,

    /// 1 while the cluster is paused.
    pub cluster_paused: OptionalGauge,
    /// Time since the earliest due time that is not dispatched.
    pub dispatch_overdue: OptionalGauge,
    /// Jobs by state.
    pub jobs: Family<StateLabel, Gauge>,
    /// Open occurrences by status.
    pub open: Family<StatusLabel, Gauge>,
    /// Occurrences that wait for a slot.
    pub waiting: OptionalGauge,
    /// Occurrences that are delayed.
    pub delayed: OptionalGauge,
    /// Occurrences whose message the broker has not confirmed.
    pub unsent: OptionalGauge,
    /// Age of the oldest of them.
    pub unsent_oldest: OptionalGauge,
    /// Queued occurrences that were sent, by job type.
    pub queued: Family<JobTypeLabels, Gauge>,
    /// Age of the oldest of them, by job type.
    pub queued_oldest: Family<JobTypeLabels, FloatGauge>,
    /// Failures that no user has resolved.
    pub failures_open: OptionalGauge,

    /// Live instances by worker.
    pub instances: Family<WorkerLabel, Gauge>,
    /// Permits of the live instances, by worker.
    pub permits: Family<WorkerLabel, Gauge>,
    /// Permits in use, by worker.
    pub permits_used: Family<WorkerLabel, Gauge>,
    /// Live instances by job type.
    pub job_type_instances: Family<JobTypeLabels, Gauge>,

    /// 1 while a singleton loop has a leader.
    pub loop_leader: Family<LoopLabel, Gauge>,
    /// 1 while a singleton loop is enabled.
    pub loop_enabled: Family<LoopLabel, Gauge>,
    /// Instances that offer a singleton loop.
    pub loop_instances: Family<LoopLabel, Gauge>,
    /// Highest epoch of a singleton loop.
    pub loop_epoch: Family<LoopLabel, Gauge>,
    /// Remaining lease of a singleton loop.
    pub loop_lease: Family<LoopLabel, FloatGauge>,

    /// Messages in the queue of a job type.
    pub job_queue_messages: Family<JobTypeLabels, Gauge>,
    /// Consumers of the queue of a job type.
    pub job_queue_consumers: Family<JobTypeLabels, Gauge>,
    /// Messages in the queue of the critical runs of a job type.
    pub critical_queue_messages: JobTypeGauge,
    /// Consumers of the queue of the critical runs of a job type.
    pub critical_queue_consumers: JobTypeGauge,
    /// Messages in a queue of the server.
    pub server_queue_messages: Family<QueueLabel, Gauge>,
    /// Consumers of a queue of the server.
    pub server_queue_consumers: Family<QueueLabel, Gauge>,

    /// Start of the process.
    pub process_start: FloatGauge,
    /// Resident memory of the process.
    pub process_memory: Gauge,
    /// Open files of the process.
    pub process_files: Gauge,
}

impl Gauges {
    /// Registers the gauges; those of the process in a registry of their own, because of their conventional names.
    pub(super) fn register(&self, registry: &mut Registry, process: &mut Registry) {
        let error = "1 if a part of this scrape could not be read, and its metrics are missing";
        registry.register("scrape_error", error, self.scrape_error.clone());
        self.register_server(registry);
        self.register_runs(registry);
        self.register_workers(registry);
        self.register_loops(registry);
        self.register_queues(registry);
        let start = "Unix time of the start of the process";
        process.register_with_unit("start_time", start, Unit::Seconds, self.process_start.clone());
        process.register_with_unit("resident_memory", "Resident memory", Unit::Bytes, self.process_memory.clone());
        process.register("open_fds", "Open files", self.process_files.clone());
    }

    fn register_server(&self, registry: &mut Registry) {
        registry.register("leader", "1 on the server that leads, 0 on the others", self.leader.clone());
        let healthy = "1 while a background task works or is on standby, 0 while it fails or has stalled";
        registry.register("service_healthy", healthy, self.service_healthy.clone());
        registry.register_with_unit(
            "service_tick_age",
            "Time since the last tick of a background task, or since it reported to be on standby",
            Unit::Seconds,
            self.service_tick_age.clone(),
        );
        let health = "State of a part of this server's health: 0 good, 1 restricted, 2 down";
        registry.register("health_state", health, self.health.clone());
        let connections = "Open connections to PostgreSQL by pool and state";
        registry.register("pool_connections", connections, self.pool_connections.clone());
        registry.register("pool_connections_limit", "Most connections of a pool", self.pool_limit.clone());
        registry.register_with_unit(
            "oldest_snapshot_age",
            "Age of the oldest snapshot that a session of PostgreSQL holds, if it is older than 90 s; 0 otherwise",
            Unit::Seconds,
            self.oldest_snapshot.clone(),
        );
        registry.register_with_unit(
            "no_messages",
            "Time for which no message of workers reaches this server, if it is longer than 15 s; 0 otherwise",
            Unit::Seconds,
            self.no_messages.clone(),
        );
    }

    fn register_runs(&self, registry: &mut Registry) {
        let paused = "1 while the cluster is paused (whole installation)";
        registry.register("cluster_paused", paused, self.cluster_paused.clone());
        registry.register_with_unit(
            "dispatch_overdue",
            "Time since the earliest due time that is not dispatched; 0 if none has passed (whole installation)",
            Unit::Seconds,
            self.dispatch_overdue.clone(),
        );
        registry.register("jobs", "Jobs that are active or paused (whole installation)", self.jobs.clone());
        let open = "Open occurrences by status, counted up to 100,000 (whole installation)";
        registry.register("runs_open", open, self.open.clone());
        let waiting = "Queued occurrences that wait for a slot, counted up to 100,000 (whole installation)";
        registry.register("runs_waiting", waiting, self.waiting.clone());
        let delayed = "Queued occurrences that are delayed, counted up to 100,000 (whole installation)";
        registry.register("runs_delayed", delayed, self.delayed.clone());
        let unsent =
            "Queued occurrences whose message RabbitMQ has not confirmed, counted up to 100,000 (whole installation)";
        registry.register("runs_unsent", unsent, self.unsent.clone());
        registry.register_with_unit(
            "runs_unsent_oldest",
            "Time since the oldest unsent message became ready; 0 if there is none (whole installation)",
            Unit::Seconds,
            self.unsent_oldest.clone(),
        );
        let queued = "Queued occurrences that no worker has started, by job type, among the 20,000 oldest that wait for neither a slot nor a delay (whole installation)";
        registry.register("runs_queued", queued, self.queued.clone());
        registry.register_with_unit(
            "runs_queued_oldest",
            "Time since the earliest due time among these occurrences, by job type (whole installation)",
            Unit::Seconds,
            self.queued_oldest.clone(),
        );
        let failures = "Failures that no user has resolved, counted up to 10,000 (whole installation)";
        registry.register("failures_open", failures, self.failures_open.clone());
    }

    fn register_workers(&self, registry: &mut Registry) {
        registry.register("instances", "Live instances of workers (whole installation)", self.instances.clone());
        let permits = "Runs that the live instances of a worker may run at once (whole installation)";
        registry.register("permits", permits, self.permits.clone());
        let used = "Runs of the live instances of a worker at their last heartbeat (whole installation)";
        registry.register("permits_used", used, self.permits_used.clone());
        let types = "Live instances that offer a job type; 0 for one that was announced before (whole installation)";
        registry.register("job_type_instances", types, self.job_type_instances.clone());
    }

    fn register_loops(&self, registry: &mut Registry) {
        let leader = "1 while an instance leads a singleton loop, 0 while none does (whole installation)";
        registry.register("singleton_loop_leader", leader, self.loop_leader.clone());
        let enabled = "1 while a singleton loop is enabled, 0 while it is disabled (whole installation)";
        registry.register("singleton_loop_enabled", enabled, self.loop_enabled.clone());
        let instances = "Instances that offered a singleton loop within the last minute (whole installation)";
        registry.register("singleton_loop_instances", instances, self.loop_instances.clone());
        let epoch = "Highest epoch of a singleton loop; it grows with each new leader (whole installation)";
        registry.register("singleton_loop_epoch", epoch, self.loop_epoch.clone());
        registry.register_with_unit(
            "singleton_loop_lease_remaining",
            "Time until the lease of a singleton loop ends without a renewal; 0 without a leader (whole installation)",
            Unit::Seconds,
            self.loop_lease.clone(),
        );
    }

    fn register_queues(&self, registry: &mut Registry) {
        let messages = "Messages that wait in the queue of a job type at RabbitMQ (whole installation)";
        registry.register("job_queue_messages", messages, self.job_queue_messages.clone());
        let consumers = "Consumers of the queue of a job type at RabbitMQ (whole installation)";
        registry.register("job_queue_consumers", consumers, self.job_queue_consumers.clone());
        let messages = "Messages that wait in a queue of critical runs at RabbitMQ, by job type (whole installation)";
        registry.register("critical_queue_messages", messages, self.critical_queue_messages.clone());
        let consumers = "Consumers of a queue of critical runs at RabbitMQ, by job type (whole installation)";
        registry.register("critical_queue_consumers", consumers, self.critical_queue_consumers.clone());
        let messages = "Messages that wait in a queue of the servers at RabbitMQ (whole installation)";
        registry.register("server_queue_messages", messages, self.server_queue_messages.clone());
        let consumers = "Consumers of a queue of the servers at RabbitMQ (whole installation)";
        registry.register("server_queue_consumers", consumers, self.server_queue_consumers.clone());
    }
}
