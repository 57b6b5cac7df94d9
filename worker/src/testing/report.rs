//! The reports and log lines of an attempt under test.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, StatusReport},
    status::OccurrenceStatus,
};
use serde::de::DeserializeOwned;

use crate::run::report_sink::{ConfirmFuture, ReportSink};

/// The reports and log lines of a run.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
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

    /// Returns the result as a value of the job's output type.
    ///
    /// # Panics
    /// Panics if the run did not complete, or if its result does not fit `T`.
    #[must_use]
    pub fn output<T: DeserializeOwned>(&self) -> T {
        let end = self.end();
        assert_eq!(end.status, OccurrenceStatus::Completed, "the run did not complete: {:?}", end.exception);
        let text = end.result.as_deref().unwrap_or("null");
        // A string is reported without quotes.
        serde_json::from_str(text)
            .or_else(|_| serde_json::from_value(text.into()))
            .unwrap_or_else(|error| panic!("the result {text:?} does not fit: {error}"))
    }

    /// Returns the text of a failure, or the reason of another end.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.end().exception.as_deref()
    }

    /// Returns the newest checkpoint as a value; `None` if the run set none.
    ///
    /// # Panics
    /// Panics if the checkpoint does not fit `T`.
    #[must_use]
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Option<T> {
        let newest = self.reports.iter().rev().find_map(|report| report.checkpoint.clone())?;
        Some(serde_json::from_value(newest).unwrap_or_else(|error| panic!("the checkpoint does not fit: {error}")))
    }

    /// Returns true if a line of the log contains `text`.
    #[must_use]
    pub fn has_line(&self, text: &str) -> bool {
        self.lines.iter().any(|line| line.message.contains(text))
    }
}

/// Keeps what a worker would send.
#[derive(Default)]
pub(super) struct Recorder(Mutex<TestReport>);

impl Recorder {
    pub(super) fn lock(&self) -> MutexGuard<'_, TestReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReportSink for Recorder {
    fn report(&self, report: StatusReport) -> ConfirmFuture {
        self.report_unconfirmed(report);
        futures::future::ready(()).boxed()
    }

    fn report_end(&self, report: StatusReport) -> ConfirmFuture {
        self.report(report)
    }

    fn report_unconfirmed(&self, report: StatusReport) {
        self.lock().reports.push(report);
    }

    fn log(&self, _: OccurrenceId, line: LogLine) {
        self.lock().lines.push(line);
    }
}
