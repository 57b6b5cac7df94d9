//! Housekeeping: partitions made ahead, what has expired taken away, what should not be mended.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::Task;
use crate::{
    clock::Clock,
    command::sign_in::MEMORY,
    config::retention::RetentionConfig,
    store::{
        Store,
        partitions::{Daily, Dropped},
    },
};

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
    /// How long things are kept.
    pub retention: RetentionConfig,
    /// Wakes whoever hands out slots.
    pub release: Arc<Notify>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Partitions made.
    pub partitions: i32,
    /// Partitions dropped, whole days.
    pub dropped: Vec<String>,
    /// Partitions old enough to be dropped in which an occurrence is still open.
    pub open: Vec<String>,
    /// Partitions that were being read when they should have been dropped.
    pub busy: Vec<String>,
    /// Failures that were too old.
    pub failures: u64,
    /// Messages nobody understood that were too old.
    pub dead_letters: u64,
    /// Keys of manual runs that were too old.
    pub trigger_keys: u64,
    /// Slots that belonged to nothing open: there should never be any.
    pub slots: u64,
    /// Sessions that had expired.
    pub sessions: u64,
    /// Minutes of the roll-up that were too old.
    pub stats: u64,
    /// Counts of wrong passphrases that have rested long enough.
    pub tries: u64,
    /// Invitations long used up or past.
    pub invites: u64,
}

impl Upkeep {
    async fn drop_days(&self, daily: Daily, before: DateTime<Utc>, kept: &mut Kept) -> anyhow::Result<()> {
        for day in self.store.days_before(daily, before).await? {
            let partition = daily.partition(day);
            match self.store.drop_day(daily, day).await? {
                Dropped::Gone => kept.dropped.push(partition),
                Dropped::Busy => kept.busy.push(partition),
                Dropped::HasOpen => {
                    tracing::warn!(
                        partition,
                        "a day is older than it is to be kept, but an occurrence of it is still open; cancel it to let the day go"
                    );
                    kept.open.push(partition);
                }
            }
        }
        Ok(())
    }
}

impl Task for Upkeep {
    const NAME: &'static str = "upkeep";
    type Report = Kept;

    fn period(&self) -> Duration {
        Duration::from_secs(3_600)
    }

    async fn tick(&mut self) -> anyhow::Result<Kept> {
        let now = self.clock.now();
        // First what the next day cannot do without.
        let mut kept = Kept { partitions: self.store.ensure_partitions(now).await?, ..Kept::default() };
        kept.slots = self.store.repair_slots().await?;
        if kept.slots > 0 {
            tracing::error!(slots = kept.slots, "slots belonged to nothing that is open; they are free again");
            self.release.notify_one();
        }
        // By a clock that was just set, everything may be too old at once, and what is dropped does not come back.
        if self.clock.is_doubtful() {
            return Ok(kept);
        }
        kept.sessions = self.store.delete_expired_sessions(now).await?;
        kept.stats = self.store.forget_stats(now - KEEP_STATS).await?;
        kept.tries = self.store.delete_old_tries(now - MEMORY).await?;
        kept.invites = self.store.delete_old_invites(now - KEEP_INVITES).await?;
        kept.trigger_keys = self.store.forget_trigger_keys(now).await?;
        kept.failures = self.store.forget_failures(now - self.retention.failed).await?;
        kept.dead_letters = self.store.forget_dead_letters(now - self.retention.dead_letters).await?;
        self.drop_days(Daily::Logs, now - self.retention.logs, &mut kept).await?;
        self.drop_days(Daily::Occurrences, now - self.retention.occurrences, &mut kept).await?;
        Ok(kept)
    }

    fn is_news(report: &Kept) -> bool {
        // What stays open is told by a line of its own.
        Kept { open: Vec::new(), ..report.clone() } != Kept::default()
    }
}
