//! The last tick of each background task, from which the health of the server is derived.

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

/// The state of every background task. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct TaskStatuses {
    entries: Arc<Mutex<BTreeMap<&'static str, TaskRecord>>>,
}

/// The health of one background task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskHealth {
    /// The last tick succeeded.
    Healthy,
    /// The last tick failed, with this error.
    Failing(String),
    /// Another server does the task's work, and this one is ready to take over.
    Standby,
    /// The task has not ticked for three periods, or never.
    Stalled,
}

impl TaskStatuses {
    /// Records a tick of a task whose next tick follows within `period`.
    pub fn record_tick(&self, name: &'static str, period: Duration, failure: Option<String>) {
        if let Ok(mut entries) = self.entries.lock() {
            let at = Instant::now();
            entries.insert(name, TaskRecord { at, due: at + 3 * period, failure, is_standby: false });
        }
    }

    /// Records that a task is on standby, which it records again within `period`.
    pub fn record_standby(&self, name: &'static str, period: Duration) {
        if let Ok(mut entries) = self.entries.lock() {
            let at = Instant::now();
            entries.insert(name, TaskRecord { at, due: at + 3 * period, failure: None, is_standby: true });
        }
    }

    /// Returns the health of a task.
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

    /// Returns the time since the last tick of a task.
    #[must_use]
    pub fn since_last_tick(&self, name: &str) -> Option<Duration> {
        self.entries.lock().ok()?.get(name).map(|entry| entry.at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn task_that_misses_three_periods_is_stalled() {
        let task_statuses = TaskStatuses::default();
        assert_eq!(task_statuses.health("x"), TaskHealth::Stalled);
        task_statuses.record_tick("x", Duration::from_secs(1), None);
        tokio::time::advance(Duration::from_millis(2_900)).await;
        assert_eq!(task_statuses.health("x"), TaskHealth::Healthy);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert_eq!(task_statuses.health("x"), TaskHealth::Stalled);
    }

    #[tokio::test(start_paused = true)]
    async fn standby_task_that_stops_reporting_is_stalled() {
        let task_statuses = TaskStatuses::default();
        task_statuses.record_standby("x", Duration::from_secs(1));
        assert_eq!(task_statuses.health("x"), TaskHealth::Standby);
        tokio::time::advance(Duration::from_millis(3_100)).await;
        assert_eq!(task_statuses.health("x"), TaskHealth::Stalled);
    }
}
