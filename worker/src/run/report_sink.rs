//! Where a run's reports and lines go.
//!
//! The executor knows this trait and nothing of the broker. In a worker the sink is the [`Reporter`](crate::reporting::reporter);
//! in a test of a job it is a pair of lists.

use futures::future::BoxFuture;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, StatusReport},
};

/// Resolves once a report is safe: confirmed by the broker. Dropping it changes nothing for the report.
pub(crate) type ConfirmFuture = BoxFuture<'static, ()>;

/// Takes what runs have to say, at once and in order.
pub(crate) trait ReportSink: Send + Sync + 'static {
    /// Takes a report. Reports of one occurrence keep their order, and the lines written before a final report go out
    /// before it.
    fn report(&self, report: StatusReport) -> ConfirmFuture;

    /// Takes a report as [`report`](Self::report) does, for somebody who does not wait until it is safe.
    fn report_unconfirmed(&self, report: StatusReport);

    /// Takes a line.
    fn log(&self, occurrence: OccurrenceId, line: LogLine);
}
