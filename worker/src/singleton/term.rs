//! The deadlines of a lease, and the check that ends a run at its deadline.
//!
//! The lease counts from the instant before the request that took or renewed it was sent. Redis counts from a later
//! instant, when it ran the request, so the lease ends here first. The last third is divided in two: at two thirds the run
//! is asked to end, at five sixths it is dropped, and the last sixth is the margin for a slow machine.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::faults::seams::{SEAMS, Seams};

/// The time of one instance as the leader of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerm {
    /// The fencing token.
    pub(crate) epoch: u64,
    /// The instant before the last successful request.
    renewed_at: Instant,
    lease: Duration,
}

impl LeaseTerm {
    /// Begins a term with the instant before the request that took the lease.
    pub(crate) const fn new(epoch: u64, asked_at: Instant, lease: Duration) -> Self {
        Self { epoch, renewed_at: asked_at, lease }
    }

    /// Extends the lease after a renewal. An answer that arrives late never shortens it.
    pub(crate) fn renew(&mut self, asked_at: Instant) {
        self.renewed_at = self.renewed_at.max(asked_at);
    }

    /// Returns the instant at which no further run starts and the current one is asked to end.
    pub(crate) fn cancel_at(&self) -> Instant {
        SEAMS.loop_deadline(self.renewed_at + self.lease * 4 / 6)
    }

    /// Returns the instant at which the current run is dropped.
    pub(crate) fn drop_at(&self) -> Instant {
        SEAMS.loop_deadline(self.renewed_at + self.lease * 5 / 6)
    }

    /// Returns the end of the lease.
    pub(crate) fn ends_at(&self) -> Instant {
        SEAMS.loop_deadline(self.renewed_at + self.lease)
    }
}

/// Returns the time that a run has for its end when it is asked to end and the lease is still being renewed.
pub(crate) fn cancel_grace(lease: Duration) -> Duration {
    lease / 6
}

/// The instant at which a run must not be polled again. The loop runner moves it, and the task of the run reads it.
#[derive(Clone, Debug)]
pub(crate) struct RunFence {
    base: Instant,
    /// Nanoseconds after `base`; the largest number means that there is no deadline.
    deadline: Arc<AtomicU64>,
}

impl RunFence {
    /// Creates a fence without a deadline.
    pub(crate) fn new(now: Instant) -> Self {
        Self { base: now, deadline: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Sets the deadline.
    pub(crate) fn set(&self, deadline: Instant) {
        let nanos = deadline.saturating_duration_since(self.base).as_nanos();
        self.deadline.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn is_over(&self) -> bool {
        let deadline = self.deadline.load(Ordering::Acquire);
        deadline != u64::MAX && Instant::now().saturating_duration_since(self.base).as_nanos() >= u128::from(deadline)
    }
}

/// A run that is not polled after its deadline. A process that was frozen past its lease would otherwise continue the run
/// before any timer can end it.
pub(crate) struct FencedRun<F> {
    inner: Pin<Box<F>>,
    fence: RunFence,
}

impl<F: Future> FencedRun<F> {
    /// Wraps a run.
    pub(crate) fn new(inner: F, fence: RunFence) -> Self {
        Self { inner: Box::pin(inner), fence }
    }
}

impl<F: Future> Future for FencedRun<F> {
    /// `None` if the deadline came first.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.fence.is_over() {
            return Poll::Ready(None);
        }
        self.inner.as_mut().poll(context).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lease_counts_from_before_the_request() {
        let asked_at = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut term = LeaseTerm::new(1, asked_at, Duration::from_secs(6));
        assert_eq!(term.ends_at(), asked_at + Duration::from_secs(6));
        assert_eq!(term.cancel_at(), asked_at + Duration::from_secs(4));
        assert_eq!(term.drop_at(), asked_at + Duration::from_secs(5));
        let later = Instant::now();
        term.renew(later);
        term.renew(asked_at);
        assert_eq!(term.ends_at(), later + Duration::from_secs(6), "an older answer does not shorten the lease");
    }

    #[tokio::test(start_paused = true)]
    async fn run_is_not_polled_after_the_deadline() {
        let fence = RunFence::new(Instant::now());
        let run = FencedRun::new(tokio::time::sleep(Duration::from_secs(2)), fence.clone());
        assert_eq!(run.await, Some(()), "there is no deadline yet");

        fence.set(Instant::now() + Duration::from_secs(1));
        let run = FencedRun::new(std::future::ready(()), fence);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(run.await, None, "a run that was ready all along is not continued");
    }
}
