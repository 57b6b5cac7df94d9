//! Metrics and health of a worker.
//!
//! Operators of many processes need three answers. *Is it alive?* is answered by the thread that sends the heartbeats,
//! so an orchestrator does not kill a worker, and with it all its runs, because one job blocks the runtime. *Is it
//! ready?* is answered with no as long as the worker does not consume, cannot send reports or cannot write its outbox;
//! a restart would not help in these cases. *How much does it do?* is answered by the Prometheus metrics below.
//!
//! The endpoint is off unless an address is configured; see [`WorkerConfig::health`](crate::WorkerConfig::health). A program
//! that serves metrics of its own adds those of the worker to its registry, with
//! [`WorkerBuilder::register_metrics`](crate::WorkerBuilder::register_metrics).

mod http;
pub(crate) mod loops;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use milvaion_protocol::status::OccurrenceStatus;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use crate::clock;

pub(crate) use http::{BrokerState, HealthServer, open};

/// The metrics of one worker. Clones share the same counters.
#[derive(Clone, Default)]
pub(crate) struct WorkerMetrics(Arc<MetricSet>);

struct MetricSet {
    running: Family<JobTypeLabel, Gauge>,
    ended: Family<OutcomeLabels, Counter>,
    seconds: Family<JobTypeLabel, Histogram>,
    duplicates: Counter,
    returned: Counter,
    connections: Counter,
    reports: Gauge,
    lines: Gauge,
    is_consuming: AtomicBool,
    last_delivery: Gauge,
    loops: loops::LoopFamilies,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobTypeLabel {
    job_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    job_type: &'static str,
    outcome: &'static str,
}

impl Default for MetricSet {
    fn default() -> Self {
        Self {
            running: Family::default(),
            ended: Family::default(),
            // 5 ms to about 80 minutes.
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 4.0, 11))),
            duplicates: Counter::default(),
            returned: Counter::default(),
            connections: Counter::default(),
            reports: Gauge::default(),
            lines: Gauge::default(),
            is_consuming: AtomicBool::new(false),
            last_delivery: Gauge::default(),
            loops: loops::LoopFamilies::default(),
        }
    }
}

impl WorkerMetrics {
    /// Counts the start of a run.
    pub(crate) fn began(&self, job_type: &'static str) {
        self.0.running.get_or_create(&JobTypeLabel { job_type }).inc();
    }

    /// Counts the end of a run and its duration.
    pub(crate) fn ended(&self, job_type: &'static str, status: OccurrenceStatus, took: Duration) {
        let label = JobTypeLabel { job_type };
        self.0.running.get_or_create(&label).dec();
        self.0.seconds.get_or_create(&label).observe(took.as_secs_f64());
        // Queued means that the attempt was handed back: snoozed, or interrupted.
        let outcome = if status == OccurrenceStatus::Queued { "handed-back" } else { status.slug() };
        self.0.ended.get_or_create(&OutcomeLabels { job_type, outcome }).inc();
    }

    /// Counts a duplicate delivery that was dropped.
    pub(crate) fn duplicate_dropped(&self) {
        self.0.duplicates.inc();
    }

    /// Counts a delivery that was returned to its queue.
    pub(crate) fn returned(&self) {
        self.0.returned.inc();
    }

    /// Records that consuming has begun or ended.
    pub(crate) fn consuming(&self, is_consuming: bool) {
        if is_consuming {
            self.0.connections.inc();
        }
        self.0.is_consuming.store(is_consuming, Ordering::Relaxed);
    }

    /// Records the time of a delivery.
    pub(crate) fn delivered(&self) {
        self.0.last_delivery.set(clock::now().timestamp());
    }

    /// Records the number of reports and log lines that wait for the broker.
    pub(crate) fn waiting(&self, reports: usize, lines: usize) {
        self.0.reports.set(i64::try_from(reports).unwrap_or(i64::MAX));
        self.0.lines.set(i64::try_from(lines).unwrap_or(i64::MAX));
    }

    fn is_consuming(&self) -> bool {
        self.0.is_consuming.load(Ordering::Relaxed)
    }

    /// Returns the metrics of a singleton loop.
    pub(crate) fn singleton(&self, name: &Arc<str>) -> loops::LoopMetrics {
        self.0.loops.of(name)
    }

    /// Records that all singleton loops of this worker are disabled by its configuration.
    pub(crate) fn loops_are_disabled(&self) {
        self.0.loops.are_disabled();
    }

    /// Returns true if Redis answered the last heartbeat of a singleton loop.
    fn are_loops_connected(&self) -> bool {
        self.0.loops.are_connected()
    }

    /// Adds all metrics to a registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let counts = &*self.0;
        let registry = registry.sub_registry_with_prefix("milvaion_worker");
        registry.register("running", "Runs in progress", counts.running.clone());
        registry.register("runs", "Ended runs by outcome", counts.ended.clone());
        registry.register_with_unit("run_duration", "Duration of ended runs", Unit::Seconds, counts.seconds.clone());
        registry.register("duplicates_dropped", "Duplicate deliveries dropped", counts.duplicates.clone());
        let returned = "Deliveries returned to their queue, because no permit was free or a possible duplicate could not be checked";
        registry.register("deliveries_returned", returned, counts.returned.clone());
        registry.register("connections", "Connections on which consuming has begun", counts.connections.clone());
        registry.register("reports_waiting", "Reports that the broker has not confirmed", counts.reports.clone());
        registry.register("lines_waiting", "Log lines that have not been sent", counts.lines.clone());
        registry.register(
            "last_delivery_timestamp",
            "Unix time of the last delivery in seconds; 0 if there was none",
            counts.last_delivery.clone(),
        );
        counts.loops.register(registry);
    }

    /// Formats all metrics as Prometheus text.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::default();
        self.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_by_type_and_outcome() {
        let metrics = WorkerMetrics::default();
        metrics.began("mail");
        metrics.began("mail");
        metrics.ended("mail", OccurrenceStatus::Queued, Duration::from_millis(20));
        metrics.duplicate_dropped();
        let text = metrics.text().expect("written");
        for line in [
            r#"milvaion_worker_running{job_type="mail"} 1"#,
            r#"milvaion_worker_runs_total{job_type="mail",outcome="handed-back"} 1"#,
            r#"milvaion_worker_run_duration_seconds_count{job_type="mail"} 1"#,
            "milvaion_worker_duplicates_dropped_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
