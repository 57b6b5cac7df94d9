//! The metrics of singleton loops. The labels are the names of the loops of this process, which its code declares.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use milvaion_protocol::singleton::LoopOutcome;
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

/// The metrics of all loops of one worker.
pub(super) struct LoopFamilies {
    leader: Family<LoopLabel, Gauge>,
    transitions: Family<LoopLabel, Counter>,
    ticks: Family<LoopLabel, Counter>,
    runs: Family<RunLabels, Counter>,
    dropped: Family<DropLabels, Counter>,
    failures: Family<LoopLabel, Counter>,
    seconds: Family<LoopLabel, Histogram>,
    lateness: Family<LoopLabel, Histogram>,
    is_connected: Arc<AtomicBool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoopLabel {
    singleton: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    singleton: Arc<str>,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    singleton: Arc<str>,
    reason: &'static str,
}

impl Default for LoopFamilies {
    fn default() -> Self {
        Self {
            leader: Family::default(),
            transitions: Family::default(),
            ticks: Family::default(),
            runs: Family::default(),
            dropped: Family::default(),
            failures: Family::default(),
            // 1 ms to 65 s.
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 9))),
            // 0.25 ms to 4 s.
            lateness: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_25, 2.0, 15))),
            is_connected: Arc::default(),
        }
    }
}

impl LoopFamilies {
    /// Returns the metrics of one loop.
    pub(super) fn of(&self, name: &Arc<str>) -> LoopMetrics {
        let label = LoopLabel { singleton: name.clone() };
        LoopMetrics {
            name: name.clone(),
            leader: self.leader.get_or_create_owned(&label),
            transitions: self.transitions.get_or_create_owned(&label),
            ticks: self.ticks.get_or_create_owned(&label),
            failures: self.failures.get_or_create_owned(&label),
            seconds: self.seconds.get_or_create_owned(&label),
            lateness: self.lateness.get_or_create_owned(&label),
            runs: self.runs.clone(),
            dropped: self.dropped.clone(),
            is_connected: self.is_connected.clone(),
        }
    }

    /// Records that the worker has no loop that could be without an answer.
    pub(super) fn are_disabled(&self) {
        self.is_connected.store(true, Ordering::Relaxed);
    }

    /// Returns true if Redis answered the last heartbeat of a loop, or if there is no loop.
    pub(super) fn are_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Adds the metrics to a registry.
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("singleton");
        registry.register("leader", "1 if this instance leads the loop", self.leader.clone());
        registry.register(
            "transitions",
            "Times this instance began or ended to lead the loop",
            self.transitions.clone(),
        );
        registry.register(
            "ticks",
            "Due ticks of the loop, those that ran and those that were dropped",
            self.ticks.clone(),
        );
        registry.register("runs", "Ended runs of the loop by outcome", self.runs.clone());
        registry.register(
            "dropped",
            "Ticks dropped, because a run was in progress or the process was late",
            self.dropped.clone(),
        );
        registry.register(
            "heartbeat_failures",
            "Heartbeats of the loop without an answer of Redis",
            self.failures.clone(),
        );
        registry.register_with_unit(
            "run_duration",
            "Duration of runs of the loop",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register_with_unit(
            "lateness",
            "Time from due to start of runs of the loop",
            Unit::Seconds,
            self.lateness.clone(),
        );
    }
}

/// The metrics of one loop. Clones share the same counters.
#[derive(Clone)]
pub(crate) struct LoopMetrics {
    name: Arc<str>,
    leader: Gauge,
    transitions: Counter,
    ticks: Counter,
    failures: Counter,
    seconds: Histogram,
    lateness: Histogram,
    runs: Family<RunLabels, Counter>,
    dropped: Family<DropLabels, Counter>,
    is_connected: Arc<AtomicBool>,
}

impl LoopMetrics {
    /// Records whether this instance leads the loop.
    pub(crate) fn leads(&self, leads: bool) {
        if self.leader.set(leads.into()) != i64::from(leads) {
            self.transitions.inc();
        }
    }

    /// Records an answer of Redis.
    pub(crate) fn answered(&self) {
        self.is_connected.store(true, Ordering::Relaxed);
    }

    /// Counts a heartbeat without an answer.
    pub(crate) fn failed(&self) {
        self.failures.inc();
        self.is_connected.store(false, Ordering::Relaxed);
    }

    /// Counts the start of a run.
    pub(crate) fn started(&self) {
        self.ticks.inc();
    }

    /// Counts dropped ticks.
    pub(crate) fn dropped(&self, overlapped: u64, late: u64) {
        self.ticks.inc_by(overlapped + late);
        for (reason, count) in [("overlap", overlapped), ("late", late)] {
            if count > 0 {
                let labels = DropLabels { singleton: self.name.clone(), reason };
                self.dropped.get_or_create(&labels).inc_by(count);
            }
        }
    }

    /// Counts the end of a run.
    pub(crate) fn ended(&self, outcome: LoopOutcome, took: Duration, late: Duration) {
        let outcome = match outcome {
            LoopOutcome::Ok => "ok",
            LoopOutcome::Error => "error",
            LoopOutcome::Cancelled => "cancelled",
        };
        self.runs.get_or_create(&RunLabels { singleton: self.name.clone(), outcome }).inc();
        self.seconds.observe(took.as_secs_f64());
        self.lateness.observe(late.as_secs_f64());
    }
}
