//! Ends occurrences that no worker has begun for too long.
//!
//! An occurrence whose worker never comes back would stay queued for ever, and one of them each second would be thirty
//! million rows a year in the table that everything reads. After the limit it is recorded as skipped, with the reason. A
//! job may have a shorter limit for its first attempts, counted from the due time. Each occurrence has its own copy of it.
//!
//! An occurrence that a worker has begun within the start limit is queued until the report arrives, which may take
//! minutes after an outage. The claim in Redis shows it. The server claims what it skips, so that no worker begins it
//! meanwhile. While Redis does not answer, or has just lost its data, no start limit is applied.
//!
//! Its message may still wait in a queue of its job type. A worker checks an old message with the server before it starts
//! it, and the mark in Redis stops a younger one.

use std::{mem, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_api::{events::LiveEvent, views::OccurrenceRow};
use milvaion_protocol::id::OccurrenceId;
use tokio::time::Instant;

use crate::{
    cache::Cache,
    clock::Clock,
    engine::{RunsOn, Service, activators::Activators, context::Context},
    live::Hub,
    store::{Result, Store, finish::MissedRun, occurrences::ChangedRun},
};

/// The time between two ticks, and thereby the time for which an occurrence may still begin after its start limit.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);
/// The most occurrences that one statement reads and one transaction ends.
const EXPIRY_BATCH: i64 = 500;

/// The background task that ends occurrences that wait for too long.
#[derive(Debug)]
pub struct QueueExpiry {
    /// The PostgreSQL store.
    pub store: Store,
    /// The Redis cache with the claims.
    pub cache: Cache,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
    /// The time after which an occurrence that no worker has begun is skipped.
    pub limit: chrono::Duration,
    /// The activators of the other tasks.
    pub activators: Activators,
    /// True if the last request for claims has failed, which is logged once.
    pub is_redis_away: bool,
}

impl QueueExpiry {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
            limit: context.config.background.expire_queued,
            activators: context.activators.clone(),
            is_redis_away: false,
        }
    }

    /// Skips those of the occurrences that no worker has claimed. Returns them, or none if the claims are unknown.
    async fn skip_unclaimed(
        &mut self,
        mut missed: Vec<MissedRun>,
        now: DateTime<Utc>,
    ) -> Result<Option<Vec<ChangedRun>>> {
        if missed.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let ids: Vec<OccurrenceId> = missed.iter().map(|run| run.id).collect();
        let claimed = match self.cache.claim_for_expiry(&ids).await {
            Ok(claimed) => {
                self.is_redis_away = false;
                claimed
            }
            Err(error) => {
                if !mem::replace(&mut self.is_redis_away, true) {
                    tracing::warn!(
                        error = %error,
                        "the claims of occurrences that have passed their start limit cannot be read from Redis; they are \
                         skipped once it answers"
                    );
                }
                None
            }
        };
        let Some(claimed) = claimed else { return Ok(None) };
        missed.retain(|run| claimed.contains(&run.id));
        self.store.skip_missed_starts(&missed, now).await.map(Some)
    }

    /// Notifies Redis, the slot granter and the browsers of occurrences that were skipped. Returns their number.
    async fn announce(&self, ended: Vec<ChangedRun>, now: DateTime<Utc>) -> usize {
        if ended.is_empty() {
            return 0;
        }
        let pausing = ended.iter().filter(|run| run.starts_pause);
        self.activators.ended_jobs.add(pausing.map(|run| run.row.job_id));
        if ended.iter().any(|run| run.frees_slot || run.starts_pause) {
            self.activators.slot_granter.notify_one();
        }
        let rows: Vec<OccurrenceRow> = ended.into_iter().map(|run| run.row).collect();
        let attempts: Vec<_> = rows.iter().map(|row| (row.id, row.attempt.unsigned_abs())).collect();
        if let Err(error) = self.cache.end_claims(&attempts).await {
            tracing::warn!(
                error = %error,
                "the end of {} skipped occurrences was not written to Redis; a message in flight may still start one",
                attempts.len()
            );
        }
        self.hub.publish(now, vec![LiveEvent::Occurrences { rows }]);
        attempts.len()
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct QueueExpiryReport {
    /// Occurrences that were skipped.
    pub skipped: usize,
    /// True if the tick ended before it had seen all.
    pub has_more: bool,
}

impl Service for QueueExpiry {
    const NAME: &'static str = "queue-expiry";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = QueueExpiryReport;

    fn period(&self) -> Duration {
        EXPIRY_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<QueueExpiryReport> {
        let mut report = QueueExpiryReport::default();
        // After a clock step, everything may look expired.
        if self.clock.is_settling() {
            return Ok(report);
        }
        let slice_end = Self::slice_end();
        loop {
            let now = self.clock.now();
            let expired = self.store.expire_queued(self.limit, EXPIRY_BATCH, now).await?;
            let skipped = self.announce(expired, now).await;
            if skipped == 0 {
                break;
            }
            report.skipped += skipped;
            if Instant::now() > slice_end {
                report.has_more = true;
                return Ok(report);
            }
        }
        // What a worker has claimed stays, so the next page begins after the last one.
        let mut last: Option<MissedRun> = None;
        loop {
            let now = self.clock.now();
            let missed = self.store.missed_starts(last.as_ref(), EXPIRY_BATCH, now).await?;
            let is_last_page = missed.len() < usize::try_from(EXPIRY_BATCH).unwrap_or(usize::MAX);
            last = missed.last().cloned();
            let Some(skipped) = self.skip_unclaimed(missed, now).await? else { break };
            report.skipped += self.announce(skipped, now).await;
            if is_last_page {
                break;
            }
            if Instant::now() > slice_end {
                report.has_more = true;
                break;
            }
        }
        Ok(report)
    }

    fn has_more(report: &QueueExpiryReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &QueueExpiryReport) -> bool {
        report.skipped > 0
    }
}
