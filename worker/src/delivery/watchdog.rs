//! Detects consumers that receive nothing although messages wait.
//!
//! A consumer can exist for this process but not for the broker, or exist for both and receive nothing: after a
//! reconnect at the wrong moment, or behind a proxy that lost its state. Nothing fails then, and nothing runs. The
//! watchdog therefore queries the number of waiting messages of each queue that has delivered nothing for a while. If
//! messages wait and none is delivered, the connection is closed and opened again. If the broker has no consumer at
//! all, this happens at once.
//!
//! A delivery that waits for a permit cannot be mistaken for a stalled consumer, because it is returned to its queue
//! after at most eight seconds, less than an interval of the checks, and delivered again. Nor can a consumer with as many unacknowledged deliveries as its prefetch,
//! for example because the broker accepts nothing for lack of memory: it may receive nothing more.

use std::time::Duration;

use lapin::{Channel, options::QueueDeclareOptions, types::FieldTable};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// Interval of the checks, and the time without a delivery after which a queue is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// Number of consecutive checks that must find waiting messages and no delivery.
const MAX_STALLED_CHECKS: u8 = 2;

/// The state of a queue, as the broker reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueState {
    waiting: u32,
    consumers: u32,
}

/// The recent activity of one queue.
#[derive(Clone, Copy, Debug)]
struct QueueActivity {
    last_delivery_at: Instant,
    stalled_checks: u8,
}

impl QueueActivity {
    /// Records a check. Returns true if the consumer is stalled.
    fn is_stalled(&mut self, seen: QueueState) -> bool {
        if seen.consumers == 0 {
            return true;
        }
        self.stalled_checks = if seen.waiting > 0 { self.stalled_checks + 1 } else { 0 };
        self.stalled_checks >= MAX_STALLED_CHECKS
    }
}

/// Watches the consumers of one connection.
pub(crate) struct ConsumerWatchdog {
    channel: Channel,
    queues: Vec<String>,
    activities: Vec<QueueActivity>,
    ticks: Interval,
}

impl ConsumerWatchdog {
    /// Creates a watchdog for `queues`, in the order of the job types. It queries over `channel`, which no consumer
    /// uses.
    pub(crate) fn new(channel: Channel, queues: Vec<String>) -> Self {
        // Created before the first tick. Otherwise the queues would be younger than the interval at the first check, by
        // less than a millisecond.
        let activities = vec![QueueActivity { last_delivery_at: Instant::now(), stalled_checks: 0 }; queues.len()];
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { channel, queues, activities, ticks }
    }

    /// Records a delivery from the queue of a job type.
    pub(crate) fn delivery_received(&mut self, type_index: usize) {
        self.activities[type_index] = QueueActivity { last_delivery_at: Instant::now(), stalled_checks: 0 };
    }

    /// Waits for the time of the next check. Cancel safe.
    pub(crate) async fn wait(&mut self) {
        self.ticks.tick().await;
    }

    /// Checks the queues that have delivered nothing for a while and whose prefetch is not `full`. Returns the queue of
    /// a stalled consumer.
    ///
    /// # Errors
    /// Returns an error if the broker does not answer or the queue does not exist any more.
    pub(crate) async fn check(&mut self, full: impl Iterator<Item = bool>) -> Result<Option<&str>, lapin::Error> {
        for ((activity, queue), is_full) in self.activities.iter_mut().zip(&self.queues).zip(full) {
            if is_full {
                activity.stalled_checks = 0;
                continue;
            }
            if activity.last_delivery_at.elapsed() < CHECK_INTERVAL {
                continue;
            }
            let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let state = self.channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await?;
            let seen = QueueState { waiting: state.message_count(), consumers: state.consumer_count() };
            if activity.is_stalled(seen) {
                return Ok(Some(queue));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalls(checks: &[(u32, u32)]) -> Vec<bool> {
        let mut activity = QueueActivity { last_delivery_at: Instant::now(), stalled_checks: 0 };
        checks.iter().map(|&(waiting, consumers)| activity.is_stalled(QueueState { waiting, consumers })).collect()
    }

    #[tokio::test]
    async fn two_checks_with_waiting_messages_mean_a_stall() {
        assert_eq!(stalls(&[(0, 1), (3, 1), (3, 1)]), [false, false, true]);
        assert_eq!(stalls(&[(3, 1), (0, 1), (3, 1)]), [false, false, false], "the queue was empty in between");
        assert_eq!(stalls(&[(0, 0)]), [true], "the broker has no consumer");
    }
}
