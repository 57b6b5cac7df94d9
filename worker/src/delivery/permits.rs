//! Who runs next.
//!
//! A run needs two things at once: a permit of its job type, of which there are as many as the type's concurrency, and
//! one of the worker's, of which there are as many as its capacity. Deliveries that find none wait here, and nowhere
//! else. A permit that becomes free goes to the waiting delivery of the highest priority, the first to come among equals.
//! Both permits are granted in one step: nobody sits on a permit of the worker while its type is full, so a type that is
//! full holds up none but itself.
//!
//! # Why the broker's queue does not spoil the order
//!
//! The job queues are priority queues, so the broker hands out the critical message first; what it cannot do is overtake
//! what it has handed out already. It hands out at most as many unacknowledged deliveries of a type as can run at once
//! (the prefetch). Those that wait here stay unacknowledged, and with all of them waiting the broker hands out
//! nothing more; but each start is acknowledged as soon as the broker has confirmed its report, which opens the window
//! by one, and the one who comes through it is the critical one, who then stands first in the order kept here. So at
//! most a window's worth of others can start between its publication and its own start, and as a rule, with runs that
//! last longer than a confirmation, it is one or two. A smaller window would gain nothing but an idle permit between a
//! run and the next; a larger one would only move waiting from the broker, where any instance can take it, to this
//! process.
//!
//! The price is that a type starts at most a window's worth of runs per confirmation, which takes some milliseconds:
//! with 10 permits about 2,000 a second, with 50 more than 5,000, as `examples/flood.rs` measures. Nobody notices with
//! runs that last longer than that; a type of very short runs is to be given more permits.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// The permits of one worker. Cloning gives the same ones.
#[derive(Clone)]
pub(crate) struct PrioritySemaphore(Arc<Mutex<SemaphoreState>>);

struct SemaphoreState {
    capacity: usize,
    /// Places of the worker that nobody has.
    free: usize,
    job_types: Vec<JobTypePermits>,
    /// How many have come so far: what tells the first from the second.
    arrivals: u64,
}

/// One job type.
struct JobTypePermits {
    concurrency: usize,
    free: usize,
    waiting: BTreeMap<QueueRank, Option<Waker>>,
}

/// The order of those who wait: the smallest is next.
type QueueRank = (Reverse<u8>, u64);

impl PrioritySemaphore {
    /// `capacity` permits in all, and as many for each job type as `concurrency` says, in the order of the types.
    pub(crate) fn new(capacity: usize, concurrency: impl IntoIterator<Item = usize>) -> Self {
        let job_types = concurrency
            .into_iter()
            .map(|concurrency| JobTypePermits { concurrency, free: concurrency, waiting: BTreeMap::new() })
            .collect();
        Self(Arc::new(Mutex::new(SemaphoreState { capacity, free: capacity, job_types, arrivals: 0 })))
    }

    /// How many deliveries of a type the broker may hand out before one is acknowledged.
    ///
    /// # Panics
    /// If there is no such type.
    pub(crate) fn prefetch(&self, type_index: usize) -> u16 {
        let inner = self.lock();
        inner.job_types[type_index].concurrency.min(inner.capacity).try_into().unwrap_or(u16::MAX)
    }

    /// Waits for a permit of the type at `type_index`. Whoever stops waiting leaves the order.
    ///
    /// # Panics
    /// If there is no such type.
    pub(crate) fn acquire(&self, type_index: usize, priority: u8) -> PermitRequest {
        let mut inner = self.lock();
        inner.arrivals += 1;
        let rank = (Reverse(priority), inner.arrivals);
        // Whoever waits cannot be served, or would have been: a free permit is nobody else's.
        let state = if inner.free > 0 && inner.job_types[type_index].free > 0 {
            inner.free -= 1;
            inner.job_types[type_index].free -= 1;
            RequestState::Granted
        } else {
            inner.job_types[type_index].waiting.insert(rank, None);
            RequestState::Queued
        };
        drop(inner);
        PermitRequest { permits: self.clone(), type_index, rank, state }
    }

    fn release(&self, type_index: usize) {
        let wake = {
            let mut inner = self.lock();
            inner.free += 1;
            inner.job_types[type_index].free += 1;
            inner.grant()
        };
        wake.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, SemaphoreState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SemaphoreState {
    /// Grants what became free. One permit came back, so one waiter can go at most: each who could have gone before did.
    fn grant(&mut self) -> Option<Waker> {
        if self.free == 0 {
            return None;
        }
        let next = self
            .job_types
            .iter_mut()
            .filter(|job_type| job_type.free > 0)
            .filter_map(|job_type| Some((*job_type.waiting.first_key_value()?.0, job_type)))
            .min_by_key(|(rank, _)| *rank);
        let (_, job_type) = next?;
        job_type.free -= 1;
        self.free -= 1;
        // Who is no longer among those who wait has been granted its permit.
        job_type.waiting.pop_first().and_then(|(_, waker)| waker)
    }
}

/// Somebody who waits for a permit, and gets it by being awaited.
#[must_use = "who does not await a permit leaves the order again"]
pub(crate) struct PermitRequest {
    permits: PrioritySemaphore,
    type_index: usize,
    rank: QueueRank,
    state: RequestState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestState {
    Queued,
    Granted,
    /// The permit has been handed over.
    Taken,
}

impl Future for PermitRequest {
    type Output = Permit;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let me = self.get_mut();
        if me.state == RequestState::Queued {
            let mut inner = me.permits.lock();
            if let Some(waker) = inner.job_types[me.type_index].waiting.get_mut(&me.rank) {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        debug_assert!(me.state != RequestState::Taken, "a permit is handed over once");
        me.state = RequestState::Taken;
        Poll::Ready(Permit { permits: me.permits.clone(), type_index: me.type_index })
    }
}

impl Drop for PermitRequest {
    fn drop(&mut self) {
        let granted = match self.state {
            RequestState::Taken => false,
            RequestState::Granted => true,
            // Granted and not looked at since: the permit would be lost.
            RequestState::Queued => self.permits.lock().job_types[self.type_index].waiting.remove(&self.rank).is_none(),
        };
        if granted {
            self.permits.release(self.type_index);
        }
    }
}

/// A permit of a job type and one of the worker, given back when dropped.
pub(crate) struct Permit {
    permits: PrioritySemaphore,
    type_index: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.release(self.type_index);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Looks at waiters one after the other; answers which of them have got their permit.
    fn served(waiting: &mut [Option<PermitRequest>]) -> Vec<(usize, Permit)> {
        let mut got = Vec::new();
        for (index, slot) in waiting.iter_mut().enumerate() {
            if let Some(permit) = slot.as_mut().and_then(|waiter| waiter.now_or_never()) {
                got.push((index, permit));
                *slot = None;
            }
        }
        got
    }

    fn next(waiting: &mut [Option<PermitRequest>]) -> (usize, Permit) {
        let mut got = served(waiting);
        assert_eq!(got.len(), 1, "one permit became free");
        got.pop().expect("just counted")
    }

    #[tokio::test]
    async fn the_highest_priority_is_next_and_the_first_among_equals() {
        let permits = PrioritySemaphore::new(10, [1]);
        let mut permit = permits.acquire(0, 1).await;
        let mut waiting: Vec<_> = [3, 1, 5, 3, 5].map(|priority| Some(permits.acquire(0, priority))).into();
        let mut order = Vec::new();
        while order.len() < 5 {
            assert!(served(&mut waiting).is_empty(), "the only permit is taken");
            drop(permit);
            let (who, got) = next(&mut waiting);
            order.push(who);
            permit = got;
        }
        assert_eq!(order, [2, 4, 0, 3, 1]);
    }

    #[tokio::test]
    async fn a_full_type_holds_up_no_other() {
        let permits = PrioritySemaphore::new(2, [1, 2]);
        let full = permits.acquire(0, 3).await;
        // It waits for its type, first in the order, and takes nothing of the worker's meanwhile.
        let mut first = Some(permits.acquire(0, 5));
        assert!(first.as_mut().is_some_and(|waiter| waiter.now_or_never().is_none()));
        let other = permits.acquire(1, 1).now_or_never().expect("the other type has permits, and so has the worker");
        let mut waiting = [first, Some(permits.acquire(1, 1))];
        assert!(served(&mut waiting).is_empty(), "the worker is full");
        drop(other);
        assert_eq!(next(&mut waiting).0, 1, "the worker's permit goes to the type that has one too");
        drop(full);
        assert_eq!(next(&mut waiting[..1]).0, 0);
    }

    #[tokio::test]
    async fn the_workers_place_goes_to_the_most_urgent_of_all_types() {
        let permits = PrioritySemaphore::new(1, [5, 5]);
        let permit = permits.acquire(0, 3).await;
        let mut waiting = [Some(permits.acquire(0, 2)), Some(permits.acquire(1, 4))];
        drop(permit);
        assert_eq!(next(&mut waiting).0, 1);
        assert_eq!(next(&mut waiting[..1]).0, 0);
    }

    #[test]
    fn no_more_are_handed_out_than_can_run_at_once() {
        let permits = PrioritySemaphore::new(50, [10, 200]);
        assert_eq!([permits.prefetch(0), permits.prefetch(1)], [10, 50]);
    }

    #[tokio::test]
    async fn who_leaves_takes_no_place_along() {
        let permits = PrioritySemaphore::new(1, [1]);
        let permit = permits.acquire(0, 3).await;
        // One leaves while it waits, one after it was granted the permit and before it looked.
        drop(permits.acquire(0, 5));
        let granted = permits.acquire(0, 4);
        let mut last = [Some(permits.acquire(0, 1))];
        drop(permit);
        assert!(served(&mut last).is_empty());
        drop(granted);
        assert_eq!(next(&mut last).0, 0);
        drop(permits.acquire(0, 1));
        assert!(permits.acquire(0, 1).now_or_never().is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_place_is_lost_among_many_who_come_and_go() {
        let permits = PrioritySemaphore::new(3, [2, 2]);
        let tasks: Vec<_> = (0..400_usize)
            .map(|n| {
                let permits = permits.clone();
                tokio::spawn(async move {
                    let waiter = permits.acquire(n % 2, (n % 5) as u8 + 1);
                    if n % 7 == 0 {
                        tokio::task::yield_now().await;
                        return drop(waiter);
                    }
                    let _place = waiter.await;
                    tokio::task::yield_now().await;
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("nobody panics");
        }
        let inner = permits.lock();
        assert_eq!((inner.free, inner.job_types[0].free, inner.job_types[1].free), (3, 2, 2));
        assert!(inner.job_types.iter().all(|job_type| job_type.waiting.is_empty()));
    }
}
