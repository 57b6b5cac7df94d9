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
pub(crate) struct Receipts(Arc<Counter>);

struct Counter {
    channel: Channel,
    ledger: Mutex<Ledger>,
}

/// The duty to answer one delivery. Dropped unanswered it stays open, and the delivery goes back to its queue with the
/// channel's end.
#[must_use = "every delivery is answered"]
pub(crate) struct Receipt {
    counter: Arc<Counter>,
    tag: u64,
}

impl Receipts {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(Arc::new(Counter { channel, ledger: Mutex::default() }))
    }

    /// Notes a delivery. To be called in the order the channel brought them.
    pub(crate) fn open(&self, tag: u64) -> Receipt {
        self.0.lock().owed.insert(tag);
        Receipt { counter: self.0.clone(), tag }
    }

    /// How many deliveries are not answered yet.
    pub(crate) fn owed(&self) -> usize {
        self.0.lock().owed.len()
    }

    /// The channel the deliveries came by.
    pub(crate) fn channel(&self) -> &Channel {
        &self.0.channel
    }
}

impl Receipt {
    /// The broker may forget the delivery.
    pub(crate) async fn ack(self) {
        if self.counter.lock().ready(self.tag) {
            self.counter.send().await;
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
        match self.counter.channel.basic_nack(self.tag, options).await {
            // Not before: an acknowledgement of a whole stretch would overtake the refusal and cover it.
            Ok(()) => drop(self.counter.lock().owed.remove(&self.tag)),
            Err(error) => self.counter.lament(self.tag, &error),
        }
    }
}

impl Counter {
    /// Sends acknowledgements until none is ready. Must run to its end, or nobody sends any more; deliveries' tasks do.
    async fn send(&self) {
        loop {
            let Some((tag, multiple)) = self.lock().take() else { return };
            if let Err(error) = self.channel.basic_ack(tag, BasicAckOptions { multiple }).await {
                self.lament(tag, &error);
            }
        }
    }

    fn lament(&self, tag: u64, error: &lapin::Error) {
        // The broker delivers it again, and the claim recognises it.
        tracing::debug!(delivery.tag = tag, error = %error, "a delivery could not be answered: its channel is gone");
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Ledger {
    /// Deliveries that may not be acknowledged yet.
    owed: BTreeSet<u64>,
    /// Deliveries that may.
    ready: BTreeSet<u64>,
    sending: bool,
}

impl Ledger {
    /// Notes that a delivery may be acknowledged. Answers whether the caller is the one to send.
    fn ready(&mut self, tag: u64) -> bool {
        self.owed.remove(&tag);
        self.ready.insert(tag);
        !std::mem::replace(&mut self.sending, true)
    }

    /// The next acknowledgement: up to which delivery, and whether those before it are meant too.
    fn take(&mut self) -> Option<(u64, bool)> {
        let beyond = match self.owed.first() {
            Some(owed) => self.ready.split_off(owed),
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
        let mut ledger = Ledger { owed: (1..=9).collect(), ..Ledger::default() };
        assert!(ledger.ready(2), "the first sends");
        for tag in [3, 1, 6, 8, 7] {
            assert!(!ledger.ready(tag), "the others leave it to the first");
        }
        assert_eq!(ledger.take(), Some((3, true)));
        assert_eq!(ledger.take(), Some((6, false)), "4 and 5 still wait");
        ledger.ready(4);
        assert_eq!(ledger.take(), Some((4, false)));
        ledger.ready(5);
        assert_eq!(ledger.take(), Some((8, true)), "9 still waits");
        assert_eq!(ledger.take(), None);
        assert!(ledger.ready(9), "whoever comes after the last one sends again");
        assert_eq!(ledger.take(), Some((9, false)));
    }

    #[test]
    fn no_acknowledgement_ever_covers_what_is_owed() {
        for seed in 0..500_u64 {
            let mut ledger = Ledger { owed: (0..40).collect(), ..Ledger::default() };
            let (mut state, mut acknowledged) = (seed, BTreeSet::new());
            while !ledger.owed.is_empty() {
                // A small generator of our own: the cases must be the same on every run.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let place = (state >> 33) as usize % ledger.owed.len();
                let tag = *ledger.owed.iter().nth(place).expect("within its length");
                ledger.ready(tag);
                if state >> 60 < 6
                    && let Some((last, multiple)) = ledger.take()
                {
                    assert!(!ledger.owed.contains(&last), "seed {seed}");
                    assert!(!multiple || ledger.owed.range(..last).next().is_none(), "seed {seed}");
                    acknowledged.extend(if multiple { 0..=last } else { last..=last });
                }
            }
            while let Some((last, multiple)) = ledger.take() {
                acknowledged.extend(if multiple { 0..=last } else { last..=last });
            }
            assert_eq!(acknowledged, (0..40).collect(), "seed {seed}: every delivery is answered in the end");
        }
    }
}
