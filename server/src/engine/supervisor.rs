//! The supervisor: starts the services, restarts them after a panic, and stops them.
//!
//! A panic is a bug, and the next one should not need an operator: the service is started again after a pause that grows,
//! and the health of the server shows the panic. A service with a period is built anew from the context, because its
//! state may be half changed.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use milvaion_protocol::backoff::Backoff;
use tokio::{sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Service, context::Context, driver, status::ServiceStatuses};
use crate::{
    broker::consumer::{BatchHandler, DeliveryLog, consume},
    engine::delivery_log::ConsumerLog,
    error::panic_text,
};

/// Runs services until it is stopped. Clones share the services.
#[derive(Clone, Debug, Default)]
pub struct Supervisor {
    statuses: ServiceStatuses,
    group: TaskTracker,
    stop: CancellationToken,
}

impl Supervisor {
    /// Creates a supervisor that records its services in `statuses`.
    #[must_use]
    pub fn new(statuses: ServiceStatuses) -> Self {
        Self { statuses, ..Self::default() }
    }

    /// Starts a service with a period. `make` builds it, and builds it again after a panic.
    pub fn start<S: Service>(
        &self,
        context: &Context,
        make: impl Fn(&Context) -> S + Send + Sync + 'static,
        activator: &Arc<Notify>,
    ) {
        let (context, activator) = (context.clone(), activator.clone());
        let (statuses, leadership) = (self.statuses.clone(), context.leadership.clone());
        self.keep(S::NAME, move |stop| {
            driver::drive(make(&context), activator.clone(), statuses.clone(), leadership.clone(), stop)
        });
    }

    /// Consumes a queue.
    pub fn consume<H: BatchHandler>(&self, context: &Context, queue: String, handler: H) {
        let (broker, echo, handler) = (context.broker.clone(), context.echo.clone(), Arc::new(handler));
        let log: Arc<dyn DeliveryLog> =
            Arc::new(ConsumerLog::new(context.reports.clone(), context.clock.clone(), self.statuses.clone()));
        self.keep(H::NAME, move |stop| {
            consume(broker.clone(), queue.clone(), echo.clone(), handler.clone(), log.clone(), stop)
        });
    }

    /// Keeps a loop running: it is started again whenever it panics or ends early. It must end when its token is
    /// cancelled.
    pub fn keep<F>(&self, name: &'static str, run: impl Fn(CancellationToken) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let (statuses, stop) = (self.statuses.clone(), self.stop.clone());
        statuses.record_start(name);
        self.group.spawn(async move {
            let mut backoff = Backoff::default();
            loop {
                let since = Instant::now();
                // A panic while the loop is built is caught too.
                let ended = AssertUnwindSafe(async { run(stop.clone()).await }).catch_unwind().await;
                if stop.is_cancelled() {
                    return;
                }
                let reason = match ended {
                    Ok(()) => "it ended early".to_owned(),
                    Err(panic) => format!("it panicked: {}", panic_text(panic.as_ref())),
                };
                backoff.reset_after(since.elapsed());
                let pause = backoff.next_delay(rand::random());
                tracing::error!(
                    task = name,
                    reason,
                    pause_ms = pause.as_millis() as u64,
                    "background task {name} is started again: {reason}"
                );
                statuses.record_panic(name, &reason);
                if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                    return;
                }
            }
        });
    }

    /// Tells all services to stop. Their present tick or batch is finished first.
    pub fn request_stop(&self) {
        self.stop.cancel();
        self.group.close();
    }

    /// Waits until all services have stopped.
    pub async fn stopped(&self) {
        self.group.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::engine::status::ServiceHealth;

    #[tokio::test(start_paused = true)]
    async fn loop_that_panics_or_ends_is_started_again() {
        let statuses = ServiceStatuses::default();
        let supervisor = Supervisor::new(statuses.clone());
        let starts = Arc::new(AtomicU32::new(0));
        let third = Arc::new(Notify::new());
        supervisor.keep("loop", {
            let (starts, third) = (starts.clone(), third.clone());
            move |stop| {
                let start = starts.fetch_add(1, Ordering::Relaxed) + 1;
                let third = third.clone();
                async move {
                    match start {
                        1 => panic!("a bug"),
                        2 => {}
                        _ => {
                            third.notify_one();
                            stop.cancelled().await;
                        }
                    }
                }
            }
        });
        third.notified().await;
        assert_eq!(statuses.counts("loop").panics, 2);
        assert_eq!(statuses.health("loop"), ServiceHealth::Failing("it ended early".into()));
        supervisor.request_stop();
        supervisor.stopped().await;
        assert_eq!(starts.load(Ordering::Relaxed), 3, "a loop that was told to stop is not started again");
    }
}
