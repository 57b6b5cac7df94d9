//! Runs a [`BackgroundTask`] for ever: waits, ticks, logs once, notes it on the board. A tick that fails or panics is tried again.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{BackgroundTask, lease::Leadership, task_status::TaskStatuses};
use crate::error::chain;

/// An appointment is rounded up to this, so that one that is due and still there, because another server is just seeing
/// to it, is not looked at without a breath.
const MIN_TICK_DELAY: Duration = Duration::from_millis(1);
/// How often a task that stands by says so.
const STANDBY_REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Runs `task` until `stop`. The first tick comes at once; later ones when `wake` says so or the period is over.
pub async fn drive<T: BackgroundTask>(
    mut task: T,
    wake: Arc<Notify>,
    task_statuses: TaskStatuses,
    stop: CancellationToken,
) {
    loop {
        tick(&mut task, &task_statuses).await;
        tokio::select! {
            () = tokio::time::sleep(pause(&task)) => {}
            () = wake.notified() => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Runs `task` until `stop`, but only while this server leads, or while nobody can. The first tick comes as soon as it
/// leads; a tick that runs when the term ends is dropped where it stands, as if the process had died there.
pub async fn drive_led<T: BackgroundTask>(
    mut task: T,
    wake: Arc<Notify>,
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
        // What was asked for while another led has been done by it; the first tick looks at everything anyway.
        let term = state.held_lease().map(|term| term.ended().clone());
        let over = async {
            match &term {
                Some(term) => term.cancelled().await,
                None => changed(&mut leadership).await,
            }
        };
        let working = async {
            loop {
                tick(&mut task, &task_statuses).await;
                tokio::select! {
                    () = tokio::time::sleep(pause(&task)) => {}
                    () = wake.notified() => {}
                }
            }
        };
        tokio::select! {
            () = working => {}
            () = over => {}
            () = stop.cancelled() => {}
        }
    }
}

async fn changed(leadership: &mut watch::Receiver<Leadership>) {
    if leadership.changed().await.is_err() {
        // The lease's loop is gone, which only happens when the server stops.
        std::future::pending().await
    }
}

/// Until the next tick. Periods are spread a little, so that servers do not all ask at once; an appointment is kept.
fn pause<T: BackgroundTask>(task: &T) -> Duration {
    let period = task.period().mul_f64(0.9 + 0.2 * rand::random::<f64>());
    task.next_tick_in().map_or(period, |wait| wait.max(MIN_TICK_DELAY).min(period))
}

async fn tick<T: BackgroundTask>(task: &mut T, task_statuses: &TaskStatuses) {
    let failure = match std::panic::AssertUnwindSafe(task.tick()).catch_unwind().await {
        Ok(Ok(report)) => {
            if T::is_notable(&report) {
                tracing::info!(task = T::NAME, report = ?report, "{} did something", T::NAME);
            } else {
                tracing::debug!(task = T::NAME, report = ?report, "{} had nothing to do", T::NAME);
            }
            None
        }
        Ok(Err(error)) => {
            let reason = chain(error.as_ref());
            tracing::warn!(task = T::NAME, error = reason, "{} failed; it will be tried again", T::NAME);
            Some(reason)
        }
        Err(_) => {
            tracing::error!(task = T::NAME, "{} panicked; it will be tried again", T::NAME);
            Some("it panicked".to_owned())
        }
    };
    task_statuses.record_tick(T::NAME, task.period(), failure);
}
