//! The context of one run of a singleton loop.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One run of a singleton loop.
///
/// A clone can be moved into tasks that the run starts. A task that outlives the run must watch [`cancelled`](Self::cancelled),
/// because only the run itself is dropped when its time is over.
#[derive(Clone)]
pub struct Tick {
    pub(crate) name: Arc<str>,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    pub(crate) due: DateTime<Utc>,
    pub(crate) due_at: Instant,
    pub(crate) cancel: CancellationToken,
}

impl Tick {
    /// Returns the name of the loop.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fencing token: a number that rises with each change of the leader and is never granted twice.
    ///
    /// Redis can grant a lease to a second instance after it lost data. A system that keeps the highest epoch beside its
    /// data, and refuses writes with a lower one, is not affected by the former leader:
    ///
    /// ```sql
    /// UPDATE prices SET price = $1, epoch = $2 WHERE symbol = $3 AND epoch <= $2
    /// ```
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of this run, counted from 1 since this instance became the leader.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the time at which this run was due, with the random delay of the option
    /// [`jitter`](crate::LoopBuilder::jitter).
    #[must_use]
    pub const fn due(&self) -> DateTime<Utc> {
        self.due
    }

    /// Returns the time since this run was due.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.due_at.elapsed()
    }

    /// Waits until this run should end: the instance stops, it cannot renew its lease, or a user disabled the loop or asked
    /// for a hand-over. The run is dropped a sixth of the lease later.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Returns true if this run should end; see [`cancelled`](Self::cancelled).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Returns the token behind [`cancelled`](Self::cancelled), for code that takes one.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.cancel
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick")
            .field("name", &self.name)
            .field("epoch", &self.epoch)
            .field("number", &self.number)
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}
