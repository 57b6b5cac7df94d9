//! Runs a [`Service`] with a period until the server stops.
//!
//! The driver waits, ticks, logs the report and records the result. A tick that fails or takes too long is repeated after
//! a pause that grows, but not later than a period after it. A panic ends the driver; the supervisor builds the service
//! anew.

use std::{sync::Arc, time::Duration};

use milvaion_protocol::backoff::Backoff;
use milvaion_telemetry::SPANS;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, field::Empty};

use super::{RunsOn, Service, report_text::report_text, status::ServiceStatuses};
use crate::{engine::leadership::Leadership, error::chain};

/// The minimum wait for a requested tick. It keeps a service from spinning on an item that is due but that another
/// server is already handling.
const MIN_TICK_DELAY: Duration = Duration::from_millis(1);
/// The time between two standby records of a service.
const STANDBY_REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Runs `service` until `stop`. The first tick runs at once, each later one when `activator` is notified or the period
/// has passed.
///
/// A service of the leader runs only while this server leads or while no server can lead. When the lease ends, a running
/// tick is dropped at its current await point, as if the process had crashed there.
pub async fn drive<S: Service>(
    mut service: S,
    activator: Arc<Notify>,
    statuses: ServiceStatuses,
    mut leadership: watch::Receiver<Leadership>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let state = leadership.borrow_and_update().clone();
        let is_led = S::RUNS_ON == RunsOn::Leader;
        if is_led && !state.may_work() {
            statuses.record_standby(S::NAME, STANDBY_REPORT_INTERVAL);
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
                _ if !is_led => std::future::pending().await,
                Some(token) => token.cancelled().await,
                None => changed(&mut leadership).await,
            }
        };
        tokio::select! {
            () = work(&mut service, &activator, &statuses, &stop) => {}
            () = ended => {}
            // The next leader repeats the tick.
            () = stop.cancelled(), if is_led => {}
        }
    }
}

async fn changed(leadership: &mut watch::Receiver<Leadership>) {
    if leadership.changed().await.is_err() {
        // The lease loop has ended, which happens only when the server stops.
        std::future::pending().await
    }
}

/// Ticks until `stop`. A running tick is finished.
async fn work<S: Service>(service: &mut S, activator: &Notify, statuses: &ServiceStatuses, stop: &CancellationToken) {
    let mut backoff = Backoff::default();
    while !stop.is_cancelled() {
        let pause = match tick(service, statuses).await {
            Some(report) => {
                backoff.reset();
                if S::has_more(&report) { MIN_TICK_DELAY } else { pause(service) }
            }
            None => backoff.next_delay(rand::random()).min(service.period()),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = activator.notified() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Returns the wait before the next tick. Periods get 10 % jitter so that servers do not query at the same time; a
/// requested tick gets none.
fn pause<S: Service>(service: &S) -> Duration {
    let period = service.period().mul_f64(0.9 + 0.2 * rand::random::<f64>());
    service.next_tick_in().map_or(period, |wait| wait.max(MIN_TICK_DELAY).min(period))
}

/// Runs one tick in a span of its own. Returns its report, or `None` if it failed.
async fn tick<S: Service>(service: &mut S, statuses: &ServiceStatuses) -> Option<S::Report> {
    let span = tracing::info_span!(
        target: SPANS, "tick", otel.name = format_args!("tick {}", S::NAME), otel.status_code = Empty
    );
    let report = limited_tick(service, statuses).instrument(span.clone()).await;
    if report.is_none() {
        span.record("otel.status_code", "ERROR");
    }
    report
}

async fn limited_tick<S: Service>(service: &mut S, statuses: &ServiceStatuses) -> Option<S::Report> {
    let since = Instant::now();
    let result = match tokio::time::timeout(S::TIME_LIMIT, service.tick()).await {
        Ok(Ok(report)) => {
            if S::is_notable(&report) {
                tracing::info!(task = S::NAME, "background task {}: {}", S::NAME, report_text(&report));
            } else {
                tracing::debug!(task = S::NAME, "background task {} ticked: {}", S::NAME, report_text(&report));
            }
            Ok(report)
        }
        Ok(Err(error)) => Err(chain(error.as_ref())),
        Err(_) => Err(format!("it took longer than {} s", S::TIME_LIMIT.as_secs())),
    };
    let (report, failure) = match result {
        Ok(report) => (Some(report), None),
        Err(reason) => (None, Some(reason)),
    };
    if let Some(reason) = &failure {
        tracing::warn!(task = S::NAME, error = reason, "background task {} failed and is retried", S::NAME);
    }
    statuses.record_tick(S::NAME, since.elapsed(), 3 * service.period() + S::TIME_LIMIT, failure);
    report
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// A service whose ticks report their number. The first `failing` fail, the first `hanging` never end, and the first
    /// `partial` leave work.
    struct TestService {
        ticks: mpsc::UnboundedSender<u32>,
        ticked: u32,
        failing: u32,
        hanging: u32,
        partial: u32,
    }

    impl Service for TestService {
        const NAME: &'static str = "test";
        const TIME_LIMIT: Duration = Duration::from_secs(5);
        type Report = bool;

        fn period(&self) -> Duration {
            Duration::from_secs(3_600)
        }

        async fn tick(&mut self) -> anyhow::Result<bool> {
            self.ticked += 1;
            self.ticks.send(self.ticked)?;
            if self.ticked <= self.hanging {
                std::future::pending::<()>().await;
            }
            anyhow::ensure!(self.ticked > self.failing, "tick {} fails", self.ticked);
            Ok(self.ticked <= self.partial)
        }

        fn has_more(has_more: &bool) -> bool {
            *has_more
        }

        fn is_notable(_: &bool) -> bool {
            false
        }
    }

    /// Runs a service until its third tick. Returns the time until then and the statuses.
    async fn until_third_tick(failing: u32, hanging: u32, partial: u32) -> (Duration, ServiceStatuses) {
        let (ticks, mut ticked) = mpsc::unbounded_channel();
        let (statuses, stop) = (ServiceStatuses::default(), CancellationToken::new());
        let (_leadership, follows) = watch::channel(Leadership::Follower);
        let since = Instant::now();
        let service = TestService { ticks, ticked: 0, failing, hanging, partial };
        let driven = tokio::spawn(drive(service, Arc::default(), statuses.clone(), follows, stop.clone()));
        while ticked.recv().await.expect("it ticks") < 3 {}
        let took = since.elapsed();
        stop.cancel();
        driven.await.expect("the driver stops");
        (took, statuses)
    }

    #[tokio::test(start_paused = true)]
    async fn failed_tick_is_repeated_long_before_its_period_has_passed() {
        let (took, statuses) = until_third_tick(2, 0, 0).await;
        assert!(took < Duration::from_secs(1), "{took:?}");
        let counts = statuses.counts("test");
        assert_eq!((counts.ticks, counts.failures, counts.panics), (3, 2, 0));
        let (took, _) = until_third_tick(0, 0, 0).await;
        assert!(took > Duration::from_secs(6_000), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn tick_that_left_work_is_followed_by_another_at_once() {
        let (took, statuses) = until_third_tick(0, 0, 2).await;
        assert!(took < Duration::from_millis(10), "{took:?}");
        assert_eq!(statuses.counts("test").failures, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn tick_beyond_its_limit_is_dropped_and_repeated() {
        let (took, statuses) = until_third_tick(0, 2, 0).await;
        assert!(took > Duration::from_secs(10) && took < Duration::from_secs(11), "{took:?}");
        let counts = statuses.counts("test");
        assert_eq!((counts.ticks, counts.failures, counts.longest_tick), (3, 2, Duration::from_secs(5)));
    }
}
