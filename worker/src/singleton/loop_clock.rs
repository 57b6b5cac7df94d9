//! The clock of a loop: the wall clock, or one that follows the paused clock of a test.

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::{clock, singleton::pace::ClockMoment};

/// The source of wall clock time for one loop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoopClock {
    /// The clock of the machine.
    System,
    /// A clock that showed `wall` at `instant` and runs with the monotonic clock since.
    From {
        /// The instant.
        instant: Instant,
        /// The time it showed.
        wall: DateTime<Utc>,
    },
}

impl LoopClock {
    /// Returns the current instant on both clocks.
    pub(crate) fn now(self) -> ClockMoment {
        let now = Instant::now();
        let wall = match self {
            Self::System => clock::now(),
            Self::From { instant, wall } => wall + chrono::TimeDelta::from_std(now - instant).unwrap_or_default(),
        };
        ClockMoment { instant: now, wall }
    }
}
