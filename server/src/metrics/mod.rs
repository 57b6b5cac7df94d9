//! The metrics of the server, for Prometheus.
//!
//! One [`Metrics`] value belongs to one server and is passed on like a connection; nothing is global, so two servers in one
//! process do not count for each other. The parts of the server call its methods where things happen: the supervisor for
//! ticks, the store for statements and status changes, the sender for confirms, the HTTP layer for requests. This module
//! calls none of them. What cannot be counted on the way, such as the length of a queue, is a gauge in [`gauges`], which
//! `http::metrics::scrape` reads when Prometheus asks.
//!
//! A label with values that users choose has a bound ([`labels::LabelBound`]): every further value is counted as `other`.
//! Otherwise an installation with many job types, or a client that makes up paths, would fill the memory of the server and of
//! Prometheus. No label names the server; Prometheus adds its address as `instance`.
//!
//! Names follow the conventions of Prometheus: base units, `_total` for counters, and one word for each concept, the one in
//! the glossary. To add a metric, add it in [`families`] or [`gauges`], call it, and add a row to
//! `docs/monitoring/README.md`; a test compares that table with a live scrape.

pub mod families;
pub mod gauges;
pub mod labels;
pub mod text;

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_api::failures::FailureCause;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::rules::MisfirePolicy;

use families::MetricFamilies;
use gauges::Gauges;
use labels::{
    CauseLabel, JobLabel, JobStatusLabels, JobTypeLabels, OutcomeLabel, PolicyLabel, PoolLabel, RequestLabels,
    RouteLabels, ServiceLabel, StatementLabel, StatusLabels, TraceLabel, WorkerQueueLabel,
};

/// The metrics of one server. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<MetricFamilies>);

/// The job of an occurrence, as far as labels name it.
#[derive(Clone, Copy, Debug)]
pub struct RunLabels<'a> {
    /// The worker.
    pub worker_id: &'a str,
    /// The job type.
    pub job_type: &'a str,
    /// The name of the job.
    pub job_name: &'a str,
}

/// What became of a lost run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostRunOutcome {
    /// Another attempt follows.
    Requeued,
    /// Its outcome is unknown until a late report arrives.
    Unknown,
    /// It ended.
    Ended,
}

impl LostRunOutcome {
    /// All outcomes.
    pub const ALL: [Self; 3] = [Self::Requeued, Self::Unknown, Self::Ended];

    /// Returns the value of the label.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Requeued => "requeued",
            Self::Unknown => "unknown",
            Self::Ended => "ended",
        }
    }
}

fn exemplar(trace_id: String) -> Option<TraceLabel> {
    Some(TraceLabel { trace_id })
}

/// Returns the seconds from `from` to `to`; zero if the clocks disagree about the order.
fn seconds_between(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from).to_std().unwrap_or_default().as_secs_f64()
}

impl Metrics {
    /// Creates the metrics of a server. With `job_labels`, some metrics have a label with the name of the job.
    #[must_use]
    pub fn new(job_labels: bool) -> Self {
        Self(Arc::new(MetricFamilies::new(job_labels)))
    }

    /// Returns the gauges that are set when Prometheus asks.
    #[must_use]
    pub fn gauges(&self) -> &Gauges {
        &self.0.gauges
    }

    /// Formats all metrics as OpenMetrics text.
    ///
    /// # Errors
    ///
    /// Returns an error if a metric cannot be formatted.
    pub fn text(&self) -> Result<String, fmt::Error> {
        self.0.text()
    }

    /// Records a tick of a service.
    pub fn tick(&self, service: &'static str, took: Duration, has_failed: bool) {
        let label = ServiceLabel { service };
        self.0.ticks.get_or_create(&label).observe(took.as_secs_f64());
        let errors = self.0.service_errors.get_or_create(&label);
        if has_failed {
            errors.inc();
        }
    }

    /// Adds a service, so that its counts begin with 0.
    pub fn add_service(&self, service: &'static str) {
        let label = ServiceLabel { service };
        drop(self.0.service_errors.get_or_create_owned(&label));
        drop(self.0.service_restarts.get_or_create_owned(&label));
    }

    /// Counts a restart of a service after a panic or an early end.
    pub fn restarted(&self, service: &'static str) {
        self.0.service_restarts.get_or_create(&ServiceLabel { service }).inc();
    }

    /// Records the wait for a connection of a pool.
    pub fn waited_for_connection(&self, pool: &'static str, waited: Duration, is_exhausted: bool) {
        let label = PoolLabel { pool };
        self.0.pool_waits.get_or_create(&label).observe(waited.as_secs_f64());
        let exhausted = self.0.pool_exhausted.get_or_create(&label);
        if is_exhausted {
            exhausted.inc();
        }
    }

    /// Records a statement of PostgreSQL.
    pub fn statement(&self, name: &str, took: Duration, has_failed: bool) {
        let statement = self.0.statement_names.admit(name.to_owned()).unwrap_or_else(labels::other);
        let label = StatementLabel { statement };
        self.0.statements.get_or_create(&label).observe(took.as_secs_f64());
        let errors = self.0.statement_errors.get_or_create(&label);
        if has_failed {
            errors.inc();
        }
    }

    /// Records that the scheduled occurrence with this trace was created at `at`.
    pub fn created(&self, trace_id: String, due: DateTime<Utc>, at: DateTime<Utc>) {
        self.0.created_after_due.observe(seconds_between(due, at), exemplar(trace_id), None);
    }

    /// Records that a scheduled occurrence that may be created ahead was committed at `at`.
    pub fn created_ahead(&self, due: DateTime<Utc>, at: DateTime<Utc>) {
        self.0.created_before_due.observe(seconds_between(at, due) - seconds_between(due, at));
    }

    /// Records that the broker confirmed the first message of the occurrence with this trace at `at`.
    pub fn confirmed(&self, trace_id: String, due: DateTime<Utc>, at: DateTime<Utc>) {
        self.0.confirmed_after_due.observe(seconds_between(due, at), exemplar(trace_id), None);
    }

    /// Records that the first attempt of the occurrence with this trace started at `at`, by the worker's clock.
    pub fn started(&self, trace_id: String, due: DateTime<Utc>, at: DateTime<Utc>) {
        self.0.started_after_due.observe(seconds_between(due, at), exemplar(trace_id), None);
    }

    /// Records that the end of the occurrence with this trace, which a worker reported, was stored at `at`.
    pub fn stored(&self, trace_id: String, ended: DateTime<Utc>, at: DateTime<Utc>) {
        self.0.stored_after_end.observe(seconds_between(ended, at), exemplar(trace_id), None);
    }

    /// Counts an occurrence that has reached a status.
    pub fn status_reached(&self, run: RunLabels<'_>, status: OccurrenceStatus) {
        let JobTypeLabels { worker, job_type } = self.job_type(run);
        let status = status.slug();
        self.0.occurrences.get_or_create(&StatusLabels { worker, job_type, status }).inc();
        if self.0.job_labels {
            let job_name = self.job_name(run);
            self.0.job_occurrences.get_or_create(&JobStatusLabels { job_name, status }).inc();
        }
    }

    /// Records the end of an occurrence: the duration of its last attempt and, after a success, the time of it.
    pub fn ended(&self, run: RunLabels<'_>, duration: Option<Duration>, success_at: Option<DateTime<Utc>>) {
        if let Some(duration) = duration {
            self.0.run_seconds.get_or_create(&self.job_type(run)).observe(duration.as_secs_f64());
        }
        if let Some(at) = success_at.filter(|_| self.0.job_labels) {
            self.0.job_last_success.get_or_create(&JobLabel { job_name: self.job_name(run) }).set(at.timestamp());
        }
    }

    fn job_name(&self, run: RunLabels<'_>) -> String {
        self.0.job_names.admit(run.job_name.to_owned()).unwrap_or_else(labels::other)
    }

    /// Returns the labels of a job type, or those of all others if there are too many.
    #[must_use]
    pub fn job_type_labels(&self, worker_id: &str, job_type: &str) -> JobTypeLabels {
        let wanted = JobTypeLabels { worker: worker_id.to_owned(), job_type: job_type.to_owned() };
        self.0.job_types.admit(wanted).unwrap_or_else(JobTypeLabels::other)
    }

    fn job_type(&self, run: RunLabels<'_>) -> JobTypeLabels {
        self.job_type_labels(run.worker_id, run.job_type)
    }

    /// Counts a failure for good.
    pub fn failed(&self, cause: FailureCause) {
        self.0.failures.get_or_create(&CauseLabel { cause: cause.as_str() }).inc();
    }

    /// Counts a lost run.
    pub fn lost(&self, outcome: LostRunOutcome) {
        self.0.lost_runs.get_or_create(&OutcomeLabel { outcome: outcome.slug() }).inc();
    }

    /// Counts a due time that had passed for too long when it was decided.
    pub fn misfired(&self, policy: MisfirePolicy) {
        self.0.misfires.get_or_create(&PolicyLabel { policy: families::misfire_word(policy) }).inc();
    }

    /// Counts attempts that a second instance started, or that started after the end of their occurrence.
    pub fn duplicate_starts(&self, count: usize) {
        self.0.duplicate_starts.inc_by(u64::try_from(count).unwrap_or_default());
    }

    /// Counts messages of workers, or parts of them, that could not be read.
    pub fn unreadable(&self, queue: &'static str, count: usize) {
        let count = u64::try_from(count).unwrap_or_default();
        self.0.unreadable.get_or_create(&WorkerQueueLabel { queue }).inc_by(count);
    }

    /// Counts a dead letter that belongs to no open occurrence.
    pub fn dead_letter(&self) {
        self.0.dead_letters.inc();
    }

    /// Records an answer to a request.
    pub fn request(&self, route: &str, method: &'static str, status: u16, took: Duration) {
        let route = self.0.routes.admit(route.to_owned()).unwrap_or_else(labels::other);
        let class = labels::status_class(status);
        self.0.requests.get_or_create(&RequestLabels { route: route.clone(), method, status: class }).inc();
        self.0.request_seconds.get_or_create(&RouteLabels { route, method }).observe(took.as_secs_f64());
    }

    /// Begins to count a stream of events. It is open until the result is dropped.
    #[must_use]
    pub fn stream(&self, route: &str) -> OpenStream {
        let route = self.0.routes.admit(route.to_owned()).unwrap_or_else(labels::other);
        let label = labels::RouteLabel { route };
        let listeners = self.0.stream_listeners.get_or_create_owned(&label);
        listeners.inc();
        OpenStream { listeners, bytes: self.0.stream_bytes.get_or_create_owned(&label) }
    }
}

/// An open stream of events.
#[derive(Debug)]
pub struct OpenStream {
    listeners: prometheus_client::metrics::gauge::Gauge,
    bytes: prometheus_client::metrics::counter::Counter,
}

impl OpenStream {
    /// Counts bytes that were sent.
    pub fn sent(&self, bytes: usize) {
        self.bytes.inc_by(u64::try_from(bytes).unwrap_or_default());
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.listeners.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<'a>(job_type: &'a str, job_name: &'a str) -> RunLabels<'a> {
        RunLabels { worker_id: "w", job_type, job_name }
    }

    fn series(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = metrics.text().expect("formatted");
        let is_of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        text.lines().filter(is_of).map(str::to_owned).collect()
    }

    #[test]
    fn job_types_beyond_the_bound_are_one_series() {
        let metrics = Metrics::new(false);
        for n in 0..300 {
            metrics.status_reached(run(&format!("odd.type-{n}_"), "x"), OccurrenceStatus::Completed);
        }
        let found = series(&metrics, "milvaion_occurrences_total");
        assert_eq!(found.len(), labels::MAX_JOB_TYPES + 1);
        let other = format!(
            r#"milvaion_occurrences_total{{worker="other",job_type="other",status="completed"}} {}"#,
            300 - labels::MAX_JOB_TYPES
        );
        assert!(found.contains(&other), "{found:?}");
    }

    #[test]
    fn job_names_are_labels_on_request_only() {
        for (job_labels, expected) in [(false, 0), (true, 501)] {
            let metrics = Metrics::new(job_labels);
            for n in 0..600 {
                metrics.status_reached(run("mail", &format!("Job \"{n}\"\n")), OccurrenceStatus::Completed);
            }
            assert_eq!(series(&metrics, "milvaion_job_occurrences_total").len(), expected);
        }
    }

    #[test]
    fn delay_has_the_trace_of_its_occurrence_as_exemplar() {
        let metrics = Metrics::default();
        let trace_id = || "0af7651916cd43dd8448eb211c80319c".to_owned();
        metrics.created(trace_id(), DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + chrono::TimeDelta::milliseconds(7));
        let text = metrics.text().expect("formatted");
        let bucket =
            r#"milvaion_created_after_due_seconds_bucket{le="0.01"} 1 # {trace_id="0af7651916cd43dd8448eb211c80319c"#;
        assert!(text.lines().any(|line| line.starts_with(bucket)), "{text}");
        // A worker whose clock is behind must not count a negative time.
        metrics.started(trace_id(), DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH - chrono::TimeDelta::seconds(9));
        assert_eq!(
            series(&metrics, "milvaion_started_after_due_seconds_sum"),
            ["milvaion_started_after_due_seconds_sum 0.0"]
        );
    }

    #[test]
    fn commit_after_the_due_time_counts_as_negative() {
        let metrics = Metrics::default();
        for micros in [11_000, 400, -3_000, -70_000_000] {
            let at = DateTime::UNIX_EPOCH - chrono::TimeDelta::microseconds(micros);
            metrics.created_ahead(DateTime::UNIX_EPOCH, at);
        }
        let buckets = series(&metrics, "milvaion_created_before_due_seconds_bucket");
        for (bound, count) in [("-0.1", 1), ("-0.005", 1), ("0.0", 2), ("0.005", 3), ("0.01", 3), ("0.015", 4)] {
            let bucket = format!(r#"milvaion_created_before_due_seconds_bucket{{le="{bound}"}} {count}"#);
            assert!(buckets.contains(&bucket), "{bucket} {buckets:?}");
        }
    }

    #[test]
    fn stream_is_open_until_it_is_dropped() {
        let metrics = Metrics::default();
        let stream = metrics.stream("/events");
        stream.sent(120);
        assert_eq!(series(&metrics, "milvaion_stream_listeners"), [r#"milvaion_stream_listeners{route="/events"} 1"#]);
        drop(stream);
        assert_eq!(series(&metrics, "milvaion_stream_listeners"), [r#"milvaion_stream_listeners{route="/events"} 0"#]);
        let bytes = r#"milvaion_stream_bytes_total{route="/events"} 120"#;
        assert_eq!(series(&metrics, "milvaion_stream_bytes_total"), [bytes]);
    }
}
