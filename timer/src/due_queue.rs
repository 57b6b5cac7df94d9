//! The instants that a timer waits for, and the next step of its thread. Time comes in as a parameter.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// The most instants in [`BUSY_PERIOD`] up to which the thread spins. Spinning for 1,000 instants a second would take a
/// fifth of a core.
const MAX_SPUN_INSTANTS: usize = 100;
/// The period in which instants are counted.
const BUSY_PERIOD: Duration = Duration::from_secs(1);

/// An instant, and a number that distinguishes equal ones.
pub(crate) type DueKey = (Instant, u64);

/// The next step of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerStep {
    /// Parks until an instant is inserted.
    Park,
    /// Parks until this instant, or until an earlier one is inserted.
    ParkUntil(Instant),
    /// Spins until this instant.
    SpinUntil(Instant),
    /// Ends.
    End,
}

/// The instants that a timer waits for, each with what is woken then. They are in an ordered map, because a wait that
/// is given up removes its instant, and a heap of the standard library cannot.
#[derive(Debug)]
pub(crate) struct DueQueue<W> {
    waiting: BTreeMap<DueKey, W>,
    /// The time before an instant for which the thread spins.
    spin: Duration,
    /// The last times at which an instant had come, one more than [`MAX_SPUN_INSTANTS`].
    fired: VecDeque<Instant>,
    /// The instant at which the thread reads the queue again; none if it is parked until it is woken.
    next_look: Option<Instant>,
    is_closed: bool,
}

impl<W> DueQueue<W> {
    pub(crate) const fn new(spin: Duration) -> Self {
        Self { waiting: BTreeMap::new(), spin, fired: VecDeque::new(), next_look: None, is_closed: false }
    }

    /// Inserts an instant, or replaces what it wakes. Returns true if the thread must be woken for it, and what was
    /// replaced.
    pub(crate) fn insert(&mut self, key: DueKey, wakes: W) -> (bool, Option<W>) {
        (self.next_look.is_none_or(|look| key.0 < look), self.waiting.insert(key, wakes))
    }

    /// Removes an instant. Returns what it would have woken.
    pub(crate) fn remove(&mut self, key: DueKey) -> Option<W> {
        self.waiting.remove(&key)
    }

    /// Lets the thread end.
    pub(crate) const fn close(&mut self) {
        self.is_closed = true;
    }

    /// Removes the instants that have come by `now`. Returns what they wake, in their order.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<W> {
        let mut due = Vec::new();
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        if !due.is_empty() {
            if self.fired.len() > MAX_SPUN_INSTANTS {
                self.fired.pop_front();
            }
            self.fired.push_back(now);
        }
        due
    }

    /// Returns the next step after [`take_due`](Self::take_due) at the same `now`.
    pub(crate) fn next_step(&mut self, now: Instant) -> TimerStep {
        let step = match self.waiting.keys().next() {
            _ if self.is_closed => TimerStep::End,
            None => TimerStep::Park,
            Some((due, _)) => {
                let spin_from = due.checked_sub(self.spin).unwrap_or(*due);
                let park_until = if self.may_spin(spin_from) { spin_from } else { *due };
                if park_until > now { TimerStep::ParkUntil(park_until) } else { TimerStep::SpinUntil(*due) }
            }
        };
        self.next_look = match step {
            TimerStep::ParkUntil(instant) | TimerStep::SpinUntil(instant) => Some(instant),
            TimerStep::Park | TimerStep::End => None,
        };
        step
    }

    /// Returns true if few instants have come in the period before `from`.
    fn may_spin(&self, from: Instant) -> bool {
        let is_old = |fired: &Instant| from.saturating_duration_since(*fired) >= BUSY_PERIOD;
        self.fired.len() <= MAX_SPUN_INSTANTS || self.fired.front().is_none_or(is_old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(200);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn instants_are_taken_in_their_order() {
        let (mut queue, begin) = (DueQueue::new(SPIN), Instant::now());
        for (number, due) in (0..).zip([30, 10, 20, 10]) {
            queue.insert((begin + millis(due), number), number);
        }
        assert!(queue.take_due(begin + millis(10) - Duration::from_nanos(1)).is_empty());
        assert_eq!(queue.take_due(begin + millis(20)), [1, 3, 2]);
        assert!(queue.take_due(begin + millis(20)).is_empty(), "each is taken once");
        assert_eq!(queue.take_due(begin + millis(99)), [0]);
    }

    #[test]
    fn removed_instant_is_neither_taken_nor_waited_for() {
        let (mut queue, begin) = (DueQueue::new(SPIN), Instant::now());
        queue.insert((begin + millis(1), 0), "first");
        queue.insert((begin + millis(1), 1), "second");
        assert_eq!(queue.remove((begin + millis(1), 0)), Some("first"));
        assert_eq!(queue.remove((begin + millis(1), 0)), None);
        assert_eq!(queue.take_due(begin + millis(1)), ["second"]);
        queue.insert((begin + millis(5), 2), "third");
        queue.remove((begin + millis(5), 2));
        assert_eq!(queue.next_step(begin + millis(1)), TimerStep::Park, "nothing is left to wait for");
    }

    #[test]
    fn thread_parks_until_the_last_stretch() {
        let (mut queue, begin) = (DueQueue::new(SPIN), Instant::now());
        assert_eq!(queue.next_step(begin), TimerStep::Park);
        let due = begin + millis(5);
        queue.insert((due, 0), ());
        assert_eq!(queue.next_step(begin), TimerStep::ParkUntil(due - SPIN));
        assert_eq!(queue.next_step(due - SPIN), TimerStep::SpinUntil(due));
        assert_eq!(queue.take_due(due), [()]);
        assert_eq!(queue.next_step(due), TimerStep::Park);
        queue.close();
        assert_eq!(queue.next_step(due), TimerStep::End);
    }

    #[test]
    fn thread_is_woken_for_an_earlier_instant_only() {
        let (mut queue, begin) = (DueQueue::new(SPIN), Instant::now());
        queue.next_step(begin);
        assert!(queue.insert((begin + millis(5), 0), ()).0, "it is parked without an instant");
        queue.next_step(begin);
        assert!(!queue.insert((begin + millis(6), 1), ()).0);
        assert!(!queue.insert((begin + millis(5), 0), ()).0, "a waker that is replaced");
        assert!(queue.insert((begin + millis(4), 2), ()).0);
    }

    /// Returns the number of instants before which the thread spins, of so many in each of three seconds.
    fn spun_at(rate: u32, spin: Duration) -> u32 {
        let (mut queue, begin) = (DueQueue::new(spin), Instant::now());
        let (mut now, mut spun) = (begin, 0);
        for number in 1..=3 * rate {
            queue.insert((begin + Duration::from_secs(1) * number / rate, number.into()), ());
        }
        loop {
            queue.take_due(now);
            match queue.next_step(now) {
                TimerStep::ParkUntil(instant) => now = instant,
                TimerStep::SpinUntil(instant) => {
                    spun += 1;
                    now = instant;
                }
                TimerStep::Park | TimerStep::End => return spun,
            }
        }
    }

    #[test]
    fn thread_spins_only_while_instants_are_few() {
        assert_eq!(spun_at(1, SPIN), 3);
        assert_eq!(spun_at(100, SPIN), 300);
        assert_eq!(spun_at(1_000, SPIN), 101, "until it has counted them");
        assert_eq!(spun_at(1, Duration::ZERO), 0);
    }
}
