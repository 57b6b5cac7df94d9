//! The labels of metrics, and the bounds of their values.

use std::{
    collections::HashSet,
    hash::Hash,
    sync::{PoisonError, RwLock},
};

use prometheus_client::encoding::EncodeLabelSet;

/// The most pairs of worker and job type that have series of their own.
pub const MAX_JOB_TYPES: usize = 200;
/// The most jobs that have series of their own, with `METRICS_JOB_LABELS`.
pub const MAX_JOBS: usize = 500;
/// The most workers that have series of their own.
pub const MAX_WORKERS: usize = 200;
/// The most singleton loops that have series of their own.
pub const MAX_LOOPS: usize = 200;
/// The most statements that have series of their own. The program has fewer.
pub const MAX_STATEMENTS: usize = 300;
/// The most routes that have series of their own. The program has fewer.
pub const MAX_ROUTES: usize = 400;
/// The value for everything beyond a bound.
const OTHER: &str = "other";

/// Returns the value for everything beyond a bound.
#[must_use]
pub fn other() -> String {
    OTHER.to_owned()
}

/// The values of a label that have series of their own: the first ones, up to a limit.
#[derive(Debug)]
pub struct LabelBound<T> {
    known: RwLock<HashSet<T>>,
    limit: usize,
}

impl<T: Eq + Hash + Clone> LabelBound<T> {
    /// Creates a bound.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { known: RwLock::default(), limit }
    }

    /// Returns the value if it has series of its own.
    pub fn admit(&self, value: T) -> Option<T> {
        if self.known.read().unwrap_or_else(PoisonError::into_inner).contains(&value) {
            return Some(value);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.limit && !known.contains(&value) {
            return None;
        }
        known.insert(value.clone());
        Some(value)
    }
}

/// A job type of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct JobTypeLabels {
    /// The worker.
    pub worker: String,
    /// The job type.
    pub job_type: String,
}

impl JobTypeLabels {
    /// Returns the labels of all job types beyond the bound.
    #[must_use]
    pub fn other() -> Self {
        Self { worker: other(), job_type: other() }
    }
}

/// A status that occurrences of a job type have reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StatusLabels {
    /// The worker.
    pub worker: String,
    /// The job type.
    pub job_type: String,
    /// The status.
    pub status: &'static str,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct JobLabel {
    /// The name of the job. The label `job` is that of Prometheus.
    pub job_name: String,
}

/// A status that occurrences of a job have reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct JobStatusLabels {
    /// The name of the job.
    pub job_name: String,
    /// The status.
    pub status: &'static str,
}

/// A cause of failures.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CauseLabel {
    /// The cause.
    pub cause: &'static str,
}

/// An outcome of lost runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// The outcome.
    pub outcome: &'static str,
}

/// A queue of the messages of workers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WorkerQueueLabel {
    /// The queue: `status`, `logs` or `registration`.
    pub queue: &'static str,
}

/// A policy for misfires.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PolicyLabel {
    /// The policy.
    pub policy: &'static str,
}

/// A status of open occurrences.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StatusLabel {
    /// The status.
    pub status: &'static str,
}

/// A state of jobs, connections or the like.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StateLabel {
    /// The state.
    pub state: &'static str,
}

/// A service of the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ServiceLabel {
    /// The name of the service.
    pub service: &'static str,
}

/// A pool of connections to PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PoolLabel {
    /// The use of the pool.
    pub pool: &'static str,
}

/// Connections of a pool in one state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PoolStateLabels {
    /// The use of the pool.
    pub pool: &'static str,
    /// The state: in use, or idle.
    pub state: &'static str,
}

/// A statement of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StatementLabel {
    /// The name of the statement.
    pub statement: String,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabel {
    /// The pattern of the path.
    pub route: String,
}

/// A route with a method.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// The pattern of the path.
    pub route: String,
    /// The method.
    pub method: &'static str,
}

/// Answers of a route with statuses of one class.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The pattern of the path.
    pub route: String,
    /// The method.
    pub method: &'static str,
    /// The class of the status.
    pub status: &'static str,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WorkerLabel {
    /// The id of the worker.
    pub worker: String,
}

/// A singleton loop.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LoopLabel {
    /// The name of the loop.
    pub r#loop: String,
}

/// A queue that the server consumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QueueLabel {
    /// The queue, without the prefix of the installation.
    pub queue: &'static str,
}

/// A part of the health or of a scrape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PartLabel {
    /// The part.
    pub part: &'static str,
}

/// The version of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BuildLabels {
    /// The version.
    pub version: &'static str,
}

/// The trace of an observation, as an exemplar.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TraceLabel {
    /// The id of the trace.
    pub trace_id: String,
}

/// Returns the class of an HTTP status.
#[must_use]
pub const fn status_class(status: u16) -> &'static str {
    match status {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}
