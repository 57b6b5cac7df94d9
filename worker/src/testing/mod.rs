//! Runs a job in a test, without any service.
//!
//! The run goes through the same pipeline as in a worker: the input is read from JSON, panics are caught, the timeout
//! holds, and what would be reported is handed back.

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

/// A job under test.
pub struct TestRun {
    job: RegisteredJob,
    message: JobMessage,
    interrupt: CancellationToken,
    cancel: Option<(CancellationToken, String)>,
}

/// What a run has left behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestReport {
    /// What was reported, in order: first that it runs, last how it ended.
    pub reports: Vec<StatusReport>,
    /// What it wrote.
    pub lines: Vec<LogLine>,
}

impl TestReport {
    /// How it ended.
    ///
    /// # Panics
    /// If nothing was reported.
    #[must_use]
    pub fn end(&self) -> &StatusReport {
        self.reports.last().expect("a run always reports its end")
    }

    /// The final status.
    #[must_use]
    pub fn status(&self) -> OccurrenceStatus {
        self.end().status
    }
}

impl TestRun {
    /// Prepares a first attempt with `input`, ended after a minute.
    #[must_use]
    pub fn new<J: Job>(job: J, input: Value) -> Self {
        let now = clock::now();
        let occurrence_id = OccurrenceId(clock::random_id());
        let message = JobMessage {
            occurrence_id,
            job_id: JobId(clock::random_id()),
            job_name: "trial".to_owned(),
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
        };
        Self { job: RegisteredJob::new(job), message, interrupt: CancellationToken::new(), cancel: None }
    }

    /// Makes it another attempt than the first.
    #[must_use]
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.message.attempt = attempt;
        self
    }

    /// Gives the run this many seconds, as a job may ask for.
    #[must_use]
    pub fn timeout_seconds(mut self, seconds: u32) -> Self {
        self.message.timeout_seconds = Some(seconds);
        self
    }

    /// Interrupts the run when `token` fires, as a worker does that has to stop.
    #[must_use]
    pub fn interrupted_by(mut self, token: CancellationToken) -> Self {
        self.interrupt = token;
        self
    }

    /// Cancels the run for `reason` when `token` fires, as somebody does in the dashboard.
    #[must_use]
    pub fn cancelled_by(mut self, token: CancellationToken, reason: impl Into<String>) -> Self {
        self.cancel = Some((token, reason.into()));
        self
    }

    /// Runs it to its end.
    pub async fn run(self) -> TestReport {
        let record = Arc::new(Recorder::default());
        let executor = Executor {
            sink: record.clone(),
            instance_id: "trial".to_owned(),
            default_timeout: Duration::from_secs(60),
            metrics: WorkerMetrics::default(),
            interrupt: self.interrupt,
        };
        let stop = executor.stop_signal();
        let (_, end) = executor.start(&self.job, self.message, stop.clone());
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
        record.lock().clone()
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
