//! Acknowledgements, with few frames for many deliveries.
//!
//! Every delivery is acknowledged, and every acknowledgement costs a frame, a system call and a turn of the
//! connection's thread. In AMQP, one frame can acknowledge all deliveries of a channel up to a delivery tag. The
//! tracker of a channel records which of its deliveries may not be acknowledged yet, so that it sends such a frame only
//! for a range in which all of them may. Deliveries behind an older one that still waits are acknowledged one by one.
//!
//! This works like a group commit: one acknowledgement is in flight at a time, sent by the task of the delivery that
//! became ready first, and deliveries that become ready in the meantime form the next one.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lapin::{
    Channel,
    options::{BasicAckOptions, BasicNackOptions},
};

/// The deliveries of one channel that are not acknowledged. Clones share the same state.
#[derive(Clone)]
pub(crate) struct AckTracker(Arc<AckChannel>);

struct AckChannel {
    channel: Channel,
    unacked_deliveries: Mutex<UnackedDeliveries>,
}

/// The obligation to answer one delivery. If it is dropped without an answer, the delivery returns to its queue when
/// the channel closes.
#[must_use = "every delivery is answered"]
pub(crate) struct PendingAck {
    ack_channel: Arc<AckChannel>,
    tag: u64,
}

impl AckTracker {
    /// Creates the tracker of one channel.
    pub(crate) fn new(channel: Channel) -> Self {
        Self(Arc::new(AckChannel { channel, unacked_deliveries: Mutex::default() }))
    }

    /// Registers a delivery. Must be called in the order of the deliveries.
    pub(crate) fn open(&self, tag: u64) -> PendingAck {
        self.0.lock().pending.insert(tag);
        PendingAck { ack_channel: self.0.clone(), tag }
    }

    /// Returns the number of deliveries that are not answered yet.
    pub(crate) fn unacked(&self) -> usize {
        self.0.lock().pending.len()
    }

    /// Returns the channel of the deliveries.
    pub(crate) fn channel(&self) -> &Channel {
        &self.0.channel
    }
}

impl PendingAck {
    /// Acknowledges the delivery.
    pub(crate) async fn ack(self) {
        if self.ack_channel.lock().ready(self.tag) {
            self.ack_channel.send().await;
        }
    }

    /// Returns the delivery to its queue.
    pub(crate) async fn return_to_queue(self) {
        self.refuse(true).await;
    }

    /// Rejects the delivery, so that it becomes a dead letter.
    pub(crate) async fn dead_letter(self) {
        self.refuse(false).await;
    }

    async fn refuse(self, requeue: bool) {
        let options = BasicNackOptions { requeue, multiple: false };
        match self.ack_channel.channel.basic_nack(self.tag, options).await {
            // Removed only now: an earlier removal would let an acknowledgement of a range overtake and include this
            // tag.
            Ok(()) => drop(self.ack_channel.lock().pending.remove(&self.tag)),
            Err(error) => self.ack_channel.log_ack_error(self.tag, &error),
        }
    }
}

impl AckChannel {
    /// Sends acknowledgements until none is ready. Must not be cancelled, or no task would send the rest. It is called
    /// only by the tasks of deliveries, which run to their end.
    async fn send(&self) {
        loop {
            let Some((tag, multiple)) = self.lock().take() else { return };
            if let Err(error) = self.channel.basic_ack(tag, BasicAckOptions { multiple }).await {
                self.log_ack_error(tag, &error);
            }
        }
    }

    fn log_ack_error(&self, tag: u64, error: &lapin::Error) {
        // The broker redelivers it, and the claim detects the duplicate.
        tracing::debug!(
            delivery.tag = tag,
            error = %error,
            "cannot answer delivery {tag}, because its channel is closed"
        );
    }

    fn lock(&self) -> MutexGuard<'_, UnackedDeliveries> {
        self.unacked_deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct UnackedDeliveries {
    /// Deliveries that may not be acknowledged yet.
    pending: BTreeSet<u64>,
    /// Deliveries that may be acknowledged.
    ready: BTreeSet<u64>,
    sending: bool,
}

impl UnackedDeliveries {
    /// Records that a delivery may be acknowledged. Returns true if the caller must send.
    fn ready(&mut self, tag: u64) -> bool {
        self.pending.remove(&tag);
        self.ready.insert(tag);
        !std::mem::replace(&mut self.sending, true)
    }

    /// Takes the next acknowledgement: its delivery tag, and whether it includes all earlier deliveries.
    fn take(&mut self) -> Option<(u64, bool)> {
        let beyond = match self.pending.first() {
            Some(pending) => self.ready.split_off(pending),
            None => BTreeSet::new(),
        };
        let range = std::mem::replace(&mut self.ready, beyond);
        let next = match range.last() {
            Some(&last) => Some((last, range.len() > 1)),
            None => self.ready.pop_first().map(|tag| (tag, false)),
        };
        self.sending = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_ends_before_the_first_pending_delivery() {
        let mut unacked_deliveries = UnackedDeliveries { pending: (1..=9).collect(), ..UnackedDeliveries::default() };
        assert!(unacked_deliveries.ready(2), "the first caller sends");
        for tag in [3, 1, 6, 8, 7] {
            assert!(!unacked_deliveries.ready(tag), "other callers leave it to the first one");
        }
        assert_eq!(unacked_deliveries.take(), Some((3, true)));
        assert_eq!(unacked_deliveries.take(), Some((6, false)), "4 and 5 are pending");
        unacked_deliveries.ready(4);
        assert_eq!(unacked_deliveries.take(), Some((4, false)));
        unacked_deliveries.ready(5);
        assert_eq!(unacked_deliveries.take(), Some((8, true)), "9 is pending");
        assert_eq!(unacked_deliveries.take(), None);
        assert!(unacked_deliveries.ready(9), "the first caller after the last acknowledgement sends again");
        assert_eq!(unacked_deliveries.take(), Some((9, false)));
    }

    #[test]
    fn acknowledgements_never_include_pending_deliveries() {
        for seed in 0..500_u64 {
            let mut unacked_deliveries =
                UnackedDeliveries { pending: (0..40).collect(), ..UnackedDeliveries::default() };
            let (mut state, mut acknowledged) = (seed, BTreeSet::new());
            while !unacked_deliveries.pending.is_empty() {
                // A small generator, so that every run has the same cases.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let index = (state >> 33) as usize % unacked_deliveries.pending.len();
                let tag = *unacked_deliveries.pending.iter().nth(index).expect("the index is within the length");
                unacked_deliveries.ready(tag);
                if state >> 60 < 6
                    && let Some((last, multiple)) = unacked_deliveries.take()
                {
                    assert!(!unacked_deliveries.pending.contains(&last), "seed {seed}");
                    assert!(!multiple || unacked_deliveries.pending.range(..last).next().is_none(), "seed {seed}");
                    acknowledged.extend(if multiple { 0..=last } else { last..=last });
                }
            }
            while let Some((last, multiple)) = unacked_deliveries.take() {
                acknowledged.extend(if multiple { 0..=last } else { last..=last });
            }
            assert_eq!(acknowledged, (0..40).collect(), "seed {seed}: every delivery is acknowledged in the end");
        }
    }
}
