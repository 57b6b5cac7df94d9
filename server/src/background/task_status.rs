//! When each loop last did its work: what health is judged by.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

#[derive(Clone, Debug)]
struct TaskRecord {
    at: Instant,
    due: Instant,
    failure: Option<String>,
    is_standby: bool,
}

/// The state of every loop. Cloning gives the same one.
#[derive(Clone, Debug, Default)]
pub struct TaskStatuses {
    entries: Arc<Mutex<BTreeMap<&'static str, TaskRecord>>>,
}

/// How one loop is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskHealth {
    /// It works.
    Healthy,
    /// Its last tick failed.
    Failing(String),
    /// Another server does its work; this one is ready to.
    Standby,
    /// It has not ticked for three periods, or never.
    Stalled,
}

impl TaskStatuses {
    /// A loop has ticked and means to do so again within `period`.
    pub fn record_tick(&self, name: &'static str, period: Duration, failure: Option<String>) {
        if let Ok(mut entries) = self.entries.lock() {
            let at = Instant::now();
            entries.insert(name, TaskRecord { at, due: at + 3 * period, failure, is_standby: false });
        }
    }

    /// A loop waits because another server does its work, and will say so again within `period`.
    pub fn record_standby(&self, name: &'static str, period: Duration) {
        if let Ok(mut entries) = self.entries.lock() {
            let at = Instant::now();
            entries.insert(name, TaskRecord { at, due: at + 3 * period, failure: None, is_standby: true });
        }
    }

    /// How a loop is.
    #[must_use]
    pub fn health(&self, name: &str) -> TaskHealth {
        let Ok(entries) = self.entries.lock() else { return TaskHealth::Stalled };
        match entries.get(name) {
            None => TaskHealth::Stalled,
            Some(entry) if Instant::now() > entry.due => TaskHealth::Stalled,
            Some(TaskRecord { failure: Some(failure), .. }) => TaskHealth::Failing(failure.clone()),
            Some(TaskRecord { is_standby: true, .. }) => TaskHealth::Standby,
            Some(_) => TaskHealth::Healthy,
        }
    }

    /// How long ago a loop ticked.
    #[must_use]
    pub fn since_last_tick(&self, name: &str) -> Option<Duration> {
        self.entries.lock().ok()?.get(name).map(|entry| entry.at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_misses_three_periods_is_silent() {
        let task_statuses = TaskStatuses::default();
        assert_eq!(task_statuses.health("x"), TaskHealth::Stalled);
        task_statuses.record_tick("x", Duration::from_secs(1), None);
        tokio::time::advance(Duration::from_millis(2_900)).await;
        assert_eq!(task_statuses.health("x"), TaskHealth::Healthy);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert_eq!(task_statuses.health("x"), TaskHealth::Stalled);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_by_is_not_silent_but_must_say_so() {
        let task_statuses = TaskStatuses::default();
        task_statuses.record_standby("x", Duration::from_secs(1));
        assert_eq!(task_statuses.health("x"), TaskHealth::Standby);
        tokio::time::advance(Duration::from_millis(3_100)).await;
        assert_eq!(task_statuses.health("x"), TaskHealth::Stalled);
    }
}
