//! A wish to end a running occurrence is repeated until it has ended: the channel it was told on forgets at once, and the
//! worker may have been reconnecting.

use std::time::Duration;

use milvaion_protocol::{message::CancelMessage, status::OccurrenceStatus};

use super::BackgroundTask;
use crate::{command::jobs::JobCommands, store::jobs::AuditStamp};

/// How often a wish is repeated.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How often wishes are looked for that another server left behind.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);
/// How many are repeated at once.
const REPEAT_BATCH: i64 = 1_000;

/// The task.
#[derive(Debug)]
pub struct CancellationRepeater {
    /// Who can cancel.
    pub jobs: JobCommands,
    /// How many wishes were open at the last tick.
    pub pending: usize,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancellationReport {
    /// Asked again.
    pub requested: usize,
    /// Cancelled without a worker: they went back to the queue or were lost in the meantime.
    pub cancelled: usize,
}

impl BackgroundTask for CancellationRepeater {
    const NAME: &'static str = "cancellations";
    type Report = CancellationReport;

    fn period(&self) -> Duration {
        if self.pending > 0 { REPEAT_INTERVAL } else { IDLE_INTERVAL }
    }

    async fn tick(&mut self) -> anyhow::Result<CancellationReport> {
        let open = self.jobs.store.open_cancel_requests(REPEAT_BATCH).await?;
        self.pending = open.len();
        let mut repeated = CancellationReport::default();
        let mut wishes = Vec::new();
        for wish in open {
            if wish.status == OccurrenceStatus::Running {
                let attempt = u32::try_from(wish.attempt).unwrap_or(1);
                wishes.push(CancelMessage { occurrence_id: wish.id, attempt, reason: wish.reason });
            } else {
                let edit = AuditStamp { by: &wish.by, at: self.jobs.clock.now() };
                repeated.cancelled += self.jobs.cancel_all(&[wish.id], None, edit).await?.len();
            }
        }
        repeated.requested = wishes.len();
        self.jobs.cache.request_cancellations(&wishes).await?;
        Ok(repeated)
    }

    fn is_notable(report: &CancellationReport) -> bool {
        report.cancelled > 0
    }
}
