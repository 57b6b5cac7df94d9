//! The pauses between two times at which a server gives the leadership back.

use std::time::Duration;

use tokio::time::Instant;

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
