//! Messages that the broker confirmed and has no longer.
//!
//! A broker that was set up anew, a queue that somebody emptied or deleted, a message that went down with a worker: each
//! leaves an occurrence Queued that no worker will ever hear of. So what has been queued for long is counted against what
//! the broker has waiting, queue by queue, and what is missing is sent once more. Too many copies do no harm: a worker
//! claims an occurrence before it runs it, and a copy is marked as one.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};

use super::{Task, lease::Leadership};
use crate::{
    broker::{Broker, depth::QueueProbe},
    clock::Clock,
    domain::liveness,
    store::Store,
};

/// How many are sent again at once, over all queues.
const BATCH: i64 = 1_000;
/// How often is looked at most.
const OFTEN: Duration = Duration::from_secs(15);

/// The task.
#[derive(Debug)]
pub struct LostMessages {
    /// The truth.
    pub store: Store,
    /// Where the names of queues are from.
    pub broker: Broker,
    /// Asks for what is there.
    pub probe: QueueProbe,
    /// What time it is.
    pub clock: Clock,
    /// In which term this is done.
    pub leadership: watch::Receiver<Leadership>,
    /// How long an occurrence may be queued before its message is looked for.
    pub after: Duration,
    /// Wakes the republisher.
    pub republish: Arc<Notify>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Queued for long.
    pub waiting: i64,
    /// Whose messages were gone and are sent again.
    pub lost: u64,
}

impl Task for LostMessages {
    const NAME: &'static str = "lost-messages";
    type Report = Missed;

    fn period(&self) -> Duration {
        (self.after / 2).min(OFTEN)
    }

    async fn tick(&mut self) -> anyhow::Result<Missed> {
        let now = self.clock.now();
        let before = now - chrono::Duration::from_std(self.after).unwrap_or(chrono::Duration::minutes(1));
        let queues = self.store.waiting(before, liveness::alive_since(now)).await?;
        let mut missed = Missed::default();
        let Some(fence) = self.leadership.borrow().mandate() else { return Ok(missed) };
        let mut room = BATCH;
        for waiting in &queues {
            missed.waiting += waiting.count;
            let queue = self.broker.topology().job_queue(&waiting.worker_id, &waiting.job_type);
            let there = match self.probe.waiting(&queue).await {
                Ok(there) => i64::from(there),
                // A broker that is away has lost nothing yet.
                Err(reason) => {
                    tracing::debug!(queue.name = queue, error = reason, "the broker could not be asked what waits");
                    break;
                }
            };
            let lost = (waiting.count - waiting.held - there).min(room);
            if lost > 0 {
                let again = self.store.publish_again(waiting, before, lost, fence).await?;
                tracing::warn!(
                    queue.name = queue,
                    expected = waiting.count,
                    there,
                    sent_again = again,
                    "messages have vanished from the broker; they are sent again"
                );
                missed.lost += again;
                room -= i64::try_from(again).unwrap_or(room);
            }
        }
        // Most of the time there is nothing to ask; a connection is not kept for that.
        self.probe.close().await;
        if missed.lost > 0 {
            self.republish.notify_one();
        }
        Ok(missed)
    }

    fn is_news(report: &Missed) -> bool {
        report.lost > 0
    }
}
