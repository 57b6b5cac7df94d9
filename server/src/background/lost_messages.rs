//! Republishes messages that the broker confirmed and then lost.
//!
//! A broker that was reinstalled, a queue that an operator purged or deleted, or a message that was lost with its
//! worker: each leaves an occurrence Queued that no worker will ever receive. The detector therefore compares, queue by
//! queue, the occurrences that have been queued for long with the messages waiting at the broker, and republishes the
//! difference. A superfluous message does no harm: a worker claims an occurrence before it runs it, and a republished
//! message is marked.
//!
//! The queue of the critical runs of a job type is a queue of its own here. When no instance consumes it any more, because
//! none reserves slots, its messages would wait for ever. The queue is then deleted, which the broker does only while it has
//! no consumer, and its occurrences are sent to the queue of their job type.
//!
//! A message may have several runs. The largest number that was ever sent counts for each message, because the workers of
//! now may announce another one than those of the time at which it was sent.
//!
//! Workers take messages while queues are counted. The occurrences are therefore counted once more after the messages;
//! what workers have taken meanwhile is no longer queued then. The rules are in [`crate::domain::lost_message`].

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    broker::{
        Broker,
        queue_probe::{QueueCounts, QueueProbe},
    },
    clock::Clock,
    domain::{
        liveness,
        lost_message::{QueueBacklog, QueueCount},
    },
    engine::{RunsOn, Service, context::Context, leadership::Leadership},
    error::chain,
    faults,
    store::{Store, leases::FencingToken, lost_messages::LostMessages},
};

/// The most messages that one statement marks as unsent.
const CLEAR_BATCH: i64 = 5_000;
/// The longest time between two ticks.
const MAX_DETECTION_INTERVAL: Duration = Duration::from_secs(15);
/// The time since the last bundle of a job type before which its size is kept although no run of the type waits: longer than
/// a sender takes from storing the size to sending the bundle.
const SENT_BUNDLE_MEMORY: chrono::Duration = chrono::Duration::minutes(1);

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
    /// The count of the previous tick.
    pub earlier: Option<(QueueCount, Vec<QueueBacklog>)>,
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
            earlier: None,
        }
    }
}

impl LostMessageDetector {
    fn name(&self, queue: &QueueBacklog) -> String {
        let names = self.broker.topology();
        if queue.is_critical {
            names.critical_queue(&queue.worker_id, &queue.job_type)
        } else {
            names.job_queue(&queue.worker_id, &queue.job_type)
        }
    }

    /// Returns the counts of each of the queues, up to the first queue that cannot be counted: a broker that is down has not
    /// lost messages.
    async fn counts(&mut self, queues: &[QueueBacklog]) -> Vec<QueueCounts> {
        let mut counts = Vec::with_capacity(queues.len());
        for queue in queues {
            let queue = self.name(queue);
            match self.probe.waiting(&queue).await {
                // Nothing is known of a queue whose node is down, so it has lost nothing.
                Ok(found) => counts.push(found.unwrap_or(QueueCounts { messages: u32::MAX, consumers: u32::MAX })),
                Err(error) => {
                    tracing::debug!(queue.name = queue, error = chain(&error), "queue {queue} could not be counted");
                    break;
                }
            }
        }
        counts
    }

    /// Marks occurrences as unsent, until `slice_end`. Returns their number.
    async fn send_again(
        &self,
        lost: &LostMessages<'_>,
        fence: Option<FencingToken>,
        slice_end: Instant,
    ) -> anyhow::Result<usize> {
        let (mut left, mut after, mut resent) = (lost.count, OccurrenceId::default(), 0);
        while left > 0 {
            let cleared = self.store.clear_published(lost, after, left.min(CLEAR_BATCH), fence).await?;
            let Some(last) = cleared.last() else { break };
            after = *last;
            resent += cleared.len();
            left -= i64::try_from(cleared.len()).unwrap_or(left);
            // The first ones are sent while the others are marked.
            self.activate_republisher.notify_one();
            if Instant::now() > slice_end {
                break;
            }
        }
        Ok(resent)
    }

    /// Marks occurrences whose messages are lost as unsent, until `slice_end`. Returns their number.
    async fn republish(
        &self,
        lost: &LostMessages<'_>,
        fence: Option<FencingToken>,
        slice_end: Instant,
    ) -> anyhow::Result<usize> {
        let resent = self.send_again(lost, fence, slice_end).await?;
        if resent > 0 {
            let queue = self.name(lost.queue);
            tracing::warn!(
                queue.name = queue,
                republished = resent,
                "the broker lost messages of queue {queue}; {resent} are republished"
            );
        }
        Ok(resent)
    }

    /// Deletes a queue of critical runs that nothing consumes, and marks its occurrences that were confirmed before `before` as
    /// unsent, until `slice_end`. Returns their number. If the server ends between the two, the next tick repeats both.
    async fn move_to_job_queue(
        &mut self,
        queue: &QueueBacklog,
        before: DateTime<Utc>,
        fence: Option<FencingToken>,
        slice_end: Instant,
    ) -> anyhow::Result<usize> {
        let name = self.name(queue);
        match self.probe.delete_unused(&name).await {
            Ok(true) => {}
            // An instance has begun to consume it.
            Ok(false) => return Ok(0),
            Err(error) => {
                tracing::warn!(
                    queue.name = name,
                    error = chain(&error),
                    "queue {name} could not be deleted; it is tried again"
                );
                return Ok(0);
            }
        }
        let all = LostMessages { queue, priority: None, before, count: queue.total() };
        let moved = self.send_again(&all, fence, slice_end).await?;
        if moved > 0 {
            tracing::info!(
                queue.name = name,
                moved,
                "no instance consumes queue {name}; {moved} critical occurrences are sent to the queue of their job type"
            );
        }
        Ok(moved)
    }

    /// Compares the occurrences that have been queued for long `at` this instant with the messages, and republishes those
    /// whose messages are lost.
    async fn compare(&mut self, at: DateTime<Utc>, fence: Option<FencingToken>) -> anyhow::Result<LostMessageReport> {
        let requeue_after = chrono::Duration::from_std(self.requeue_after).unwrap_or(chrono::Duration::minutes(1));
        let (count, alive_since) = (QueueCount { at, old_before: at - requeue_after }, liveness::alive_since(at));
        let slice_end = Self::slice_end();
        let mut report = LostMessageReport::default();
        let (before, then) = self.earlier.take().unzip();
        let then = then.unwrap_or_default();
        let then: HashMap<_, &QueueBacklog> = then.iter().map(|queue| (queue.key(), queue)).collect();
        let mut queues = self.store.queue_backlogs(count, before).await?;
        if queues.is_empty() {
            return Ok(report);
        }
        let prefetched = self.store.prefetched(alive_since).await?;
        // Read after the runs: the size of a bundle is stored before it is sent.
        let sizes = if faults::is_sabotaged("ignore_bundle_sizes") {
            BTreeMap::new()
        } else {
            self.store.sent_bundle_sizes().await?
        };
        let prefetched_of = |queue: &QueueBacklog| {
            let key = (queue.worker_id.clone(), queue.job_type.clone());
            prefetched.get(&key).copied().unwrap_or_default()
        };
        let counts = self.counts(&queues).await;
        for (index, queue) in queues.iter_mut().enumerate() {
            let key = (queue.worker_id.clone(), queue.job_type.clone());
            let held = prefetched_of(queue);
            queue.prefetched = if queue.is_critical { held.critical } else { held.messages };
            queue.bundle_size = sizes.get(&key).copied().unwrap_or(1);
            queue.is_consumed = counts.get(index).is_none_or(|counts| counts.consumers > 0);
        }
        let again = self.store.queue_backlogs(count, None).await?;
        let again: HashMap<_, &QueueBacklog> = again.iter().map(|queue| (queue.key(), queue)).collect();
        for (queue, counts) in queues.iter().zip(counts) {
            report.waiting += queue.old();
            let earlier = then.get(&queue.key()).copied();
            if queue.is_stranded(prefetched_of(queue).has_critical_slots, earlier) {
                report.moved += self.move_to_job_queue(queue, at, fence, slice_end).await?;
            } else {
                if let (Some(before), Some(then)) = (before, earlier) {
                    for (priority, count) in queue.overtaken(then) {
                        let lost = LostMessages { queue, priority: Some(priority), before: before.old_before, count };
                        report.lost += self.republish(&lost, fence, slice_end).await?;
                    }
                }
                let held = queue.held(counts.messages.into());
                let left = again.get(&queue.key()).map_or(0, |again| again.missing(held));
                let count_lost = queue.missing(held).min(left);
                let lost = LostMessages { queue, priority: None, before: count.old_before, count: count_lost };
                report.lost += self.republish(&lost, fence, slice_end).await?;
            }
            if Instant::now() > slice_end {
                report.has_more = true;
                break;
            }
        }
        self.earlier = Some((count, queues));
        // The probe is used rarely, so its connection is not kept open.
        self.probe.close().await;
        Ok(report)
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LostMessageReport {
    /// Occurrences that have been queued for longer than `requeue_after`.
    pub waiting: i64,
    /// Occurrences whose messages were lost and are republished.
    pub lost: usize,
    /// Critical occurrences whose queue nothing consumes, and that are sent to the queue of their job type.
    pub moved: usize,
    /// True if the tick ended before it had seen all.
    pub has_more: bool,
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
        let Some(fence) = self.leadership.borrow().write_fence() else { return Ok(LostMessageReport::default()) };
        let at = self.clock.now();
        let report = self.compare(at, fence).await?;
        // A size that is kept for too long hides lost messages at worst, so an error does not stop the search.
        if let Err(error) = self.store.forget_sent_bundles(at - SENT_BUNDLE_MEMORY).await {
            tracing::warn!(
                error = chain(&error),
                "the sizes of sent bundles could not be deleted; the next tick tries again"
            );
        }
        Ok(report)
    }

    fn has_more(report: &LostMessageReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &LostMessageReport) -> bool {
        report.lost > 0 || report.moved > 0
    }
}
