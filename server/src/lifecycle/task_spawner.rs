//! Spawns background tasks.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::background::{
    BackgroundTask,
    driver::{drive, drive_led},
    lease::Leadership,
    task_status::TaskStatuses,
};

/// Spawns background tasks with the handles that all of them share.
pub(super) struct TaskSpawner {
    pub(super) group: TaskTracker,
    pub(super) statuses: TaskStatuses,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) stop: CancellationToken,
}

impl TaskSpawner {
    /// Runs `task` on every server. It ticks once per period, and whenever `activator` fires.
    pub(super) fn spawn<T: BackgroundTask>(&self, task: T, activator: Arc<Notify>) {
        self.group.spawn(drive(task, activator, self.statuses.clone(), self.stop.clone()));
    }

    /// Runs `task` while this server leads, and on every server while no server can lead. It ticks once per period, and
    /// whenever `activator` fires.
    pub(super) fn spawn_led<T: BackgroundTask>(&self, task: T, activator: Arc<Notify>) {
        let leadership = self.leadership.clone();
        self.group.spawn(drive_led(task, activator, self.statuses.clone(), leadership, self.stop.clone()));
    }
}
