//! The receiver of the reports and log lines of a run.
//!
//! The executor depends on this trait and not on the broker. In a worker the sink is the
//! [`Reporter`](crate::reporting::reporter); in a test of a job it is a recorder.

use futures::future::BoxFuture;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, StatusReport},
};

/// Completes when the broker has confirmed a report. Dropping the future does not affect the report.
pub(crate) type ConfirmFuture = BoxFuture<'static, ()>;

/// A receiver of reports and log lines. It accepts them at once and keeps their order.
pub(crate) trait ReportSink: Send + Sync + 'static {
    /// Accepts a report. Reports of one occurrence keep their order. Lines that were written before a final report are
    /// sent before it.
    fn report(&self, report: StatusReport) -> ConfirmFuture;

    /// Accepts the report of an end like [`report`](Self::report). The future completes as soon as the report survives this
    /// process: when the broker has confirmed it, or when the outbox has stored it.
    fn report_end(&self, report: StatusReport) -> ConfirmFuture;

    /// Accepts a report of a run that continues like [`report`](Self::report), for a caller that does not wait for the
    /// confirmation.
    fn report_unconfirmed(&self, report: StatusReport);

    /// Accepts a log line.
    fn log(&self, occurrence: OccurrenceId, line: LogLine);
}
