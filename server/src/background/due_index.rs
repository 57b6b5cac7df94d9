//! Compares the due index in Redis with PostgreSQL: at start, every five minutes, and when it was found incomplete.
//!
//! Only differences are written, in slices of a thousand jobs, so that Redis serves claims and leases in between. Jobs
//! change meanwhile. A missing entry is therefore added only if it is still missing; a different one is read from
//! PostgreSQL again, after it was read from Redis, and replaced only if Redis still holds what was read. Entries without a
//! job are searched for only if the index has more entries than there are jobs.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::JobId;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    cache::{
        Cache,
        schedule::{DueChange, REQUEST_ENTRIES},
    },
    clock::Clock,
    engine::{RunsOn, Service, context::Context},
    faults,
    store::Store,
};

/// The number of jobs read per query.
const REBUILD_PAGE: i64 = REQUEST_ENTRIES as i64;

/// The background task that rebuilds the due index.
#[derive(Debug)]
pub struct DueIndexRebuilder {
    /// The PostgreSQL store, which the index is built from.
    pub store: Store,
    /// The Redis cache, which holds the index.
    pub cache: Cache,
    /// The server's clock, which each rebuild aligns with PostgreSQL's.
    pub clock: Clock,
    /// The activator of the dispatcher, whose sleep was based on the outdated index.
    pub activate_dispatcher: Arc<Notify>,
    /// The time between two rebuilds.
    pub period: Duration,
}

impl DueIndexRebuilder {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            clock: context.clock.clone(),
            activate_dispatcher: context.activators.dispatcher.clone(),
            period: context.config.background.rebuild,
        }
    }
}

/// The result of one rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DueIndexReport {
    /// Jobs with a due time.
    pub jobs: usize,
    /// Index entries that were added or moved.
    pub noted: usize,
    /// Index entries that were removed.
    pub removed: usize,
}

impl DueIndexRebuilder {
    /// Compares the entries of some jobs, and writes those that differ. Returns their number.
    async fn compare(&self, jobs: &[(JobId, DateTime<Utc>)]) -> anyhow::Result<usize> {
        let ids: Vec<JobId> = jobs.iter().map(|(id, _)| *id).collect();
        let scores = self.cache.scores(&ids).await?;
        let mut changes = Vec::new();
        let mut different = HashMap::new();
        for ((id, at), score) in jobs.iter().zip(scores) {
            match score {
                None => changes.push(DueChange { id: *id, seen: None, at: Some(*at) }),
                Some(score) if Cache::matches_score(score, *at) => {}
                Some(score) => {
                    different.insert(*id, score);
                }
            }
        }
        changes.extend(self.corrections(&different).await?);
        Ok(self.cache.replace_due(&changes).await?)
    }

    /// Returns the changes of entries that differed from PostgreSQL, and differ from what it holds now.
    async fn corrections(&self, entries: &HashMap<JobId, f64>) -> anyhow::Result<Vec<DueChange>> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Uuid> = entries.keys().map(|id| id.0).collect();
        let stored: HashMap<JobId, DateTime<Utc>> = self.store.due_times(&ids).await?.into_iter().collect();
        let changes =
            entries.iter().map(|(id, score)| DueChange { id: *id, seen: Some(*score), at: stored.get(id).copied() });
        Ok(changes
            .filter(|change| !change.at.zip(change.seen).is_some_and(|(at, score)| Cache::matches_score(score, at)))
            .collect())
    }

    /// Removes the entries of jobs that are not due at any time. Returns their number.
    async fn remove_strays(&self) -> anyhow::Result<usize> {
        let mut removed = 0;
        let mut cursor = 0;
        loop {
            let (next, entries) = self.cache.scan_due(cursor).await?;
            let is_id = |member: &str| Uuid::parse_str(member).is_ok();
            let foreign: Vec<String> =
                entries.iter().filter(|(member, _)| !is_id(member)).map(|(member, _)| member.clone()).collect();
            removed += foreign.len();
            self.cache.remove_members(&foreign).await?;
            let entries: HashMap<JobId, f64> = entries
                .into_iter()
                .filter_map(|(member, score)| Some((JobId(Uuid::parse_str(&member).ok()?), score)))
                .collect();
            removed += self.remove_without_job(&entries).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(removed);
            }
        }
    }

    async fn remove_without_job(&self, entries: &HashMap<JobId, f64>) -> anyhow::Result<usize> {
        let ids: Vec<Uuid> = entries.keys().map(|id| id.0).collect();
        let known: HashSet<JobId> = self.store.due_times(&ids).await?.into_iter().map(|(id, _)| id).collect();
        let strays: Vec<DueChange> = entries
            .iter()
            .filter(|(id, _)| !known.contains(id))
            .map(|(id, score)| DueChange { id: *id, seen: Some(*score), at: None })
            .collect();
        if strays.is_empty() {
            return Ok(0);
        }
        let removed = self.cache.replace_due(&strays).await?;
        // A job that was resumed meanwhile may have written the same entry as the stray one.
        let ids: Vec<Uuid> = strays.iter().map(|stray| stray.id.0).collect();
        let resumed = self.store.due_times(&ids).await?;
        let resumed: Vec<DueChange> =
            resumed.into_iter().map(|(id, at)| DueChange { id, seen: None, at: Some(at) }).collect();
        Ok(removed - self.cache.replace_due(&resumed).await?.min(removed))
    }
}

impl Service for DueIndexRebuilder {
    const NAME: &'static str = "due-index";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    const TIME_LIMIT: Duration = Duration::from_secs(120);
    type Report = DueIndexReport;

    fn period(&self) -> Duration {
        self.period
    }

    async fn tick(&mut self) -> anyhow::Result<DueIndexReport> {
        // This clock decides what is due, and PostgreSQL's clock confirms it, so they are aligned before the
        // comparison.
        self.store.align(&self.clock).await?;
        let mut report = DueIndexReport::default();
        let mut after = JobId::default();
        loop {
            let slice = self.store.schedule_slice(after, REBUILD_PAGE).await?;
            let Some((last, _)) = slice.last() else { break };
            after = *last;
            report.jobs += slice.len();
            report.noted += self.compare(&slice).await?;
            faults::crash_point("due_index.mid_rebuild");
        }
        if self.cache.due_count().await? > report.jobs {
            report.removed = self.remove_strays().await?;
        }
        self.cache.mark_complete().await?;
        if report.noted > 0 {
            self.activate_dispatcher.notify_one();
        }
        Ok(report)
    }

    fn is_notable(report: &DueIndexReport) -> bool {
        report.noted + report.removed > 0
    }
}
