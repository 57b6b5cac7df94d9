//! The orderly shutdown of a worker.
//!
//! 1. Stop taking work: cancel the consumers, and return deliveries that have not started to their queues.
//! 2. Wait for the runs until the shutdown grace is over.
//! 3. Interrupt the remaining runs: their tokens fire. A second later they are dropped and reported as interrupted.
//! 4. Flush the reports, release the claims of runs that the broker has no report of, send a goodbye, and close the
//!    connections and the outbox, which keeps what could not be sent. The consuming connection is closed last: closing
//!    it earlier would cause a redelivery of every unacknowledged delivery.
//!
//! A second signal sets the grace to zero. A signal after the worker has ended has its default effect again: it ends the
//! process.

use std::{
    io,
    sync::{
        Arc, LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::error::WorkerError,
    delivery::{claim_batcher::ClaimBatcher, run_table::RunTable},
    faults,
    reporting::reporter_inbox::Reporter,
};

/// Maximum time for interrupted runs to be reported: their last second, and a margin.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time for the broker to confirm the last reports.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for acknowledging the last deliveries once their reports are confirmed, and for marking their ends.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// The two signals that end the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShutdownSignals {
    /// Requests an orderly shutdown.
    pub(crate) stop: CancellationToken,
    /// Requests that the shutdown does not wait for runs.
    pub(crate) skip_grace: CancellationToken,
}

/// The workers of this process that listen for signals.
static LISTENING_WORKERS: Mutex<usize> = Mutex::new(0);
/// True while no worker listens, so that a signal has its default effect. Registered once, because a handler stays for the
/// rest of the process.
static HAS_DEFAULT_EFFECT: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// One listening worker. When the last one has ended, signals end the process again, and are not swallowed.
pub(crate) struct SignalGuard(CancellationToken);

impl SignalGuard {
    fn new() -> io::Result<Self> {
        static REGISTRATION: OnceLock<()> = OnceLock::new();
        if REGISTRATION.get().is_none() {
            for number in [SIGTERM, SIGINT] {
                signal_hook::flag::register_conditional_default(number, HAS_DEFAULT_EFFECT.clone())?;
            }
            let _ = REGISTRATION.set(());
        }
        let mut workers = LISTENING_WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        *workers += 1;
        HAS_DEFAULT_EFFECT.store(false, Ordering::SeqCst);
        Ok(Self(CancellationToken::new()))
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        self.0.cancel();
        let mut workers = LISTENING_WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        *workers -= 1;
        HAS_DEFAULT_EFFECT.store(*workers == 0, Ordering::SeqCst);
    }
}

impl ShutdownSignals {
    /// Listens for SIGTERM and SIGINT. The first signal requests a shutdown, the second one skips the grace.
    ///
    /// # Errors
    /// Returns [`WorkerError::Signals`] if the operating system refuses a handler.
    pub(crate) fn from_signals() -> Result<(Self, SignalGuard), WorkerError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(WorkerError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(WorkerError::Signals)?;
        let guard = SignalGuard::new().map_err(WorkerError::Signals)?;
        let (signals, ended) = (Self::default(), guard.0.clone());
        let tokens = signals.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = ended.cancelled() => return,
                }
                if tokens.stop.is_cancelled() {
                    tracing::info!("second signal received: interrupting running occurrences");
                    tokens.skip_grace.cancel();
                    return;
                }
                tracing::info!("stopping; a second signal interrupts running occurrences");
                tokens.stop.cancel();
            }
        });
        Ok((signals, guard))
    }
}

/// Performs steps 2 and 3, and step 4 up to the flush. When this returns, nothing runs, and all reports that could be
/// sent have been sent.
pub(crate) async fn drain(runs: &TaskTracker, deliveries: &TaskTracker, context: &DrainContext<'_>) {
    runs.close();
    deliveries.close();
    if !runs.is_empty() {
        tracing::info!(
            running = runs.len(),
            grace_s = context.grace.as_secs(),
            "waiting for {} running occurrences",
            runs.len()
        );
    }
    tokio::select! {
        () = runs.wait() => {}
        () = tokio::time::sleep(context.grace) => tracing::warn!(
            running = runs.len(),
            "the shutdown grace is over: interrupting {} running occurrences",
            runs.len()
        ),
        () = context.skip_grace.cancelled() => {}
    }
    context.interrupt.cancel();
    let _ = timeout(INTERRUPT_TIMEOUT, runs.wait()).await;
    faults::crash_point("shutdown.before_flush");
    if timeout(FLUSH_TIMEOUT, context.reporter.flush()).await.is_err() {
        if context.is_durable {
            tracing::warn!(
                "the broker did not confirm the last reports in time; the next process sends them from the outbox"
            );
        } else {
            tracing::error!(
                "the broker did not confirm the last reports in time; the server detects the lost runs by their missing heartbeats. Set MILVAION_OUTBOX to keep reports on disk"
            );
        }
    }
    let _ = timeout(ACK_TIMEOUT, deliveries.wait()).await;
    // The broker redelivers the messages of these runs, so that another instance starts the same attempts. Claims are
    // not released earlier: while the reports of a run may still arrive, another start would be a duplicate.
    for attempt in context.running.unconfirmed() {
        context.claim_batcher.release(attempt);
    }
    let _ = timeout(ACK_TIMEOUT, context.claim_batcher.flush()).await;
}

/// The parts of a worker that its shutdown needs.
pub(crate) struct DrainContext<'a> {
    /// The time for which runs may continue.
    pub(crate) grace: Duration,
    /// Sets the grace to zero.
    pub(crate) skip_grace: &'a CancellationToken,
    /// Interrupts the runs.
    pub(crate) interrupt: &'a CancellationToken,
    /// The reporter, which holds the last reports.
    pub(crate) reporter: &'a Reporter,
    /// True if unsent reports survive the process.
    pub(crate) is_durable: bool,
    /// The claim batcher, which holds the last ends.
    pub(crate) claim_batcher: &'a ClaimBatcher,
    /// The run table with the runs whose start the broker has not confirmed.
    pub(crate) running: &'a RunTable,
}
