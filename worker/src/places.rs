//! Who runs next.
//!
//! A run needs two things at once: a place of its job type, of which there are as many as the type's concurrency, and
//! one of the worker's, of which there are as many as its capacity. Deliveries that find none wait here, and nowhere
//! else. A place that becomes free goes to the waiting delivery of the highest priority, the first to come among equals.
//! Both places are granted in one step: nobody sits on a place of the worker while its type is full, so a type that is
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
//! last longer than a confirmation, it is one or two. A smaller window would gain nothing but an idle place between a
//! run and the next; a larger one would only move waiting from the broker, where any instance can take it, to this
//! process.
//!
//! The price is that a type starts at most a window's worth of runs per confirmation, which takes some milliseconds:
//! with 10 places about 2,000 a second, with 50 more than 5,000, as `examples/flood.rs` measures. Nobody notices with
//! runs that last longer than that; a type of very short runs is to be given more places.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// The places of one worker. Cloning gives the same ones.
#[derive(Clone)]
pub(crate) struct Places(Arc<Mutex<Room>>);

struct Room {
    capacity: usize,
    /// Places of the worker that nobody has.
    free: usize,
    lines: Vec<LineRoom>,
    /// How many have come so far: what tells the first from the second.
    arrivals: u64,
}

/// One job type.
struct LineRoom {
    concurrency: usize,
    free: usize,
    waiting: BTreeMap<Rank, Option<Waker>>,
}

/// The order of those who wait: the smallest is next.
type Rank = (Reverse<u8>, u64);

impl Places {
    /// `capacity` places in all, and as many for each job type as `concurrency` says, in the order of the types.
    pub(crate) fn new(capacity: usize, concurrency: impl IntoIterator<Item = usize>) -> Self {
        let lines = concurrency
            .into_iter()
            .map(|concurrency| LineRoom { concurrency, free: concurrency, waiting: BTreeMap::new() })
            .collect();
        Self(Arc::new(Mutex::new(Room { capacity, free: capacity, lines, arrivals: 0 })))
    }

    /// How many deliveries of a type the broker may hand out before one is acknowledged.
    ///
    /// # Panics
    /// If there is no such type.
    pub(crate) fn window(&self, line: usize) -> u16 {
        let room = self.lock();
        room.lines[line].concurrency.min(room.capacity).try_into().unwrap_or(u16::MAX)
    }

    /// Waits for a place of the type at `line`. Whoever stops waiting leaves the order.
    ///
    /// # Panics
    /// If there is no such type.
    pub(crate) fn take(&self, line: usize, priority: u8) -> Waiting {
        let mut room = self.lock();
        room.arrivals += 1;
        let rank = (Reverse(priority), room.arrivals);
        // Whoever waits cannot be served, or would have been: a free place is nobody else's.
        let state = if room.free > 0 && room.lines[line].free > 0 {
            room.free -= 1;
            room.lines[line].free -= 1;
            State::Granted
        } else {
            room.lines[line].waiting.insert(rank, None);
            State::Queued
        };
        drop(room);
        Waiting { places: self.clone(), line, rank, state }
    }

    fn give_back(&self, line: usize) {
        let wake = {
            let mut room = self.lock();
            room.free += 1;
            room.lines[line].free += 1;
            room.grant()
        };
        wake.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Room> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Grants what became free. One place came back, so one waiter can go at most: each who could have gone before did.
    fn grant(&mut self) -> Option<Waker> {
        if self.free == 0 {
            return None;
        }
        let next = self
            .lines
            .iter_mut()
            .filter(|line| line.free > 0)
            .filter_map(|line| Some((*line.waiting.first_key_value()?.0, line)))
            .min_by_key(|(rank, _)| *rank);
        let (_, line) = next?;
        line.free -= 1;
        self.free -= 1;
        // Who is no longer among those who wait has been granted its place.
        line.waiting.pop_first().and_then(|(_, waker)| waker)
    }
}

/// Somebody who waits for a place, and gets it by being awaited.
#[must_use = "who does not await a place leaves the order again"]
pub(crate) struct Waiting {
    places: Places,
    line: usize,
    rank: Rank,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Queued,
    Granted,
    /// The place has been handed over.
    Left,
}

impl Future for Waiting {
    type Output = Place;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Place> {
        let me = self.get_mut();
        if me.state == State::Queued {
            let mut room = me.places.lock();
            if let Some(waker) = room.lines[me.line].waiting.get_mut(&me.rank) {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        debug_assert!(me.state != State::Left, "a place is handed over once");
        me.state = State::Left;
        Poll::Ready(Place { places: me.places.clone(), line: me.line })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let granted = match self.state {
            State::Left => false,
            State::Granted => true,
            // Granted and not looked at since: the place would be lost.
            State::Queued => self.places.lock().lines[self.line].waiting.remove(&self.rank).is_none(),
        };
        if granted {
            self.places.give_back(self.line);
        }
    }
}

/// A place of a job type and one of the worker, given back when dropped.
pub(crate) struct Place {
    places: Places,
    line: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.give_back(self.line);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Looks at waiters one after the other; answers which of them have got their place.
    fn served(waiting: &mut [Option<Waiting>]) -> Vec<(usize, Place)> {
        let mut got = Vec::new();
        for (index, slot) in waiting.iter_mut().enumerate() {
            if let Some(place) = slot.as_mut().and_then(|waiter| waiter.now_or_never()) {
                got.push((index, place));
                *slot = None;
            }
        }
        got
    }

    fn next(waiting: &mut [Option<Waiting>]) -> (usize, Place) {
        let mut got = served(waiting);
        assert_eq!(got.len(), 1, "one place became free");
        got.pop().expect("just counted")
    }

    #[tokio::test]
    async fn the_highest_priority_is_next_and_the_first_among_equals() {
        let places = Places::new(10, [1]);
        let mut place = places.take(0, 1).await;
        let mut waiting: Vec<_> = [3, 1, 5, 3, 5].map(|priority| Some(places.take(0, priority))).into();
        let mut order = Vec::new();
        while order.len() < 5 {
            assert!(served(&mut waiting).is_empty(), "the only place is taken");
            drop(place);
            let (who, got) = next(&mut waiting);
            order.push(who);
            place = got;
        }
        assert_eq!(order, [2, 4, 0, 3, 1]);
    }

    #[tokio::test]
    async fn a_full_type_holds_up_no_other() {
        let places = Places::new(2, [1, 2]);
        let full = places.take(0, 3).await;
        // It waits for its type, first in the order, and takes nothing of the worker's meanwhile.
        let mut first = Some(places.take(0, 5));
        assert!(first.as_mut().is_some_and(|waiter| waiter.now_or_never().is_none()));
        let other = places.take(1, 1).now_or_never().expect("the other type has places, and so has the worker");
        let mut waiting = [first, Some(places.take(1, 1))];
        assert!(served(&mut waiting).is_empty(), "the worker is full");
        drop(other);
        assert_eq!(next(&mut waiting).0, 1, "the worker's place goes to the type that has one too");
        drop(full);
        assert_eq!(next(&mut waiting[..1]).0, 0);
    }

    #[tokio::test]
    async fn the_workers_place_goes_to_the_most_urgent_of_all_types() {
        let places = Places::new(1, [5, 5]);
        let place = places.take(0, 3).await;
        let mut waiting = [Some(places.take(0, 2)), Some(places.take(1, 4))];
        drop(place);
        assert_eq!(next(&mut waiting).0, 1);
        assert_eq!(next(&mut waiting[..1]).0, 0);
    }

    #[test]
    fn no_more_are_handed_out_than_can_run_at_once() {
        let places = Places::new(50, [10, 200]);
        assert_eq!([places.window(0), places.window(1)], [10, 50]);
    }

    #[tokio::test]
    async fn who_leaves_takes_no_place_along() {
        let places = Places::new(1, [1]);
        let place = places.take(0, 3).await;
        // One leaves while it waits, one after it was granted the place and before it looked.
        drop(places.take(0, 5));
        let granted = places.take(0, 4);
        let mut last = [Some(places.take(0, 1))];
        drop(place);
        assert!(served(&mut last).is_empty());
        drop(granted);
        assert_eq!(next(&mut last).0, 0);
        drop(places.take(0, 1));
        assert!(places.take(0, 1).now_or_never().is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_place_is_lost_among_many_who_come_and_go() {
        let places = Places::new(3, [2, 2]);
        let tasks: Vec<_> = (0..400_usize)
            .map(|n| {
                let places = places.clone();
                tokio::spawn(async move {
                    let waiter = places.take(n % 2, (n % 5) as u8 + 1);
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
        let room = places.lock();
        assert_eq!((room.free, room.lines[0].free, room.lines[1].free), (3, 2, 2));
        assert!(room.lines.iter().all(|line| line.waiting.is_empty()));
    }
}
