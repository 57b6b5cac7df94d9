//! Observers of runs.
//!
//! An observer is informed of the start and the end of each attempt, with the end as it is reported to the server: after
//! timeouts, cancellations and panics, which a layer does not see. It changes nothing. A panic of an observer is logged and
//! has no other consequence, because a counter must not end a worker.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use milvaion_protocol::status::OccurrenceStatus;

use crate::api::{context::JobContext, outcome::OutcomeReport};

/// The end of an attempt, as it is reported to the server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunEnd<'a> {
    /// The reported status. *Queued* means that the attempt was handed back: the job asked for a delay, or the worker stops.
    /// The server decides whether a retry follows a *Failed* or a *TimedOut*.
    pub status: OccurrenceStatus,
    /// The duration of the attempt.
    pub duration: Duration,
    /// The result as text, with *Completed*.
    pub result: Option<&'a str>,
    /// The text of a failure, or the reason of another end.
    pub error: Option<&'a str>,
    /// True if no retry may follow, with *Failed*.
    pub is_permanent: bool,
    /// The delay that the job asked for before the next attempt.
    pub retry_after: Option<Duration>,
}

/// An observer of all runs of a worker. [`WorkerBuilder::events`](crate::WorkerBuilder::events) adds it.
///
/// The methods are called on threads of the runtime and must not block.
pub trait Events: Send + Sync + 'static {
    /// An attempt starts.
    fn started(&self, ctx: &JobContext) {
        let _ = ctx;
    }

    /// An attempt has ended.
    fn ended(&self, ctx: &JobContext, end: &RunEnd<'_>) {
        let _ = (ctx, end);
    }
}

/// All observers of a worker.
#[derive(Clone, Default)]
pub(crate) struct RunObservers(Vec<Arc<dyn Events>>);

impl RunObservers {
    /// Adds an observer.
    pub(crate) fn add(&mut self, events: Arc<dyn Events>) {
        self.0.push(events);
    }

    /// Informs the observers of a start.
    pub(crate) fn started(&self, ctx: &JobContext) {
        self.call(|events| events.started(ctx));
    }

    /// Informs the observers of an end.
    pub(crate) fn ended(&self, ctx: &JobContext, report: &OutcomeReport, duration: Duration) {
        if self.0.is_empty() {
            return;
        }
        let end = RunEnd {
            status: report.status,
            duration,
            result: report.result.as_deref(),
            error: report.exception.as_deref(),
            is_permanent: report.permanent,
            retry_after: report.retry_after,
        };
        self.call(|events| events.ended(ctx, &end));
    }

    fn call(&self, inform: impl Fn(&dyn Events)) {
        for events in &self.0 {
            if catch_unwind(AssertUnwindSafe(|| inform(&**events))).is_err() {
                tracing::error!("an observer of runs panicked; the run is not affected");
            }
        }
    }
}
