//! Housekeeping: partitions made ahead, what has expired taken away.

use std::time::Duration;

use super::Task;
use crate::{clock::Clock, command::sign_in::MEMORY, store::Store};

/// How long the roll-up is kept.
const KEEP_STATS: chrono::Duration = chrono::Duration::days(90);

/// How long an invitation is kept after it has ended.
const KEEP_INVITES: chrono::Duration = chrono::Duration::days(30);

/// The task.
#[derive(Debug)]
pub struct Upkeep {
    /// The truth.
    pub store: Store,
    /// What time it is.
    pub clock: Clock,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Partitions made.
    pub partitions: i32,
    /// Sessions that had expired.
    pub sessions: u64,
    /// Minutes of the roll-up that were too old.
    pub stats: u64,
    /// Counts of wrong passphrases that have rested long enough.
    pub tries: u64,
    /// Invitations long used up or past.
    pub invites: u64,
}

impl Task for Upkeep {
    const NAME: &'static str = "upkeep";
    type Report = Kept;

    fn period(&self) -> Duration {
        Duration::from_secs(3_600)
    }

    async fn tick(&mut self) -> anyhow::Result<Kept> {
        let now = self.clock.now();
        Ok(Kept {
            partitions: self.store.ensure_partitions(now).await?,
            sessions: self.store.delete_expired_sessions(now).await?,
            stats: self.store.forget_stats(now - KEEP_STATS).await?,
            tries: self.store.delete_old_tries(now - MEMORY).await?,
            invites: self.store.delete_old_invites(now - KEEP_INVITES).await?,
        })
    }

    fn is_news(report: &Kept) -> bool {
        *report != Kept::default()
    }
}
