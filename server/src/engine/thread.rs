//! Runs a service on an operating system thread of its own.
//!
//! A time limit works only at an await point. Code that computes for long, by a bug or for an input that the budgets do
//! not cover, keeps a worker of the shared runtime busy, and enough of them stop every timer and every connection of the
//! process. What must go on then needs a thread, a runtime and connections of its own.

use std::{io, panic, thread};

use tokio::sync::oneshot;

/// Runs what `service` returns on a thread with a runtime of its own. It ends with it; a panic continues in the caller.
///
/// The connections of the service must be opened inside it, because a connection belongs to the runtime that opened it.
///
/// # Errors
///
/// Fails if the thread or its runtime cannot be started.
pub async fn on_own_thread<F>(name: &str, service: impl FnOnce() -> F + Send + 'static) -> io::Result<()>
where
    F: Future<Output = ()>,
{
    let (ended, end) = oneshot::channel::<()>();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Dropped after everything else of the thread, also by a panic.
        let _ended = ended;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(service());
        // The resolution of a host name cannot be cancelled, and would be waited for.
        runtime.shutdown_background();
        Ok(())
    })?;
    let _ = end.await;
    // The thread is at its end, so this does not block.
    thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::{panic::AssertUnwindSafe, sync::mpsc, time::Duration};

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn service_goes_on_while_the_shared_runtime_is_blocked() {
        let (sender, ticks) = mpsc::channel();
        let service = tokio::spawn(on_own_thread("ticker", move || async move {
            while sender.send(()).is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }));
        tokio::task::yield_now().await;
        // This test has one thread, and `recv` blocks it.
        for _ in 0..20 {
            ticks.recv_timeout(Duration::from_secs(10)).expect("the service ticks");
        }
        drop(ticks);
        service.await.expect("it does not panic").expect("the thread starts");
    }

    #[tokio::test]
    async fn panic_of_the_service_reaches_the_caller() {
        let ended = AssertUnwindSafe(on_own_thread("panics", || async { panic!("a bug") })).catch_unwind().await;
        assert_eq!(ended.expect_err("it panics").downcast_ref(), Some(&"a bug"));
    }
}
