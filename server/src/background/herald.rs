//! Tells Redis and the other servers that jobs are due again.
//!
//! Whoever finds that out while it takes in what workers report must not wait for Redis; it leaves the news here and goes
//! on. What is lost when a server dies in between is found again by the rebuild of the index.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use chrono::{DateTime, Utc};
use protocol::id::JobId;
use tokio::sync::Notify;

use super::Task;
use crate::cache::Cache;

/// Where news is left. Cloning gives the same place.
#[derive(Clone, Debug, Default)]
pub struct News {
    due: Arc<Mutex<Vec<(JobId, Option<DateTime<Utc>>)>>>,
    bell: Arc<Notify>,
}

impl News {
    /// These jobs are due again.
    pub fn due_again(&self, jobs: impl IntoIterator<Item = (JobId, DateTime<Utc>)>) {
        if let Ok(mut due) = self.due.lock() {
            due.extend(jobs.into_iter().map(|(id, at)| (id, Some(at))));
        }
        self.bell.notify_one();
    }

    /// Rings when there is news.
    #[must_use]
    pub fn bell(&self) -> Arc<Notify> {
        self.bell.clone()
    }
}

/// The task.
#[derive(Debug)]
pub struct Herald {
    /// What is to be told.
    pub news: News,
    /// Where to.
    pub cache: Cache,
    /// Wakes this server's dispatcher.
    pub dispatch: Arc<Notify>,
}

/// What one tick told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Jobs that are due again.
    pub jobs: usize,
}

impl Task for Herald {
    const NAME: &'static str = "herald";
    type Report = Told;

    fn period(&self) -> Duration {
        Duration::from_secs(30)
    }

    async fn tick(&mut self) -> anyhow::Result<Told> {
        let due = self.news.due.lock().map(|mut due| std::mem::take(&mut *due)).unwrap_or_default();
        if due.is_empty() {
            return Ok(Told::default());
        }
        self.dispatch.notify_one();
        self.cache.note_due(&due).await?;
        self.cache.wake().await?;
        Ok(Told { jobs: due.len() })
    }

    fn is_news(_: &Told) -> bool {
        false
    }
}
