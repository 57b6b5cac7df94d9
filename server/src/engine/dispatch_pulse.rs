//! The pulse of the dispatcher: the instant at which its next tick begins.
//!
//! The lease runs on a thread of its own and would be renewed for ever, whatever becomes of the dispatcher. It is therefore
//! renewed only while the dispatcher ticks, and otherwise left to another server.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The instant at which the next tick of the dispatcher begins. Clones share it.
#[derive(Clone, Debug)]
pub struct DispatchPulse(Arc<Mutex<Instant>>);

impl Default for DispatchPulse {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl DispatchPulse {
    /// Records a tick that succeeded. The next one begins within `pause`.
    pub fn expect_within(&self, pause: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + pause;
    }

    /// Returns true if no tick has succeeded for `limit` after the instant at which one was expected to begin.
    #[must_use]
    pub fn is_overdue(&self, limit: Duration) -> bool {
        Instant::now() > *self.0.lock().unwrap_or_else(PoisonError::into_inner) + limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn dispatcher_is_overdue_after_its_expected_tick() {
        let pulse = DispatchPulse::default();
        pulse.expect_within(Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(49)).await;
        assert!(!pulse.is_overdue(Duration::from_secs(20)));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(pulse.is_overdue(Duration::from_secs(20)));
        pulse.expect_within(Duration::ZERO);
        assert!(!pulse.is_overdue(Duration::from_secs(20)));
    }
}
