//! What a worker shows of itself: whether it lives, whether it takes work, and its counts.
//!
//! Whoever looks after many processes asks three questions. *Is it alive?* is answered by the thread that keeps the
//! heartbeats, so a job that blocks the runtime does not get its worker killed, and with it everything else it runs.
//! *Does it take work?* is no as long as it consumes nothing, cannot report or cannot remember: then it is not ready, but
//! restarting it would help nobody. *How much does it do?* is for Prometheus, in the counts below.
//!
//! Nothing of this is on unless an address is given; see [`WorkerConfig::health`](crate::WorkerConfig::health).

mod http;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
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

pub(crate) use http::{HealthServer, open};

/// The counts. Cloning gives the same ones.
#[derive(Clone, Default)]
pub(crate) struct WorkerMetrics(Arc<MetricSet>);

struct MetricSet {
    running: Family<JobTypeLabel, Gauge>,
    ended: Family<OutcomeLabels, Counter>,
    seconds: Family<JobTypeLabel, Histogram>,
    copies: Counter,
    sent_back: Counter,
    connections: Counter,
    reports: Gauge,
    lines: Gauge,
    is_consuming: AtomicBool,
    last_delivery: AtomicI64,
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
            // 5 ms to some 80 minutes.
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 4.0, 11))),
            copies: Counter::default(),
            sent_back: Counter::default(),
            connections: Counter::default(),
            reports: Gauge::default(),
            lines: Gauge::default(),
            is_consuming: AtomicBool::new(false),
            last_delivery: AtomicI64::new(0),
        }
    }
}

impl WorkerMetrics {
    /// A run has begun.
    pub(crate) fn began(&self, job_type: &'static str) {
        self.0.running.get_or_create(&JobTypeLabel { job_type }).inc();
    }

    /// A run has ended.
    pub(crate) fn ended(&self, job_type: &'static str, status: OccurrenceStatus, took: Duration) {
        let of = JobTypeLabel { job_type };
        self.0.running.get_or_create(&of).dec();
        self.0.seconds.get_or_create(&of).observe(took.as_secs_f64());
        // Queued says that the attempt was handed back: snoozed, or interrupted.
        let outcome = if status == OccurrenceStatus::Queued { "handed-back" } else { status.slug() };
        self.0.ended.get_or_create(&OutcomeLabels { job_type, outcome }).inc();
    }

    /// A copy of a message was dropped.
    pub(crate) fn duplicate_dropped(&self) {
        self.0.copies.inc();
    }

    /// A delivery went back to its queue.
    pub(crate) fn sent_back(&self) {
        self.0.sent_back.inc();
    }

    /// Consuming has begun, or has ended.
    pub(crate) fn consuming(&self, is_consuming: bool) {
        if is_consuming {
            self.0.connections.inc();
        }
        self.0.is_consuming.store(is_consuming, Ordering::Relaxed);
    }

    /// Something was delivered.
    pub(crate) fn delivered(&self) {
        self.0.last_delivery.store(clock::now().timestamp(), Ordering::Relaxed);
    }

    /// How much waits for the broker.
    pub(crate) fn waiting(&self, reports: usize, lines: usize) {
        self.0.reports.set(i64::try_from(reports).unwrap_or(i64::MAX));
        self.0.lines.set(i64::try_from(lines).unwrap_or(i64::MAX));
    }

    fn is_consuming(&self) -> bool {
        self.0.is_consuming.load(Ordering::Relaxed)
    }

    /// In Prometheus's text format.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let counts = &*self.0;
        let mut registry = Registry::with_prefix("milvaion_worker");
        registry.register("running", "Runs right now", counts.running.clone());
        registry.register("runs", "Runs that have ended, by how", counts.ended.clone());
        registry.register_with_unit("run_duration", "How long runs took", Unit::Seconds, counts.seconds.clone());
        registry.register("copies_dropped", "Second copies of messages that were dropped", counts.copies.clone());
        let back = "Deliveries sent back to their queue, for want of a place or of somebody to ask";
        registry.register("deliveries_sent_back", back, counts.sent_back.clone());
        registry.register("connections", "How often consuming has begun", counts.connections.clone());
        registry.register("reports_waiting", "Reports the broker has not confirmed", counts.reports.clone());
        registry.register("lines_waiting", "Log lines that wait to be sent", counts.lines.clone());
        let last: Gauge = Gauge::default();
        last.set(counts.last_delivery.load(Ordering::Relaxed));
        registry.register("last_delivery_timestamp", "When something last came, as Unix time; 0 for never", last);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_by_type_and_by_how_they_ended() {
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
            "milvaion_worker_copies_dropped_total 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
        }
    }
}
