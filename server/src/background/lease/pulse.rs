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

/// The times at which a server gives the leadership back, so that it does not go round: what hinders one server may hinder
/// all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandBacks {
    last: Option<Instant>,
    pause: Duration,
}

/// The shortest time between two of them. It doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(300);
/// The longest time between two of them.
const LONGEST_PAUSE: Duration = Duration::from_secs(3 * 3_600);

impl HandBacks {
    /// Returns true if the leadership may be given back now.
    pub(super) fn is_allowed(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= self.pause)
    }

    /// Records that it is given back.
    pub(super) fn record(&mut self) {
        // A server that has led well for twice the pause begins anew.
        let is_fresh = self.last.is_none_or(|last| last.elapsed() >= 2 * self.pause);
        self.pause = if is_fresh { FIRST_PAUSE } else { (2 * self.pause).min(LONGEST_PAUSE) };
        self.last = Some(Instant::now());
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

    #[tokio::test(start_paused = true)]
    async fn leadership_is_given_back_at_most_once_in_a_pause_that_doubles() {
        let mut returns = HandBacks::default();
        assert!(returns.is_allowed());
        for minutes in [5, 10, 20] {
            returns.record();
            tokio::time::advance(Duration::from_secs(minutes * 60 - 1)).await;
            assert!(!returns.is_allowed(), "{minutes}");
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(returns.is_allowed(), "{minutes}");
        }
        tokio::time::advance(Duration::from_secs(20 * 60)).await;
        returns.record();
        tokio::time::advance(FIRST_PAUSE).await;
        assert!(returns.is_allowed(), "it begins anew after a good time");
    }
}
