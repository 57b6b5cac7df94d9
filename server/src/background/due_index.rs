//! Rebuilds the due index in Redis from PostgreSQL: at start, every five minutes, and when it was found incomplete.
//!
//! Only differences are written. A job that is fired during the rebuild may be written with its previous due time. The
//! dispatcher then ticks once without work and repairs the entry.

use std::{collections::HashMap, sync::Arc, time::Duration};

use milvaion_protocol::id::JobId;
use tokio::sync::Notify;

use crate::{
    cache::Cache,
    clock::Clock,
    engine::{RunsOn, Service, context::Context},
    faults,
    store::Store,
};

/// The number of jobs read per query.
const REBUILD_PAGE: i64 = 10_000;

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueIndexReport {
    /// Jobs with a due time.
    pub jobs: usize,
    /// Index entries that were added or moved.
    pub noted: usize,
    /// Index entries that were removed.
    pub removed: usize,
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
        let mut found: HashMap<String, f64> = self.cache.scheduled().await?.into_iter().collect();
        let mut report = DueIndexReport::default();
        let mut after = JobId::default();
        loop {
            let slice = self.store.schedule_slice(after, REBUILD_PAGE).await?;
            let Some((last, _)) = slice.last() else { break };
            after = *last;
            report.jobs += slice.len();
            let outdated: Vec<_> = slice
                .into_iter()
                .filter(|(id, at)| !found.remove(&id.to_string()).is_some_and(|score| Cache::matches_score(score, *at)))
                .map(|(id, at)| (id, Some(at)))
                .collect();
            report.noted += outdated.len();
            self.cache.note_due(&outdated).await?;
            faults::crash_point("due_index.mid_rebuild");
        }
        let stale: Vec<String> = found.into_keys().collect();
        report.removed = stale.len();
        for chunk in stale.chunks(1_000) {
            self.cache.remove_members(chunk).await?;
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
