//! An operating system thread with a runtime of its own, for work that the program's code must not delay.

use std::{future::Future, io, thread};

use tokio::{runtime, sync::oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The running thread. It is asked to end when this is dropped, as a worker is whose future is dropped.
pub(crate) struct OwnThread {
    stop: DropGuard,
    ended: oneshot::Receiver<()>,
}

impl OwnThread {
    /// Starts a thread that runs a future until it ends. The future receives the token that asks it to end.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses the thread or its runtime.
    pub(crate) fn start<F>(
        name: &str,
        work: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) -> Result<Self, io::Error>
    where
        F: Future<Output = ()>,
    {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let (end, ended) = oneshot::channel();
        let stopping = stop.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(work(stopping));
            drop(end);
        })?;
        Ok(Self { stop: stop.drop_guard(), ended })
    }

    /// Waits until the thread ends. It must not end before [`stop`](Self::stop).
    pub(crate) async fn ended(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Asks the work to end, and waits until it has.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        let _ = self.ended.await;
    }
}
