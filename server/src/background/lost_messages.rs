//! Republishes messages that the broker confirmed and then lost.
//!
//! A broker that was reinstalled, a queue that an operator purged or deleted, or a message that was lost with its
//! worker: each leaves an occurrence Queued that no worker will ever receive. The detector therefore compares, queue by
//! queue, the occurrences that have been queued for long with the messages waiting at the broker, and republishes the
//! difference. A superfluous message does no harm: a worker claims an occurrence before it runs it, and a republished
//! message is marked.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};

use super::lease::Leadership;
use crate::{
    broker::{Broker, queue_probe::QueueProbe},
    clock::Clock,
    domain::liveness,
    engine::{RunsOn, Service, context::Context},
    error::chain,
    store::Store,
};

/// The most messages that one tick republishes, over all queues.
const RESEND_BATCH: i64 = 1_000;
/// The longest time between two ticks.
const MAX_DETECTION_INTERVAL: Duration = Duration::from_secs(15);

/// The background task that detects lost messages.
#[derive(Debug)]
pub struct LostMessageDetector {
    /// The PostgreSQL store.
    pub store: Store,
    /// The broker, for the names of queues.
    pub broker: Broker,
    /// The probe that counts the messages waiting in a queue.
    pub probe: QueueProbe,
    /// The server's clock.
    pub clock: Clock,
    /// The leadership state, for the fencing token of writes.
    pub leadership: watch::Receiver<Leadership>,
    /// The time an occurrence may be queued before its message is checked.
    pub requeue_after: Duration,
    /// The activator of the republisher.
    pub activate_republisher: Arc<Notify>,
}

impl LostMessageDetector {
    /// Creates the detector of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            broker: context.broker.clone(),
            probe: QueueProbe::new(context.broker.clone()),
            clock: context.clock.clone(),
            leadership: context.leadership.clone(),
            requeue_after: context.config.lost_runs.requeue_after,
            activate_republisher: context.activators.republisher.clone(),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostMessageReport {
    /// Occurrences that have been queued for longer than `requeue_after`.
    pub waiting: i64,
    /// Occurrences whose messages were lost and are republished.
    pub lost: u64,
}

impl Service for LostMessageDetector {
    const NAME: &'static str = "lost-messages";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    const TIME_LIMIT: Duration = Duration::from_secs(60);
    type Report = LostMessageReport;

    fn period(&self) -> Duration {
        (self.requeue_after / 2).min(MAX_DETECTION_INTERVAL)
    }

    async fn tick(&mut self) -> anyhow::Result<LostMessageReport> {
        let now = self.clock.now();
        let before = now - chrono::Duration::from_std(self.requeue_after).unwrap_or(chrono::Duration::minutes(1));
        let queues = self.store.published_backlog(before, liveness::alive_since(now)).await?;
        let mut report = LostMessageReport::default();
        let Some(fence) = self.leadership.borrow().write_fence() else { return Ok(report) };
        let mut budget = RESEND_BATCH;
        for waiting in &queues {
            report.waiting += waiting.count;
            let queue = self.broker.topology().job_queue(&waiting.worker_id, &waiting.job_type);
            let at_broker = match self.probe.waiting(&queue).await {
                Ok(waiting) => i64::from(waiting),
                // A broker that is down has not lost messages.
                Err(error) => {
                    tracing::debug!(queue.name = queue, error = chain(&error), "queue {queue} could not be counted");
                    break;
                }
            };
            let lost = (waiting.count - waiting.prefetched - at_broker).min(budget);
            if lost > 0 {
                let resent = self.store.clear_published(waiting, before, lost, fence).await?;
                tracing::warn!(
                    queue.name = queue,
                    expected = waiting.count,
                    at_broker,
                    republished = resent,
                    "the broker lost messages of queue {queue}; {resent} are republished"
                );
                report.lost += resent;
                budget -= i64::try_from(resent).unwrap_or(budget);
            }
        }
        // The probe is used rarely, so its connection is not kept open.
        self.probe.close().await;
        if report.lost > 0 {
            self.activate_republisher.notify_one();
        }
        Ok(report)
    }

    fn is_notable(report: &LostMessageReport) -> bool {
        report.lost > 0
    }
}
