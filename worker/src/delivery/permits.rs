//! Permits and the order in which deliveries receive them.
//!
//! A run needs two permits at once: one of its job type, limited by the concurrency limit of the type, and one of the
//! worker, limited by its capacity. Deliveries that find no free permit wait here and nowhere else. A permit that
//! becomes free goes to the waiting delivery with the highest priority, and among equal priorities to the oldest. Both
//! permits are granted in one step, so no delivery occupies a permit of the worker while its type has none free, and a
//! full type delays only itself.
//!
//! # Prefetch and priority
//!
//! The job queues are priority queues, so the broker delivers the critical message first. It cannot overtake messages
//! that it has already delivered. The prefetch limits the unacknowledged deliveries of a type to the number of its
//! permits. Deliveries that wait here stay unacknowledged, and if all of them wait, the broker delivers nothing more.
//! But each start is acknowledged as soon as the broker has confirmed its report. This opens the prefetch window by
//! one, the next message delivered is the critical one, and it goes to the head of the local queue. At most one window
//! of other deliveries can therefore start between the publication of a critical message and its own start. With runs
//! that last longer than a confirmation, it is usually one or two. A smaller window would gain nothing but an idle
//! permit between two runs. A larger window would only move waiting messages from the broker, where every instance can
//! take them, into this process.
//!
//! # Reserved slots
//!
//! Where slots are reserved, critical runs have a queue and a prefetch of their own, so that what waits in the other window
//! does not hold them up. A critical run takes a reserved slot if one is free, and then no permit: neither of its type nor
//! of the worker. It therefore starts at once although all permits are taken, and takes nothing from other runs. If no
//! reserved slot is free, it takes permits like any other run.
//!
//! # Bundles and many job types
//!
//! A bundle is one delivery, so a window of bundles has up to ten times as many runs, which may all start before a critical
//! message that was sent after them, unless slots are reserved. Each waits here for two seconds at most, and the broker
//! delivers nothing more while every bundle of the window has one that waits. Then the bundle is rejected, and what has not
//! started comes back in messages of its own. Servers send no bundles while no instance has a free permit.
//!
//! With many job types, the windows together are bounded too: the worker would otherwise hold many times the messages that it
//! can run, while other instances have free permits. Their sum is at most twice the capacity, unless there are more types.
//!
//! The cost is that a type starts at most one window of runs per confirmation, which takes some milliseconds: with 10
//! permits about 2,000 runs a second, with 50 more than 5,000, as the benchmark `flood` measures. This does not matter
//! for runs that last longer than a confirmation. A type with very short runs needs more permits.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use milvaion_protocol::{message::PriorityLoad, topology::MAX_PRIORITY};

/// The number of priorities, with 0, which no server sends.
const PRIORITIES: usize = MAX_PRIORITY as usize + 1;

/// The permits of one worker. Clones share the same permits.
#[derive(Clone)]
pub(crate) struct PrioritySemaphore(Arc<Mutex<SemaphoreState>>);

struct SemaphoreState {
    /// Free permits of the worker.
    free: usize,
    /// The number of slots for critical runs.
    reserved: usize,
    /// The runs in reserved slots, by the number of their request.
    in_reserved: HashSet<u64>,
    /// Permits and reserved slots in use, by priority.
    running: [u32; PRIORITIES],
    job_types: Vec<JobTypePermits>,
    /// Number of requests so far, which orders requests of equal priority.
    arrivals: u64,
}

/// The permits of one job type.
struct JobTypePermits {
    prefetch: u16,
    free: usize,
    waiting: BTreeMap<QueueRank, Option<Waker>>,
}

/// The order of waiting requests. The smallest rank is next.
type QueueRank = (Reverse<u8>, u64);

impl PrioritySemaphore {
    /// Creates `capacity` permits in total, and for each job type, in order, as many as its `concurrency`.
    pub(crate) fn new(capacity: usize, concurrency: impl IntoIterator<Item = usize>) -> Self {
        let concurrency: Vec<usize> = concurrency.into_iter().collect();
        let job_types = prefetches(capacity, &concurrency)
            .into_iter()
            .zip(concurrency)
            .map(|(prefetch, free)| JobTypePermits { prefetch, free, waiting: BTreeMap::new() })
            .collect();
        let state = SemaphoreState {
            free: capacity,
            reserved: 0,
            in_reserved: HashSet::new(),
            running: [0; PRIORITIES],
            job_types,
            arrivals: 0,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Reserves slots for critical runs, beside the permits.
    pub(crate) fn reserve(self, slots: usize) -> Self {
        self.lock().reserved = slots;
        self
    }

    /// Returns the number of permits in use and of waiting requests by priority, the highest first.
    pub(crate) fn load(&self) -> Vec<PriorityLoad> {
        let (running, waiting) = {
            let inner = self.lock();
            let mut waiting = [0; PRIORITIES];
            for (Reverse(priority), _) in inner.job_types.iter().flat_map(|job_type| job_type.waiting.keys()) {
                waiting[usize::from(*priority)] += 1;
            }
            (inner.running, waiting)
        };
        let load = |priority: u8| PriorityLoad {
            priority,
            running: running[usize::from(priority)],
            waiting: waiting[usize::from(priority)],
        };
        (0..=MAX_PRIORITY).rev().map(load).filter(|load| load.running + load.waiting > 0).collect()
    }

    /// Returns the prefetch of a type: the number of deliveries that the broker may deliver before one is acknowledged.
    ///
    /// # Panics
    /// Panics if the type does not exist.
    pub(crate) fn prefetch(&self, type_index: usize) -> u16 {
        self.lock().job_types[type_index].prefetch
    }

    /// Requests a permit of the type at `type_index`. Dropping the request cancels it.
    ///
    /// # Panics
    /// Panics if the type does not exist.
    pub(crate) fn acquire(&self, type_index: usize, priority: u8) -> PermitRequest {
        let priority = priority.min(MAX_PRIORITY);
        let mut inner = self.lock();
        inner.arrivals += 1;
        let rank = (Reverse(priority), inner.arrivals);
        // Free permits are granted at once: no waiting request could use them, or it would have received them before.
        let state = if inner.take(type_index, rank) {
            RequestState::Granted
        } else {
            inner.job_types[type_index].waiting.insert(rank, None);
            RequestState::Queued
        };
        drop(inner);
        PermitRequest { permits: self.clone(), type_index, rank, state }
    }

    fn release(&self, type_index: usize, (Reverse(priority), number): QueueRank) {
        let waker = {
            let mut inner = self.lock();
            inner.running[usize::from(priority)] -= 1;
            if !inner.in_reserved.remove(&number) {
                inner.free += 1;
                inner.job_types[type_index].free += 1;
            }
            inner.grant()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, SemaphoreState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the prefetch of each type: the number of its runs that are possible at once. If the sum is more than twice the
/// capacity, each type keeps 1 and the same share of the rest.
fn prefetches(capacity: usize, concurrency: &[usize]) -> Vec<u16> {
    // A prefetch of 0 would be unlimited.
    let wanted: Vec<usize> = concurrency.iter().map(|concurrency| (*concurrency).min(capacity).max(1)).collect();
    let (types, sum) = (wanted.len(), wanted.iter().sum::<usize>());
    let rest = (2 * capacity).saturating_sub(types);
    wanted
        .into_iter()
        .map(|wanted| if sum > 2 * capacity { 1 + (wanted - 1) * rest / (sum - types).max(1) } else { wanted })
        .map(|prefetch| prefetch.try_into().unwrap_or(u16::MAX))
        .collect()
}

impl SemaphoreState {
    /// Returns true if a request of a type could be granted now.
    fn has_free(&self, type_index: usize, priority: u8) -> bool {
        self.has_reserved(priority) || (self.free > 0 && self.job_types[type_index].free > 0)
    }

    fn has_reserved(&self, priority: u8) -> bool {
        priority == MAX_PRIORITY && self.in_reserved.len() < self.reserved
    }

    /// Takes a reserved slot or the permits for a request. Returns false if none is free.
    fn take(&mut self, type_index: usize, (Reverse(priority), number): QueueRank) -> bool {
        if !self.has_free(type_index, priority) {
            return false;
        }
        if self.has_reserved(priority) {
            self.in_reserved.insert(number);
        } else {
            self.free -= 1;
            self.job_types[type_index].free -= 1;
        }
        self.running[usize::from(priority)] += 1;
        true
    }

    /// Grants what was released. At most one request can be granted, because all others were blocked before the release
    /// too.
    fn grant(&mut self) -> Option<Waker> {
        let firsts = self.job_types.iter().enumerate().filter_map(|(type_index, job_type)| {
            let (rank, _) = job_type.waiting.first_key_value()?;
            self.has_free(type_index, rank.0.0).then_some((*rank, type_index))
        });
        let (rank, type_index) = firsts.min()?;
        self.take(type_index, rank);
        // Removal from the waiting requests is the grant.
        self.job_types[type_index].waiting.pop_first().and_then(|(_, waker)| waker)
    }
}

/// A request for a permit. Await it to receive the permit.
#[must_use = "a request that is not awaited is cancelled"]
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
    /// The permit has been returned to the caller.
    Taken,
}

impl Future for PermitRequest {
    type Output = Permit;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let this = self.get_mut();
        if this.state == RequestState::Queued {
            let mut inner = this.permits.lock();
            if let Some(waker) = inner.job_types[this.type_index].waiting.get_mut(&this.rank) {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        debug_assert!(this.state != RequestState::Taken, "a permit is returned once");
        this.state = RequestState::Taken;
        Poll::Ready(Permit { permits: this.permits.clone(), type_index: this.type_index, rank: this.rank })
    }
}

impl Drop for PermitRequest {
    fn drop(&mut self) {
        let granted = match self.state {
            RequestState::Taken => false,
            RequestState::Granted => true,
            // A permit that was granted after the last poll would be lost.
            RequestState::Queued => self.permits.lock().job_types[self.type_index].waiting.remove(&self.rank).is_none(),
        };
        if granted {
            self.permits.release(self.type_index, self.rank);
        }
    }
}

/// A permit of a job type and one of the worker, or a reserved slot, released on drop.
pub(crate) struct Permit {
    permits: PrioritySemaphore,
    type_index: usize,
    rank: QueueRank,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.release(self.type_index, self.rank);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Polls each request once. Returns the permits that were granted, with the index of their request.
    fn granted(requests: &mut [Option<PermitRequest>]) -> Vec<(usize, Permit)> {
        let mut permits = Vec::new();
        for (index, slot) in requests.iter_mut().enumerate() {
            if let Some(permit) = slot.as_mut().and_then(|request| request.now_or_never()) {
                permits.push((index, permit));
                *slot = None;
            }
        }
        permits
    }

    fn next(requests: &mut [Option<PermitRequest>]) -> (usize, Permit) {
        let mut permits = granted(requests);
        assert_eq!(permits.len(), 1, "one permit became free");
        permits.pop().expect("there is one permit")
    }

    #[tokio::test]
    async fn highest_and_oldest_priority_is_next() {
        let permits = PrioritySemaphore::new(10, [1]);
        let mut permit = permits.acquire(0, 1).await;
        let mut requests: Vec<_> = [3, 1, 5, 3, 5].map(|priority| Some(permits.acquire(0, priority))).into();
        let mut order = Vec::new();
        while order.len() < 5 {
            assert!(granted(&mut requests).is_empty(), "the only permit is in use");
            drop(permit);
            let (index, received) = next(&mut requests);
            order.push(index);
            permit = received;
        }
        assert_eq!(order, [2, 4, 0, 3, 1]);
    }

    #[tokio::test]
    async fn full_type_does_not_delay_other_types() {
        let permits = PrioritySemaphore::new(2, [1, 2]);
        let full = permits.acquire(0, 3).await;
        // It waits for its type at the head of the queue, and occupies no permit of the worker.
        let mut first = Some(permits.acquire(0, 5));
        assert!(first.as_mut().is_some_and(|request| request.now_or_never().is_none()));
        let other = permits.acquire(1, 1).now_or_never().expect("the other type and the worker have free permits");
        let mut requests = [first, Some(permits.acquire(1, 1))];
        assert!(granted(&mut requests).is_empty(), "the worker is full");
        drop(other);
        assert_eq!(next(&mut requests).0, 1, "the permit goes to the type that also has a free one");
        drop(full);
        assert_eq!(next(&mut requests[..1]).0, 0);
    }

    #[tokio::test]
    async fn worker_permit_goes_to_the_highest_priority() {
        let permits = PrioritySemaphore::new(1, [5, 5]);
        let permit = permits.acquire(0, 3).await;
        let mut requests = [Some(permits.acquire(0, 2)), Some(permits.acquire(1, 4))];
        drop(permit);
        assert_eq!(next(&mut requests).0, 1);
        assert_eq!(next(&mut requests[..1]).0, 0);
    }

    #[tokio::test]
    async fn critical_run_takes_a_reserved_slot_beside_all_permits() {
        let permits = PrioritySemaphore::new(2, [1, 2]).reserve(1);
        let mut low = Vec::new();
        for type_index in [0, 1] {
            low.push(permits.acquire(type_index, 1).await);
        }
        let critical = permits.acquire(0, 5).now_or_never().expect("its type and the worker are full");
        assert!(permits.acquire(1, 4).now_or_never().is_none(), "it is not critical");
        let mut requests = [(0, 5), (1, 5), (1, 4)].map(|(of, priority)| Some(permits.acquire(of, priority)));
        assert!(granted(&mut requests).is_empty(), "the reserved slot is taken");
        drop(critical);
        let (index, second) = next(&mut requests);
        assert_eq!(index, 0, "the oldest critical one, of any type");
        drop(low.pop());
        let (index, third) = next(&mut requests);
        assert_eq!(index, 1, "it takes permits, because no reserved slot is free");
        drop(second);
        assert!(granted(&mut requests).is_empty(), "a reserved slot is for critical runs only");
        drop(third);
        assert_eq!(next(&mut requests).0, 2);
    }

    #[tokio::test]
    async fn load_counts_permits_and_requests_by_priority() {
        let permits = PrioritySemaphore::new(2, [1, 2]);
        let load = || permits.load().into_iter().map(|load| (load.priority, load.running, load.waiting));
        let first = permits.acquire(0, 5).await;
        let granted = permits.acquire(1, 3);
        let waiting = [permits.acquire(0, 5), permits.acquire(1, 1)];
        assert_eq!(load().collect::<Vec<_>>(), [(5, 1, 1), (3, 1, 0), (1, 0, 1)]);
        drop(granted);
        assert_eq!(load().collect::<Vec<_>>(), [(5, 1, 1), (1, 1, 0)], "the first type is full");
        drop((waiting, first));
        assert_eq!(load().count(), 0);
    }

    #[test]
    fn prefetch_is_the_number_of_possible_runs() {
        let permits = PrioritySemaphore::new(50, [10, 200]);
        assert_eq!([permits.prefetch(0), permits.prefetch(1)], [10, 50]);
    }

    #[test]
    fn sum_of_prefetches_is_at_most_twice_the_capacity() {
        assert_eq!(prefetches(50, &[10; 10]), [10; 10], "exactly twice the capacity");
        assert_eq!(prefetches(50, &[10; 11]), [9; 11]);
        assert_eq!(prefetches(50, &[1, 1000, 1000, 20]), [1, 41, 41, 16], "large types give up most");
        assert_eq!(prefetches(50, &[10; 100]), [1; 100]);
        assert_eq!(prefetches(1, &[5, 5, 5]), [1, 1, 1], "each type has at least 1");
        for (capacity, types) in [(7, 3), (20, 39), (50, 33), (10_000, 500)] {
            for concurrency in [1, 2, 10, 1000] {
                let windows = prefetches(capacity, &vec![concurrency; types]);
                let sum: usize = windows.into_iter().map(usize::from).sum();
                assert!(sum <= 2 * capacity, "{types} types of {concurrency}: {sum}");
            }
        }
    }

    #[tokio::test]
    async fn cancelled_request_returns_its_permit() {
        let permits = PrioritySemaphore::new(1, [1]);
        let permit = permits.acquire(0, 3).await;
        // One request is dropped while it waits, one after the grant and before its first poll.
        drop(permits.acquire(0, 5));
        let dropped = permits.acquire(0, 4);
        let mut last = [Some(permits.acquire(0, 1))];
        drop(permit);
        assert!(granted(&mut last).is_empty());
        drop(dropped);
        assert_eq!(next(&mut last).0, 0);
        drop(permits.acquire(0, 1));
        assert!(permits.acquire(0, 1).now_or_never().is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_requests_lose_no_permit() {
        let permits = PrioritySemaphore::new(3, [2, 2]).reserve(1);
        let tasks: Vec<_> = (0..400_usize)
            .map(|n| {
                let permits = permits.clone();
                tokio::spawn(async move {
                    let request = permits.acquire(n % 2, (n % 5) as u8 + 1);
                    if n % 7 == 0 {
                        tokio::task::yield_now().await;
                        return drop(request);
                    }
                    let _permit = request.await;
                    tokio::task::yield_now().await;
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        let inner = permits.lock();
        assert_eq!((inner.free, inner.job_types[0].free, inner.job_types[1].free), (3, 2, 2));
        assert!(inner.in_reserved.is_empty());
        assert_eq!(inner.running, [0; PRIORITIES]);
        assert!(inner.job_types.iter().all(|job_type| job_type.waiting.is_empty()));
    }
}
