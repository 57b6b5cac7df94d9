//! Messages that the broker confirmed and has no longer.
//!
//! A broker that was set up anew, a queue that somebody emptied or deleted, a message that went down with a worker: each
//! leaves an occurrence Queued that no worker will ever hear of. So what has been queued for long is counted against what
//! the broker has waiting, queue by queue, and what is missing is sent once more. Too many copies do no harm: a worker
//! claims an occurrence before it runs it, and a copy is marked as one.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};

use super::{BackgroundTask, lease::Leadership};
use crate::{
    broker::{Broker, queue_probe::QueueProbe},
    clock::Clock,
    domain::liveness,
    store::Store,
};

/// How many are sent again at once, over all queues.
const RESEND_BATCH: i64 = 1_000;
/// How often is looked at most.
const MAX_DETECTION_INTERVAL: Duration = Duration::from_secs(15);

/// The task.
#[derive(Debug)]
pub struct LostMessageDetector {
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
    pub requeue_after: Duration,
    /// Wakes the republisher.
    pub activate_republisher: Arc<Notify>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostMessageReport {
    /// Queued for long.
    pub waiting: i64,
    /// Whose messages were gone and are sent again.
    pub lost: u64,
}

impl BackgroundTask for LostMessageDetector {
    const NAME: &'static str = "lost-messages";
    type Report = LostMessageReport;

    fn period(&self) -> Duration {
        (self.requeue_after / 2).min(MAX_DETECTION_INTERVAL)
    }

    async fn tick(&mut self) -> anyhow::Result<LostMessageReport> {
        let now = self.clock.now();
        let before = now - chrono::Duration::from_std(self.requeue_after).unwrap_or(chrono::Duration::minutes(1));
        let queues = self.store.published_backlog(before, liveness::alive_since(now)).await?;
        let mut missed = LostMessageReport::default();
        let Some(fence) = self.leadership.borrow().write_fence() else { return Ok(missed) };
        let mut room = RESEND_BATCH;
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
                let again = self.store.clear_published(waiting, before, lost, fence).await?;
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
            self.activate_republisher.notify_one();
        }
        Ok(missed)
    }

    fn is_notable(report: &LostMessageReport) -> bool {
        report.lost > 0
    }
}
