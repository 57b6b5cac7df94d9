//! Answers to the broker, few for many deliveries.
//!
//! Each delivery is to be acknowledged, and each acknowledgement is a frame, a system call and a turn of the
//! connection's thread. AMQP lets one frame acknowledge every delivery of a channel up to a number. The ledger of a
//! channel knows which of its deliveries are still owed an answer, so such a frame is sent only for a stretch in which
//! every one may be acknowledged; those beyond an older delivery that still waits are acknowledged singly.
//!
//! It is a group commit again: one acknowledgement is under way at a time, sent by whichever delivery came first, and
//! what becomes ready meanwhile makes the next.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lapin::{
    Channel,
    options::{BasicAckOptions, BasicNackOptions},
};

/// What one channel's deliveries are owed. Cloning gives the same ones.
#[derive(Clone)]
pub(crate) struct AckTracker(Arc<AckChannel>);

struct AckChannel {
    channel: Channel,
    unacked_deliveries: Mutex<UnackedDeliveries>,
}

/// The duty to answer one delivery. Dropped unanswered it stays open, and the delivery goes back to its queue with the
/// channel's end.
#[must_use = "every delivery is answered"]
pub(crate) struct PendingAck {
    ack_channel: Arc<AckChannel>,
    tag: u64,
}

impl AckTracker {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(Arc::new(AckChannel { channel, unacked_deliveries: Mutex::default() }))
    }

    /// Notes a delivery. To be called in the order the channel brought them.
    pub(crate) fn open(&self, tag: u64) -> PendingAck {
        self.0.lock().unacked.insert(tag);
        PendingAck { ack_channel: self.0.clone(), tag }
    }

    /// How many deliveries are not answered yet.
    pub(crate) fn unacked(&self) -> usize {
        self.0.lock().unacked.len()
    }

    /// The channel the deliveries came by.
    pub(crate) fn channel(&self) -> &Channel {
        &self.0.channel
    }
}

impl PendingAck {
    /// The broker may forget the delivery.
    pub(crate) async fn ack(self) {
        if self.ack_channel.lock().ready(self.tag) {
            self.ack_channel.send().await;
        }
    }

    /// The delivery goes back to its queue.
    pub(crate) async fn hand_back(self) {
        self.refuse(true).await;
    }

    /// The delivery goes to the dead letters.
    pub(crate) async fn dead_letter(self) {
        self.refuse(false).await;
    }

    async fn refuse(self, requeue: bool) {
        let options = BasicNackOptions { requeue, multiple: false };
        match self.ack_channel.channel.basic_nack(self.tag, options).await {
            // Not before: an acknowledgement of a whole stretch would overtake the refusal and cover it.
            Ok(()) => drop(self.ack_channel.lock().unacked.remove(&self.tag)),
            Err(error) => self.ack_channel.log_ack_error(self.tag, &error),
        }
    }
}

impl AckChannel {
    /// Sends acknowledgements until none is ready. Must run to its end, or nobody sends any more; deliveries' tasks do.
    async fn send(&self) {
        loop {
            let Some((tag, multiple)) = self.lock().take() else { return };
            if let Err(error) = self.channel.basic_ack(tag, BasicAckOptions { multiple }).await {
                self.log_ack_error(tag, &error);
            }
        }
    }

    fn log_ack_error(&self, tag: u64, error: &lapin::Error) {
        // The broker delivers it again, and the claim recognises it.
        tracing::debug!(delivery.tag = tag, error = %error, "a delivery could not be answered: its channel is gone");
    }

    fn lock(&self) -> MutexGuard<'_, UnackedDeliveries> {
        self.unacked_deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct UnackedDeliveries {
    /// Deliveries that may not be acknowledged yet.
    unacked: BTreeSet<u64>,
    /// Deliveries that may.
    ready: BTreeSet<u64>,
    sending: bool,
}

impl UnackedDeliveries {
    /// Notes that a delivery may be acknowledged. Answers whether the caller is the one to send.
    fn ready(&mut self, tag: u64) -> bool {
        self.unacked.remove(&tag);
        self.ready.insert(tag);
        !std::mem::replace(&mut self.sending, true)
    }

    /// The next acknowledgement: up to which delivery, and whether those before it are meant too.
    fn take(&mut self) -> Option<(u64, bool)> {
        let beyond = match self.unacked.first() {
            Some(unacked) => self.ready.split_off(unacked),
            None => BTreeSet::new(),
        };
        let stretch = std::mem::replace(&mut self.ready, beyond);
        let next = match stretch.last() {
            Some(&last) => Some((last, stretch.len() > 1)),
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
    fn a_stretch_ends_before_the_first_that_still_waits() {
        let mut unacked_deliveries = UnackedDeliveries { unacked: (1..=9).collect(), ..UnackedDeliveries::default() };
        assert!(unacked_deliveries.ready(2), "the first sends");
        for tag in [3, 1, 6, 8, 7] {
            assert!(!unacked_deliveries.ready(tag), "the others leave it to the first");
        }
        assert_eq!(unacked_deliveries.take(), Some((3, true)));
        assert_eq!(unacked_deliveries.take(), Some((6, false)), "4 and 5 still wait");
        unacked_deliveries.ready(4);
        assert_eq!(unacked_deliveries.take(), Some((4, false)));
        unacked_deliveries.ready(5);
        assert_eq!(unacked_deliveries.take(), Some((8, true)), "9 still waits");
        assert_eq!(unacked_deliveries.take(), None);
        assert!(unacked_deliveries.ready(9), "whoever comes after the last one sends again");
        assert_eq!(unacked_deliveries.take(), Some((9, false)));
    }

    #[test]
    fn no_acknowledgement_ever_covers_what_is_owed() {
        for seed in 0..500_u64 {
            let mut unacked_deliveries =
                UnackedDeliveries { unacked: (0..40).collect(), ..UnackedDeliveries::default() };
            let (mut state, mut acknowledged) = (seed, BTreeSet::new());
            while !unacked_deliveries.unacked.is_empty() {
                // A small generator of our own: the cases must be the same on every run.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let place = (state >> 33) as usize % unacked_deliveries.unacked.len();
                let tag = *unacked_deliveries.unacked.iter().nth(place).expect("within its length");
                unacked_deliveries.ready(tag);
                if state >> 60 < 6
                    && let Some((last, multiple)) = unacked_deliveries.take()
                {
                    assert!(!unacked_deliveries.unacked.contains(&last), "seed {seed}");
                    assert!(!multiple || unacked_deliveries.unacked.range(..last).next().is_none(), "seed {seed}");
                    acknowledged.extend(if multiple { 0..=last } else { last..=last });
                }
            }
            while let Some((last, multiple)) = unacked_deliveries.take() {
                acknowledged.extend(if multiple { 0..=last } else { last..=last });
            }
            assert_eq!(acknowledged, (0..40).collect(), "seed {seed}: every delivery is answered in the end");
        }
    }
}
