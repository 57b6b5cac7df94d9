//! Repeats a cancel request for a running occurrence until the occurrence has ended.
//!
//! A cancel request is sent over a Redis channel, which stores nothing. A worker that was reconnecting at that moment
//! misses it, so the request is sent again. A run that was reported although its occurrence has ended gets a request too,
//! which [`late_runs`](super::late_runs) repeats.

use std::time::Duration;

use milvaion_protocol::{message::CancelMessage, status::OccurrenceStatus};

use crate::{
    command::jobs::JobCommands,
    domain::{duplicates::LateRun, message::cancel_message},
    engine::{Service, activators::LateRuns, context::Context},
    store::{
        cancel::{CancelPosition, OpenCancelRequest},
        jobs::AuditStamp,
    },
};

/// The time between two repetitions while cancel requests are open.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two checks for cancel requests that another server left open.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);
/// The most cancel requests that one tick repeats.
const REPEAT_BATCH: i64 = 1_000;

/// The background task that repeats cancel requests.
#[derive(Debug)]
pub struct CancellationRepeater {
    /// The commands that cancel occurrences.
    pub jobs: JobCommands,
    /// The runs whose occurrence has ended.
    pub late_runs: LateRuns,
    /// The number of cancel requests that were open at the last tick.
    pub pending: usize,
    /// The position behind which the next tick continues, because the last one has repeated as many requests as a tick may.
    pub after: CancelPosition,
}

impl CancellationRepeater {
    /// Creates the repeater of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            jobs: JobCommands::of(context),
            late_runs: context.activators.late_runs.clone(),
            pending: 0,
            after: CancelPosition::default(),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CancellationReport {
    /// Cancel requests that were sent.
    pub requested: usize,
    /// Occurrences cancelled without a worker, because they were requeued or lost after the request.
    pub cancelled: usize,
}

impl Service for CancellationRepeater {
    const NAME: &'static str = "cancellations";
    type Report = CancellationReport;

    fn period(&self) -> Duration {
        if self.pending > 0 { REPEAT_INTERVAL } else { IDLE_INTERVAL }
    }

    async fn tick(&mut self) -> anyhow::Result<CancellationReport> {
        let start = CancelPosition::default();
        let after = std::mem::replace(&mut self.after, start);
        let mut open = self.jobs.store.open_cancel_requests(after, REPEAT_BATCH).await?;
        if open.is_empty() && after != start {
            open = self.jobs.store.open_cancel_requests(start, REPEAT_BATCH).await?;
        }
        // Requests that their workers ignore stay open, and keep no later one from being repeated.
        if i64::try_from(open.len()).is_ok_and(|count| count == REPEAT_BATCH) {
            self.after = open.last().map(OpenCancelRequest::position).unwrap_or_default();
        }
        self.pending = open.len();
        let mut report = CancellationReport::default();
        let mut requests: Vec<CancelMessage> = self.late_runs.take().into_iter().map(LateRun::cancel_message).collect();
        for request in open {
            if request.status == OccurrenceStatus::Running {
                requests.push(cancel_message(request.id, request.attempt, request.reason));
            } else {
                let edit = AuditStamp { by: &request.by, at: self.jobs.clock.now(), address: None };
                report.cancelled += self.jobs.cancel_all(&[request.id], None, edit).await?.len();
            }
        }
        report.requested = requests.len();
        self.jobs.cache.request_cancellations(&requests).await?;
        Ok(report)
    }

    fn is_notable(report: &CancellationReport) -> bool {
        report.cancelled > 0
    }
}
