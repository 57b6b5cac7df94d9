//! How a worker ends.
//!
//! 1. Stop taking work: consumers are cancelled, deliveries that have not started go back to their queues.
//! 2. Wait for the runs, as long as the grace lasts.
//! 3. Interrupt the rest: their tokens fire, a second later they are dropped and reported as interrupted.
//! 4. Flush the reports, give back the claims of what nobody has heard of, say goodbye, close the connections and the
//!    outbox, where what could not be sent stays. The consuming one goes last: closing it earlier would send every
//!    unacknowledged delivery round again.
//!
//! A second signal makes the grace zero.

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::error::WorkerError,
    delivery::{claim_batcher::ClaimBatcher, run_table::RunTable},
    faults,
    reporting::reporter::Reporter,
};

/// How long interrupted runs may take to be reported: their last second, and some.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the broker may take to confirm the last reports.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last deliveries may take to be answered once their reports are confirmed, and their ends to be noted.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// The two signals of whoever ends the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShutdownSignals {
    /// Stop, in good order.
    pub(crate) stop: CancellationToken,
    /// Stop, and do not wait for runs.
    pub(crate) skip_grace: CancellationToken,
}

impl ShutdownSignals {
    /// Listens for SIGTERM and SIGINT: the first asks to stop, the second to hurry.
    pub(crate) fn from_signals() -> Result<Self, WorkerError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(WorkerError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(WorkerError::Signals)?;
        let signals = Self::default();
        let theirs = signals.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if theirs.stop.is_cancelled() {
                    tracing::info!("second signal: running occurrences are interrupted");
                    theirs.skip_grace.cancel();
                    return;
                }
                tracing::info!("stopping; a second signal interrupts what still runs");
                theirs.stop.cancel();
            }
        });
        Ok(signals)
    }
}

/// Steps 2 to 4 up to the flush: when this returns, nothing runs, and what could be told has been told.
pub(crate) async fn drain(runs: &TaskTracker, deliveries: &TaskTracker, end: &DrainContext<'_>) {
    runs.close();
    deliveries.close();
    if !runs.is_empty() {
        tracing::info!(running = runs.len(), grace_s = end.grace.as_secs(), "waiting for running occurrences");
    }
    tokio::select! {
        () = runs.wait() => {}
        () = tokio::time::sleep(end.grace) => tracing::warn!(running = runs.len(), "the grace is over: running occurrences are interrupted"),
        () = end.skip_grace.cancelled() => {}
    }
    end.interrupt.cancel();
    let _ = timeout(INTERRUPT_TIMEOUT, runs.wait()).await;
    faults::point("shutdown.before_flush");
    if timeout(FLUSH_TIMEOUT, end.reporter.flush()).await.is_err() {
        if end.is_durable {
            tracing::warn!("the broker did not confirm the last reports; the next process sends them from the outbox");
        } else {
            tracing::error!(
                "the broker did not confirm the last reports; the server will notice by the missing heartbeats"
            );
        }
    }
    let _ = timeout(ACK_TIMEOUT, deliveries.wait()).await;
    // The broker gives the messages of these to somebody who is to begin the same attempts. Not earlier: while their
    // reports may still get through, a second start would be one too many.
    for attempt in end.running.unconfirmed() {
        end.claim_batcher.release(attempt);
    }
    let _ = timeout(ACK_TIMEOUT, end.claim_batcher.flush()).await;
}

/// What the end of a worker goes by.
pub(crate) struct DrainContext<'a> {
    /// How long runs may go on.
    pub(crate) grace: Duration,
    /// Makes the grace zero.
    pub(crate) skip_grace: &'a CancellationToken,
    /// Interrupts the runs.
    pub(crate) interrupt: &'a CancellationToken,
    /// Holds the last reports.
    pub(crate) reporter: &'a Reporter,
    /// Whether they outlive the process.
    pub(crate) is_durable: bool,
    /// Holds the last ends.
    pub(crate) claim_batcher: &'a ClaimBatcher,
    /// Knows what nobody has heard of.
    pub(crate) running: &'a RunTable,
}
