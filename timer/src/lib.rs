//! A timer that wakes a task within some tens of microseconds of an instant, and never before it.
//!
//! The timers of tokio count in whole milliseconds and round up, so a task that waits for one goes on 1 to 2 ms late.
//! This timer has a thread of its own, which parks until the earliest instant. The operating system wakes a parked
//! thread some tens of microseconds late, so the thread may spin for the last stretch before an instant, as long as
//! instants are few. It does nothing but wake the tasks that wait; they go on in their own runtime. Without an instant
//! the thread stays parked and takes no processor time.

mod due_queue;

use std::{
    hint, io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use due_queue::{DueKey, DueQueue, TimerStep};

/// The last stretch before an instant, for which a timer may spin. It is longer than a parked thread takes to wake up
/// on a machine that is not busy, and costs at most 2 % of a core.
pub const LAST_STRETCH: Duration = Duration::from_micros(200);

/// A timer with a thread of its own. Clones share the thread, which ends with the last of them and of their sleeps.
#[derive(Clone, Debug)]
pub struct PreciseTimer {
    shared: Arc<TimerThread>,
}

/// The running thread, and the instants that it waits for.
#[derive(Debug)]
struct TimerThread {
    queue: Arc<Mutex<DueQueue<Waker>>>,
    thread: Thread,
    /// The number of sleeps that were created.
    sleeps: AtomicU64,
}

impl TimerThread {
    fn queue(&self) -> MutexGuard<'_, DueQueue<Waker>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TimerThread {
    fn drop(&mut self) {
        self.queue().close();
        self.thread.unpark();
    }
}

impl PreciseTimer {
    /// Starts the thread of a timer. While instants are few, it spins for `spin` before each of them.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses the thread.
    pub fn start(name: &str, spin: Duration) -> io::Result<Self> {
        let queue = Arc::new(Mutex::new(DueQueue::new(spin)));
        let read = queue.clone();
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || wake_tasks(&read))?;
        let thread = started.thread().clone();
        Ok(Self { shared: Arc::new(TimerThread { queue, thread, sleeps: AtomicU64::new(0) }) })
    }

    /// Returns a future that ends at `due`, or at once if it has passed.
    pub fn sleep_until(&self, due: Instant) -> PreciseSleep {
        let number = self.shared.sleeps.fetch_add(1, Ordering::Relaxed);
        PreciseSleep { shared: self.shared.clone(), key: (due, number) }
    }
}

/// A wait for an instant. The timer forgets the instant when this is dropped.
#[derive(Debug)]
#[must_use = "a sleep waits only while it is awaited"]
pub struct PreciseSleep {
    shared: Arc<TimerThread>,
    key: DueKey,
}

impl Future for PreciseSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.key.0 {
            return Poll::Ready(());
        }
        // A waker may own a task with a sleep, so it is dropped after the lock is released.
        let (is_awaited, _replaced) = self.shared.queue().insert(self.key, context.waker().clone());
        if is_awaited {
            self.shared.thread.unpark();
        }
        Poll::Pending
    }
}

impl Drop for PreciseSleep {
    fn drop(&mut self) {
        let _removed = self.shared.queue().remove(self.key);
    }
}

/// Wakes the tasks whose instants have come, until the queue is closed.
fn wake_tasks(queue: &Mutex<DueQueue<Waker>>) {
    loop {
        let (due, step) = {
            let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            (queue.take_due(now), queue.next_step(now))
        };
        due.into_iter().for_each(Waker::wake);
        match step {
            TimerStep::Park => thread::park(),
            TimerStep::ParkUntil(instant) => thread::park_timeout(instant.saturating_duration_since(Instant::now())),
            TimerStep::SpinUntil(instant) => {
                while Instant::now() < instant {
                    hint::spin_loop();
                }
            }
            TimerStep::End => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{
        executor::block_on,
        future::{Either, join_all, select},
    };

    use super::*;

    fn timer(spin: Duration) -> PreciseTimer {
        PreciseTimer::start("timer", spin).expect("the thread starts")
    }

    #[test]
    fn sleeps_are_never_early() {
        for timer in [timer(LAST_STRETCH), timer(Duration::ZERO)] {
            let begin = Instant::now();
            let sleeps = (0..200).map(|n| {
                let due = begin + Duration::from_micros(n * 7_919 % 20_000);
                let sleep = timer.sleep_until(due);
                async move {
                    sleep.await;
                    assert!(Instant::now() >= due);
                }
            });
            block_on(join_all(sleeps));
        }
    }

    #[test]
    fn thread_that_waits_for_a_later_instant_is_woken() {
        let timer = timer(LAST_STRETCH);
        let later = timer.sleep_until(Instant::now() + Duration::from_secs(3_600));
        let soon = timer.sleep_until(Instant::now() + Duration::from_millis(2));
        assert!(matches!(block_on(select(later, soon)), Either::Right(_)));
    }

    #[test]
    fn thread_ends_with_the_last_sleep() {
        let timer = timer(LAST_STRETCH);
        let mut sleep = timer.sleep_until(Instant::now() + Duration::from_secs(3_600));
        let queue = Arc::downgrade(&timer.shared.queue);
        drop(timer);
        assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(queue.strong_count(), 2, "the sleep and the thread");
        drop(sleep);
        while queue.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
