//! Notices a consumer that has fallen silent.
//!
//! A consumer can be there for this process and be gone for the broker, or be there for both and get nothing: after a
//! reconnect at the wrong moment, behind a proxy that lost its state. Nothing fails then, and nothing runs. So whoever
//! has heard nothing for a while asks how many messages wait. If some do and still none comes, the connection is given
//! up and made again; if the broker knows of no consumer at all, at once.
//!
//! Work that waits here for a place cannot be mistaken for silence: it is handed back after two seconds and delivered
//! again. Nor can a line of which as many deliveries are unanswered as the broker gives at once, as when it takes nothing
//! for want of memory: nothing more may come then.

use std::time::Duration;

use lapin::{Channel, options::QueueDeclareOptions, types::FieldTable};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// How often it looks, and how long a line must have been quiet to be looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// How many looks in a row must find messages and no delivery.
const MAX_STALLED_CHECKS: u8 = 2;

/// What the broker says of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueState {
    waiting: u32,
    consumers: u32,
}

/// One line's silence.
#[derive(Clone, Copy, Debug)]
struct QueueActivity {
    last_delivery_at: Instant,
    stalled_checks: u8,
}

impl QueueActivity {
    /// Judges a look; true when the line must be given up.
    fn is_silent(&mut self, seen: QueueState) -> bool {
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
    /// Watches `queues`, in the order of the lines; asks over `channel`, which no consumer uses.
    pub(crate) fn new(channel: Channel, queues: Vec<String>) -> Self {
        // Before the first tick, or the lines would be too young at the first look by less than a millisecond.
        let activities = vec![QueueActivity { last_delivery_at: Instant::now(), stalled_checks: 0 }; queues.len()];
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { channel, queues, activities, ticks }
    }

    /// Something came on a line.
    pub(crate) fn delivery_received(&mut self, line: usize) {
        self.activities[line] = QueueActivity { last_delivery_at: Instant::now(), stalled_checks: 0 };
    }

    /// Waits for the next time to look. Nothing is lost when it is dropped meanwhile.
    pub(crate) async fn wait(&mut self) {
        self.ticks.tick().await;
    }

    /// Looks at the lines that have been quiet and are not `full`; answers the queue of one that is silent.
    ///
    /// # Errors
    /// When the broker does not answer, or has no such queue any more.
    pub(crate) async fn check(&mut self, full: impl Iterator<Item = bool>) -> Result<Option<&str>, lapin::Error> {
        for ((line, queue), is_full) in self.activities.iter_mut().zip(&self.queues).zip(full) {
            if is_full {
                line.stalled_checks = 0;
                continue;
            }
            if line.last_delivery_at.elapsed() < CHECK_INTERVAL {
                continue;
            }
            let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let state = self.channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await?;
            let seen = QueueState { waiting: state.message_count(), consumers: state.consumer_count() };
            if line.is_silent(seen) {
                return Ok(Some(queue));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(looks: &[(u32, u32)]) -> Vec<bool> {
        let mut line = QueueActivity { last_delivery_at: Instant::now(), stalled_checks: 0 };
        looks.iter().map(|&(waiting, consumers)| line.is_silent(QueueState { waiting, consumers })).collect()
    }

    #[tokio::test]
    async fn a_line_is_silent_when_messages_wait_at_two_looks_and_none_came() {
        assert_eq!(judged(&[(0, 1), (3, 1), (3, 1)]), [false, false, true]);
        assert_eq!(judged(&[(3, 1), (0, 1), (3, 1)]), [false, false, false], "the queue was empty in between");
        assert_eq!(judged(&[(0, 0)]), [true], "the broker knows of nobody");
    }
}
