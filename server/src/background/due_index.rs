//! The schedule in Redis is rebuilt from PostgreSQL: at start, every five minutes, and whenever it was found incomplete.
//!
//! Only differences are written. A job that is fired while the rebuild runs may be noted with its old instant; the
//! dispatcher then wakes once for nothing and mends it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use milvaion_protocol::id::JobId;
use tokio::sync::Notify;

use super::BackgroundTask;
use crate::{cache::Cache, clock::Clock, faults, store::Store};

/// How many jobs are read at once.
const REBUILD_PAGE: i64 = 10_000;

/// The task.
#[derive(Debug)]
pub struct DueIndexRebuilder {
    /// The truth.
    pub store: Store,
    /// The copy.
    pub cache: Cache,
    /// Aligned with the database on the way.
    pub clock: Clock,
    /// Wakes the dispatcher: what it sleeps on was wrong.
    pub activate_dispatcher: Arc<Notify>,
    /// How often.
    pub period: Duration,
}

/// What one rebuild did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueIndexReport {
    /// Jobs with a due instant.
    pub jobs: usize,
    /// Members added or moved.
    pub noted: usize,
    /// Members removed.
    pub removed: usize,
}

impl BackgroundTask for DueIndexRebuilder {
    const NAME: &'static str = "due-index";
    type Report = DueIndexReport;

    fn period(&self) -> Duration {
        self.period
    }

    async fn tick(&mut self) -> anyhow::Result<DueIndexReport> {
        // What is due is judged by this clock, and by PostgreSQL's in the end: let them agree before they are compared.
        self.store.align(&self.clock).await?;
        let mut found: HashMap<String, f64> = self.cache.scheduled().await?.into_iter().collect();
        let mut rebuilt = DueIndexReport::default();
        let mut after = JobId::default();
        loop {
            let slice = self.store.schedule_slice(after, REBUILD_PAGE).await?;
            let Some((last, _)) = slice.last() else { break };
            after = *last;
            rebuilt.jobs += slice.len();
            let wrong: Vec<_> = slice
                .into_iter()
                .filter(|(id, at)| !found.remove(&id.to_string()).is_some_and(|score| Cache::matches_score(score, *at)))
                .map(|(id, at)| (id, Some(at)))
                .collect();
            rebuilt.noted += wrong.len();
            self.cache.note_due(&wrong).await?;
            faults::point("due_index.mid_rebuild");
        }
        let gone: Vec<String> = found.into_keys().collect();
        rebuilt.removed = gone.len();
        for some in gone.chunks(1_000) {
            self.cache.remove_members(some).await?;
        }
        self.cache.mark_complete().await?;
        if rebuilt.noted > 0 {
            self.activate_dispatcher.notify_one();
        }
        Ok(rebuilt)
    }

    fn is_notable(report: &DueIndexReport) -> bool {
        report.noted + report.removed > 0
    }
}
