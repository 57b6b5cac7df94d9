//! Runs a [`BackgroundTask`] until the server stops.
//!
//! The driver waits, ticks, logs the report and records the result in the task statuses. A failed or panicked tick is
//! logged, and the next tick tries again.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{BackgroundTask, lease::Leadership, task_status::TaskStatuses};
use crate::error::chain;

/// The minimum wait for a requested tick. It keeps a task from spinning on an item that is due but that another server
/// is already handling.
const MIN_TICK_DELAY: Duration = Duration::from_millis(1);
/// The time between two standby records of a task.
const STANDBY_REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Runs `task` until `stop`. The first tick runs at once, each later one when `activator` is notified or the period has
/// passed.
pub async fn drive<T: BackgroundTask>(
    mut task: T,
    activator: Arc<Notify>,
    task_statuses: TaskStatuses,
    stop: CancellationToken,
) {
    loop {
        tick(&mut task, &task_statuses).await;
        tokio::select! {
            () = tokio::time::sleep(pause(&task)) => {}
            () = activator.notified() => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Runs `task` until `stop`, but only while this server leads or while no server can lead. The first tick runs as soon
/// as it leads. When the lease ends, a running tick is dropped at its current await point, as if the process had
/// crashed there.
pub async fn drive_led<T: BackgroundTask>(
    mut task: T,
    activator: Arc<Notify>,
    task_statuses: TaskStatuses,
    mut leadership: watch::Receiver<Leadership>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let state = leadership.borrow_and_update().clone();
        if !state.may_work() {
            task_statuses.record_standby(T::NAME, STANDBY_REPORT_INTERVAL);
            tokio::select! {
                _ = tokio::time::timeout(STANDBY_REPORT_INTERVAL, changed(&mut leadership)) => {}
                () = stop.cancelled() => {}
            }
            continue;
        }
        // A notification that arrived while another server led was handled by that server. The first tick covers
        // everything in any case.
        let lease_end = state.held_lease().map(|lease| lease.ended().clone());
        let ended = async {
            match &lease_end {
                Some(token) => token.cancelled().await,
                None => changed(&mut leadership).await,
            }
        };
        let working = async {
            loop {
                tick(&mut task, &task_statuses).await;
                tokio::select! {
                    () = tokio::time::sleep(pause(&task)) => {}
                    () = activator.notified() => {}
                }
            }
        };
        tokio::select! {
            () = working => {}
            () = ended => {}
            () = stop.cancelled() => {}
        }
    }
}

async fn changed(leadership: &mut watch::Receiver<Leadership>) {
    if leadership.changed().await.is_err() {
        // The lease loop has ended, which happens only when the server stops.
        std::future::pending().await
    }
}

/// Returns the wait before the next tick. Periods get 10 % jitter so that servers do not query at the same time; a
/// requested tick gets none.
fn pause<T: BackgroundTask>(task: &T) -> Duration {
    let period = task.period().mul_f64(0.9 + 0.2 * rand::random::<f64>());
    task.next_tick_in().map_or(period, |wait| wait.max(MIN_TICK_DELAY).min(period))
}

async fn tick<T: BackgroundTask>(task: &mut T, task_statuses: &TaskStatuses) {
    let failure = match std::panic::AssertUnwindSafe(task.tick()).catch_unwind().await {
        Ok(Ok(report)) => {
            if T::is_notable(&report) {
                tracing::info!(task = T::NAME, report = ?report, "background task {} changed something", T::NAME);
            } else {
                tracing::debug!(task = T::NAME, report = ?report, "background task {} ticked", T::NAME);
            }
            None
        }
        Ok(Err(error)) => {
            let reason = chain(error.as_ref());
            tracing::warn!(task = T::NAME, error = reason, "background task {} failed and is retried", T::NAME);
            Some(reason)
        }
        Err(_) => {
            tracing::error!(task = T::NAME, "background task {} panicked and is retried", T::NAME);
            Some("the task panicked".to_owned())
        }
    };
    task_statuses.record_tick(T::NAME, task.period(), failure);
}
