//! Runs a [`Task`] for ever: waits, ticks, logs once, notes it on the board. A tick that fails or panics is tried again.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Task, board::Board};
use crate::error::chain;

/// Runs `task` until `stop`. The first tick comes at once; later ones when `wake` says so or the period is over.
pub async fn drive<T: Task>(mut task: T, wake: Arc<Notify>, board: Board, stop: CancellationToken) {
    loop {
        let failure = match std::panic::AssertUnwindSafe(task.tick()).catch_unwind().await {
            Ok(Ok(report)) => {
                if T::is_news(&report) {
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
        board.beat(T::NAME, task.period(), failure);
        let pause = task.period().mul_f64(0.9 + 0.2 * rand::random::<f64>());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = wake.notified() => {}
            () = stop.cancelled() => return,
        }
    }
}
