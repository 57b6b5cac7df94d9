//! The answer to the broker about one run, which has a message of its own or shares one with others.
//!
//! A bundle has one answer for all of its runs, when the last of them is settled: an acknowledgement if each has started or
//! needs no message any more, and otherwise a rejection without requeue. It never returns to its queue. What was refused
//! would come back at once, together with what has started, and be refused again; the server sends it in messages of its
//! own instead. Since each run settles only when its start is confirmed, so does the bundle: if the process dies before,
//! the broker has the message still.

use std::sync::{Arc, Mutex, PoisonError};

use super::acks::PendingAck;

/// The obligation to answer the broker about one run. If it is dropped without an answer, the message is not answered.
#[must_use = "every run is answered"]
pub(crate) enum RunAck {
    /// The run has a message of its own.
    Single(PendingAck),
    /// The run is part of a bundle.
    Bundled(Arc<Mutex<BundleAck>>),
}

/// The answer to a bundle.
pub(crate) struct BundleAck {
    /// Taken by the last run.
    pending_ack: Option<PendingAck>,
    runs: OpenRuns,
}

/// The runs of a bundle that are not settled.
#[derive(Debug)]
struct OpenRuns {
    count: usize,
    /// True if one of the others was refused.
    has_refusal: bool,
}

impl OpenRuns {
    /// Settles a run. Returns true if it was the last one.
    fn settle(&mut self, is_refused: bool) -> bool {
        self.count = self.count.saturating_sub(1);
        self.has_refusal |= is_refused;
        self.count == 0
    }
}

impl RunAck {
    /// Divides the answer to a bundle among its runs.
    pub(crate) fn of_bundle(pending_ack: PendingAck, count: usize) -> Vec<Self> {
        let runs = OpenRuns { count, has_refusal: false };
        let bundle = Arc::new(Mutex::new(BundleAck { pending_ack: Some(pending_ack), runs }));
        (0..count).map(|_| Self::Bundled(bundle.clone())).collect()
    }

    /// Acknowledges the run: it needs its message no more.
    pub(crate) async fn ack(self) {
        match self {
            Self::Single(pending_ack) => pending_ack.ack().await,
            Self::Bundled(bundle) => settle(&bundle, false).await,
        }
    }

    /// Refuses the run, so that another instance may take it.
    pub(crate) async fn give_back(self) {
        match self {
            Self::Single(pending_ack) => pending_ack.return_to_queue().await,
            Self::Bundled(bundle) => settle(&bundle, true).await,
        }
    }
}

/// Settles a run of a bundle, and answers the bundle if it was the last one.
async fn settle(bundle: &Mutex<BundleAck>, is_refused: bool) {
    let (pending_ack, has_refusal) = {
        let mut bundle = bundle.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = bundle.runs.settle(is_refused);
        (bundle.pending_ack.take_if(|_| is_last), bundle.runs.has_refusal)
    };
    match pending_ack {
        Some(pending_ack) if has_refusal => pending_ack.dead_letter().await,
        Some(pending_ack) => pending_ack.ack().await,
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_run_answers_for_all() {
        let mut runs = OpenRuns { count: 3, has_refusal: false };
        assert_eq!([runs.settle(false), runs.settle(true), runs.settle(false)], [false, false, true]);
        assert!(runs.has_refusal, "the bundle is rejected");
        let mut runs = OpenRuns { count: 2, has_refusal: false };
        assert_eq!([runs.settle(false), runs.settle(false)], [false, true]);
        assert!(!runs.has_refusal, "the bundle is acknowledged");
    }
}
