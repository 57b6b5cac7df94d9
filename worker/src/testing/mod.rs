//! Runs a job or a singleton loop in a test, without any service.
//!
//! A [`TestRun`] executes one attempt with the same pipeline as a worker: the input is decoded from JSON, panics are
//! caught and the timeout applies. The reports and log lines that a worker would send are returned in a [`TestReport`].
//! A [`TestLoop`] runs a singleton loop with the election, the timers and the deadlines of a worker, on a paused clock.
//! Everything that users need to test their jobs belongs here. Helpers for the tests of this crate do not.

mod loops;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{JobMessage, LogLine, StatusReport},
    status::OccurrenceStatus,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    api::job::Job,
    clock,
    control::metrics::WorkerMetrics,
    run::executor::Executor,
    run::registry::RegisteredJob,
    run::report_sink::{ConfirmFuture, ReportSink},
};

pub use loops::{TestLoop, TestLoopReport, TestLoopRun};

/// One attempt of a job under test.
pub struct TestRun {
    job: RegisteredJob,
    message: JobMessage,
    interrupt: CancellationToken,
    cancel: Option<(CancellationToken, String)>,
}

/// The reports and log lines of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestReport {
    /// All reports in order: the first one is *Running*, the last one the end.
    pub reports: Vec<StatusReport>,
    /// All log lines in order.
    pub lines: Vec<LogLine>,
}

impl TestReport {
    /// Returns the final report.
    ///
    /// # Panics
    /// Panics if nothing was reported.
    #[must_use]
    pub fn end(&self) -> &StatusReport {
        self.reports.last().expect("every run reports its end")
    }

    /// Returns the final status.
    #[must_use]
    pub fn status(&self) -> OccurrenceStatus {
        self.end().status
    }
}

impl TestRun {
    /// Prepares a first attempt with the given input and a timeout of one minute.
    #[must_use]
    pub fn new<J: Job>(job: J, input: Value) -> Self {
        let now = clock::now();
        let occurrence_id = OccurrenceId(clock::random_id());
        let message = JobMessage {
            occurrence_id,
            job_id: JobId(clock::random_id()),
            job_name: "test".to_owned(),
            job_type: J::TYPE.to_owned(),
            job_data: input,
            correlation_id: occurrence_id,
            scheduled_for: now,
            timestamp: now,
            attempt: 1,
            retry_count: 0,
            max_retries: 0,
            timeout_seconds: None,
            priority: 3,
            traceparent: None,
            checkpoint: None,
            parent_id: None,
        };
        Self { job: RegisteredJob::new(job), message, interrupt: CancellationToken::new(), cancel: None }
    }

    /// Sets the number of the attempt, for tests of later attempts.
    #[must_use]
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.message.attempt = attempt;
        self
    }

    /// Sets the timeout in seconds, like the timeout of a job.
    #[must_use]
    pub fn timeout_seconds(mut self, seconds: u32) -> Self {
        self.message.timeout_seconds = Some(seconds);
        self
    }

    /// Interrupts the run when `token` fires, like a worker that stops.
    #[must_use]
    pub fn interrupted_by(mut self, token: CancellationToken) -> Self {
        self.interrupt = token;
        self
    }

    /// Cancels the run with `reason` when `token` fires, like a user in the dashboard.
    #[must_use]
    pub fn cancelled_by(mut self, token: CancellationToken, reason: impl Into<String>) -> Self {
        self.cancel = Some((token, reason.into()));
        self
    }

    /// Runs the attempt to its end.
    pub async fn run(self) -> TestReport {
        let recorder = Arc::new(Recorder::default());
        let executor = Executor {
            sink: recorder.clone(),
            instance_id: "test".to_owned(),
            default_timeout: Duration::from_secs(60),
            metrics: WorkerMetrics::default(),
            interrupt: self.interrupt,
        };
        let stop = executor.stop_signal();
        let (_, end) = executor.start(&self.job, self.message, stop.clone(), false);
        let cancelling = async {
            if let Some((token, reason)) = self.cancel {
                token.cancelled().await;
                stop.cancel(&reason);
            }
        };
        tokio::pin!(end);
        tokio::select! {
            _ = &mut end => {}
            () = cancelling => drop(end.await),
        }
        recorder.lock().clone()
    }
}

#[derive(Default)]
struct Recorder(Mutex<TestReport>);

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, TestReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReportSink for Recorder {
    fn report(&self, report: StatusReport) -> ConfirmFuture {
        self.report_unconfirmed(report);
        futures::future::ready(()).boxed()
    }

    fn report_unconfirmed(&self, report: StatusReport) {
        self.lock().reports.push(report);
    }

    fn log(&self, _: OccurrenceId, line: LogLine) {
        self.lock().lines.push(line);
    }
}
