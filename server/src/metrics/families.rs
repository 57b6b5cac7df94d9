//! Every counter and histogram of the server, with its name and its description.
//!
//! Descriptions say if a value is that of the whole installation: each server then shows the same, and a query takes the
//! maximum. Everything else is counted by one server, and a query adds the servers up.

use std::fmt;

use milvaion_api::failures::FailureCause;
use milvaion_schedule::rules::MisfirePolicy;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    metrics::{
        counter::Counter, exemplar::HistogramWithExemplars, family::Family, gauge::Gauge, histogram::Histogram,
        info::Info,
    },
    registry::{Registry, Unit},
};

use super::{
    LostRunOutcome,
    gauges::Gauges,
    labels::{
        BuildLabels, CauseLabel, JobLabel, JobStatusLabels, JobTypeLabels, LabelBound, MAX_JOB_TYPES, MAX_JOBS,
        MAX_ROUTES, MAX_STATEMENTS, OutcomeLabel, PolicyLabel, PoolLabel, RequestLabels, RouteLabel, RouteLabels,
        ServiceLabel, StatementLabel, StatusLabels, TraceLabel, WorkerQueueLabel,
    },
};

/// The policies for misfires.
const MISFIRE_POLICIES: [MisfirePolicy; 3] = [MisfirePolicy::FireOnce, MisfirePolicy::Skip, MisfirePolicy::CatchUp];

/// The queues of the messages of workers that are read in parts.
const WORKER_QUEUES: [&str; 3] = ["status", "logs", "registration"];

/// The bounds of delays, in seconds: a good one is some milliseconds, and one after an outage may be half an hour.
const DELAY_BUCKETS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1_800.0];
/// The bounds of the time that is left of a head start of twenty milliseconds, in seconds. Below the first one, a
/// longer head start is no remedy.
const AHEAD_BUCKETS: [f64; 11] = [-0.1, -0.05, -0.02, -0.01, -0.005, 0.0, 0.002_5, 0.005, 0.01, 0.015, 0.02];
/// The bounds of ticks, in seconds. The longest limit of a tick is twenty.
const TICK_BUCKETS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 20.0];
/// The bounds of statements and of waits for a connection, in seconds.
const STATEMENT_BUCKETS: [f64; 8] = [0.000_5, 0.002, 0.01, 0.05, 0.25, 1.0, 4.0, 15.0];
/// The bounds of requests, in seconds. The limit of most is thirty.
const REQUEST_BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];
/// The bounds of runs, in seconds: 50 ms to four hours.
const RUN_BUCKETS: [f64; 9] = [0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3_600.0, 14_400.0];

/// A histogram of delays whose observations name the trace of an occurrence.
pub(super) type DelayHistogram = HistogramWithExemplars<TraceLabel>;

/// The metrics of one server.
pub(super) struct MetricFamilies {
    registry: Registry,
    process: Registry,
    pub(super) gauges: Gauges,
    pub(super) job_labels: bool,
    pub(super) job_types: LabelBound<JobTypeLabels>,
    pub(super) job_names: LabelBound<String>,
    pub(super) statement_names: LabelBound<String>,
    pub(super) routes: LabelBound<String>,

    pub(super) created_after_due: DelayHistogram,
    pub(super) created_before_due: Histogram,
    pub(super) confirmed_after_due: DelayHistogram,
    pub(super) started_after_due: DelayHistogram,
    pub(super) stored_after_end: DelayHistogram,

    pub(super) occurrences: Family<StatusLabels, Counter>,
    pub(super) run_seconds: Family<JobTypeLabels, Histogram>,
    pub(super) job_occurrences: Family<JobStatusLabels, Counter>,
    pub(super) job_last_success: Family<JobLabel, Gauge>,
    pub(super) failures: Family<CauseLabel, Counter>,
    pub(super) lost_runs: Family<OutcomeLabel, Counter>,
    pub(super) misfires: Family<PolicyLabel, Counter>,
    pub(super) duplicate_starts: Counter,
    pub(super) unreadable: Family<WorkerQueueLabel, Counter>,
    pub(super) dead_letters: Counter,

    pub(super) ticks: Family<ServiceLabel, Histogram>,
    pub(super) service_errors: Family<ServiceLabel, Counter>,
    pub(super) service_restarts: Family<ServiceLabel, Counter>,
    pub(super) pool_waits: Family<PoolLabel, Histogram>,
    pub(super) pool_exhausted: Family<PoolLabel, Counter>,
    pub(super) statements: Family<StatementLabel, Histogram>,
    pub(super) statement_errors: Family<StatementLabel, Counter>,

    pub(super) requests: Family<RequestLabels, Counter>,
    pub(super) request_seconds: Family<RouteLabels, Histogram>,
    pub(super) stream_listeners: Family<RouteLabel, Gauge>,
    pub(super) stream_bytes: Family<RouteLabel, Counter>,
}

impl fmt::Debug for MetricFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricFamilies").field("job_labels", &self.job_labels).finish_non_exhaustive()
    }
}

impl Default for MetricFamilies {
    fn default() -> Self {
        Self::new(false)
    }
}

fn delays() -> DelayHistogram {
    HistogramWithExemplars::new(DELAY_BUCKETS.into_iter())
}

/// Returns the word of a misfire policy, as in definitions of jobs.
pub(super) const fn misfire_word(policy: MisfirePolicy) -> &'static str {
    match policy {
        MisfirePolicy::FireOnce => "fire_once",
        MisfirePolicy::Skip => "skip",
        MisfirePolicy::CatchUp => "catch_up",
    }
}

impl MetricFamilies {
    /// Creates and registers the metrics.
    pub(super) fn new(job_labels: bool) -> Self {
        let mut families = Self {
            registry: Registry::with_prefix("milvaion"),
            process: Registry::with_prefix("process"),
            gauges: Gauges::default(),
            job_labels,
            job_types: LabelBound::new(MAX_JOB_TYPES),
            job_names: LabelBound::new(MAX_JOBS),
            statement_names: LabelBound::new(MAX_STATEMENTS),
            routes: LabelBound::new(MAX_ROUTES),
            created_after_due: delays(),
            created_before_due: Histogram::new(AHEAD_BUCKETS),
            confirmed_after_due: delays(),
            started_after_due: delays(),
            stored_after_end: delays(),
            occurrences: Family::default(),
            run_seconds: Family::new_with_constructor(|| Histogram::new(RUN_BUCKETS)),
            job_occurrences: Family::default(),
            job_last_success: Family::default(),
            failures: Family::default(),
            lost_runs: Family::default(),
            misfires: Family::default(),
            duplicate_starts: Counter::default(),
            unreadable: Family::default(),
            dead_letters: Counter::default(),
            ticks: Family::new_with_constructor(|| Histogram::new(TICK_BUCKETS)),
            service_errors: Family::default(),
            service_restarts: Family::default(),
            pool_waits: Family::new_with_constructor(|| Histogram::new(STATEMENT_BUCKETS)),
            pool_exhausted: Family::default(),
            statements: Family::new_with_constructor(|| Histogram::new(STATEMENT_BUCKETS)),
            statement_errors: Family::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)),
            stream_listeners: Family::default(),
            stream_bytes: Family::default(),
        };
        let mut registry = std::mem::take(&mut families.registry);
        families.register(&mut registry);
        families.gauges.register(&mut registry, &mut families.process);
        families.registry = registry;
        families.begin_with_zero();
        families
    }

    /// Formats all metrics as OpenMetrics text.
    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(64 * 1024);
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &self.process)?;
        encode_eof(&mut text)?;
        Ok(text)
    }

    /// Creates the series whose labels have few values. A query about the increase of a counter misses the first event of a
    /// series that did not exist before it.
    fn begin_with_zero(&self) {
        for cause in FailureCause::ALL {
            drop(self.failures.get_or_create_owned(&CauseLabel { cause: cause.as_str() }));
        }
        for outcome in LostRunOutcome::ALL {
            drop(self.lost_runs.get_or_create_owned(&OutcomeLabel { outcome: outcome.slug() }));
        }
        for policy in MISFIRE_POLICIES {
            drop(self.misfires.get_or_create_owned(&PolicyLabel { policy: misfire_word(policy) }));
        }
        for queue in WORKER_QUEUES {
            drop(self.unreadable.get_or_create_owned(&WorkerQueueLabel { queue }));
        }
    }

    fn register(&self, registry: &mut Registry) {
        let version = env!("CARGO_PKG_VERSION");
        registry.register("build", "Version of the server", Info::new(BuildLabels { version }));
        self.register_delays(registry);
        self.register_runs(registry);
        self.register_services(registry);
        self.register_requests(registry);
    }

    fn register_delays(&self, registry: &mut Registry) {
        let mut delay = |name: &str, help: &str, metric: &DelayHistogram| {
            registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
        };
        delay(
            "created_after_due",
            "Time from the due time of a scheduled occurrence until this server has stored it; 0 if it was stored ahead",
            &self.created_after_due,
        );
        delay(
            "confirmed_after_due",
            "Time from the due time of an occurrence until RabbitMQ has confirmed its first message to this server",
            &self.confirmed_after_due,
        );
        delay(
            "started_after_due",
            "Time from the due time of an occurrence until the start of its first attempt, by the clock of the worker",
            &self.started_after_due,
        );
        delay(
            "stored_after_end",
            "Time from the end of an occurrence, by the clock of the worker, until this server has stored it",
            &self.stored_after_end,
        );
        let ahead = "Time from the commit of a scheduled occurrence that may be stored ahead to its due time; negative after it";
        registry.register_with_unit("created_before_due", ahead, Unit::Seconds, self.created_before_due.clone());
    }

    fn register_runs(&self, registry: &mut Registry) {
        let by_type = "Occurrences by the status that they have reached, as this server has stored it";
        registry.register("occurrences", by_type, self.occurrences.clone());
        registry.register_with_unit(
            "run",
            "Duration of the last attempt of ended occurrences, as this server has stored it",
            Unit::Seconds,
            self.run_seconds.clone(),
        );
        if self.job_labels {
            let by_job = "Occurrences by job and by the status that they have reached, as this server has stored it";
            registry.register("job_occurrences", by_job, self.job_occurrences.clone());
            registry.register_with_unit(
                "job_last_success_timestamp",
                "Unix time of the last success of a job that this server has stored",
                Unit::Seconds,
                self.job_last_success.clone(),
            );
        }
        let failures = "Occurrences that failed for good, by cause, as this server has stored it";
        registry.register("failures", failures, self.failures.clone());
        let lost = "Runs that this server found to be lost, by what became of them";
        registry.register("lost_runs", lost, self.lost_runs.clone());
        let misfires = "Due times that had passed while the scheduler was away, by the misfire policy of the job";
        registry.register("misfires", misfires, self.misfires.clone());
        let duplicates =
            "Occurrences of which a second instance started the same attempt, or that were started after their end";
        registry.register("duplicate_starts", duplicates, self.duplicate_starts.clone());
        let unreadable = "Messages of workers, or parts of them, that this server could not read, by queue";
        registry.register("unreadable_messages", unreadable, self.unreadable.clone());
        let dead = "Dead letters that belong to no open occurrence, stored by this server";
        registry.register("dead_letters", dead, self.dead_letters.clone());
    }

    fn register_services(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "service_tick",
            "Duration of the ticks of background tasks",
            Unit::Seconds,
            self.ticks.clone(),
        );
        let errors = "Ticks of background tasks that failed or took too long";
        registry.register("service_errors", errors, self.service_errors.clone());
        let restarts = "Restarts of background tasks after a panic or an early end";
        registry.register("service_restarts", restarts, self.service_restarts.clone());
        registry.register_with_unit(
            "pool_wait",
            "Time that callers waited for a connection to PostgreSQL, by pool",
            Unit::Seconds,
            self.pool_waits.clone(),
        );
        let exhausted = "Callers that got no connection to PostgreSQL because all of the pool were in use for too long";
        registry.register("pool_exhausted", exhausted, self.pool_exhausted.clone());
        registry.register_with_unit(
            "statement",
            "Duration of statements of PostgreSQL, by name, without the wait for a connection",
            Unit::Seconds,
            self.statements.clone(),
        );
        let errors = "Statements of PostgreSQL that were refused or not answered, by name";
        registry.register("statement_errors", errors, self.statement_errors.clone());
    }

    fn register_requests(&self, registry: &mut Registry) {
        let requests = "HTTP requests by the pattern of the path, method and class of the status";
        registry.register("http_requests", requests, self.requests.clone());
        registry.register_with_unit(
            "http_request",
            "Time until the head of the answer to an HTTP request, by the pattern of the path",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register("stream_listeners", "Open streams of events, by route", self.stream_listeners.clone());
        registry.register_with_unit(
            "stream",
            "Bytes sent in streams of events, before compression, by route",
            Unit::Bytes,
            self.stream_bytes.clone(),
        );
    }
}
