//! A wish to end a running occurrence is repeated until it has ended: the channel it was told on forgets at once, and the
//! worker may have been reconnecting.

use std::time::Duration;

use milvaion_protocol::{message::CancelMessage, status::OccurrenceStatus};

use super::Task;
use crate::{command::jobs::Jobs, store::jobs::Edit};

/// How often a wish is repeated.
const REPEAT: Duration = Duration::from_secs(1);
/// How often wishes are looked for that another server left behind.
const LOOK: Duration = Duration::from_secs(30);
/// How many are repeated at once.
const BATCH: i64 = 1_000;

/// The task.
#[derive(Debug)]
pub struct Cancellations {
    /// Who can cancel.
    pub jobs: Jobs,
    /// How many wishes were open at the last tick.
    pub open: usize,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    /// Asked again.
    pub asked: usize,
    /// Cancelled without a worker: they went back to the queue or were lost in the meantime.
    pub cancelled: usize,
}

impl Task for Cancellations {
    const NAME: &'static str = "cancellations";
    type Report = Repeated;

    fn period(&self) -> Duration {
        if self.open > 0 { REPEAT } else { LOOK }
    }

    async fn tick(&mut self) -> anyhow::Result<Repeated> {
        let open = self.jobs.store.open_wishes(BATCH).await?;
        self.open = open.len();
        let mut repeated = Repeated::default();
        let mut wishes = Vec::new();
        for wish in open {
            if wish.status == OccurrenceStatus::Running {
                let attempt = u32::try_from(wish.attempt).unwrap_or(1);
                wishes.push(CancelMessage { occurrence_id: wish.id, attempt, reason: wish.reason });
            } else {
                let edit = Edit { by: &wish.by, at: self.jobs.clock.now() };
                repeated.cancelled += self.jobs.cancel_all(&[wish.id], None, edit).await?.len();
            }
        }
        repeated.asked = wishes.len();
        self.jobs.cache.ask_to_end(&wishes).await?;
        Ok(repeated)
    }

    fn is_news(report: &Repeated) -> bool {
        report.cancelled > 0
    }
}
