//! The schedule in Redis is rebuilt from PostgreSQL: at start, every five minutes, and whenever it was found incomplete.
//!
//! Only differences are written. A job that is fired while the rebuild runs may be noted with its old instant; the
//! dispatcher then wakes once for nothing and mends it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use milvaion_protocol::id::JobId;
use tokio::sync::Notify;

use super::Task;
use crate::{cache::Cache, clock::Clock, faults, store::Store};

/// How many jobs are read at once.
const SLICE: i64 = 10_000;

/// The task.
#[derive(Debug)]
pub struct DueIndex {
    /// The truth.
    pub store: Store,
    /// The copy.
    pub cache: Cache,
    /// Aligned with the database on the way.
    pub clock: Clock,
    /// Wakes the dispatcher: what it sleeps on was wrong.
    pub dispatch: Arc<Notify>,
    /// How often.
    pub every: Duration,
}

/// What one rebuild did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Jobs with a due instant.
    pub jobs: usize,
    /// Members added or moved.
    pub noted: usize,
    /// Members removed.
    pub removed: usize,
}

impl Task for DueIndex {
    const NAME: &'static str = "due-index";
    type Report = Rebuilt;

    fn period(&self) -> Duration {
        self.every
    }

    async fn tick(&mut self) -> anyhow::Result<Rebuilt> {
        // What is due is judged by this clock, and by PostgreSQL's in the end: let them agree before they are compared.
        self.store.align(&self.clock).await?;
        let mut found: HashMap<String, f64> = self.cache.scheduled().await?.into_iter().collect();
        let mut rebuilt = Rebuilt::default();
        let mut after = JobId::default();
        loop {
            let slice = self.store.schedule_slice(after, SLICE).await?;
            let Some((last, _)) = slice.last() else { break };
            after = *last;
            rebuilt.jobs += slice.len();
            let wrong: Vec<_> = slice
                .into_iter()
                .filter(|(id, at)| !found.remove(&id.to_string()).is_some_and(|score| Cache::says(score, *at)))
                .map(|(id, at)| (id, Some(at)))
                .collect();
            rebuilt.noted += wrong.len();
            self.cache.note_due(&wrong).await?;
            faults::point("cp10");
        }
        let gone: Vec<String> = found.into_keys().collect();
        rebuilt.removed = gone.len();
        for some in gone.chunks(1_000) {
            self.cache.forget(some).await?;
        }
        self.cache.mark_complete().await?;
        if rebuilt.noted > 0 {
            self.dispatch.notify_one();
        }
        Ok(rebuilt)
    }

    fn is_news(report: &Rebuilt) -> bool {
        report.noted + report.removed > 0
    }
}
