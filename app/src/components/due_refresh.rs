//! Reads a page again once a due time on it has passed.
//!
//! The dispatcher moves the next due time of a job in the transaction that creates the occurrence, and no event is
//! needed to see that the time shown has passed: the page's clock follows the server's. A due time that stays in the past
//! (the cluster is paused, or a dispatcher is late) must not turn into a loop of reads, so the reads back off until a
//! later due time passes.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_protocol::backoff::Backoff;

use super::time::use_page_clock;
use crate::{browser, live::ThrottledRefresh};

/// The backoff between two reads for the same due time.
const READ_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The schedule of the reads for due times that have passed.
#[derive(Clone, Copy, Debug)]
struct DueBackoff {
    /// The latest due time that has passed.
    latest: DateTime<Utc>,
    next_read_at: DateTime<Utc>,
    backoff: Backoff,
}

impl Default for DueBackoff {
    fn default() -> Self {
        Self { latest: DateTime::<Utc>::MIN_UTC, next_read_at: DateTime::<Utc>::MIN_UTC, backoff: READ_BACKOFF }
    }
}

impl DueBackoff {
    /// Returns true if the page must be read now. `passed` is the latest due time on the page that has passed.
    fn is_time(&mut self, passed: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        if passed > self.latest {
            *self = Self { latest: passed, next_read_at: now, backoff: READ_BACKOFF };
        }
        if now < self.next_read_at {
            return false;
        }
        self.next_read_at = now + self.backoff.next_delay(1.0);
        true
    }
}

/// Requests `refresh` when a due time has passed. `passed` returns the latest due time on the page that is not after the
/// given time; it is called every second while the tab is visible, untracked.
pub fn use_due_refresh(
    passed: impl Fn(DateTime<Utc>) -> Option<DateTime<Utc>> + Send + Sync + 'static,
    refresh: ThrottledRefresh,
) {
    let clock = use_page_clock();
    let backoff = StoredValue::new(DueBackoff::default());
    Effect::new(move |_| {
        let Some(now) = clock.now() else { return };
        if browser::is_hidden() {
            return;
        }
        let is_time = untrack(|| passed(now))
            .is_some_and(|due| backoff.try_update_value(|backoff| backoff.is_time(due, now)) == Some(true));
        if is_time {
            refresh.request();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_795_000_000 + second, 0).expect("in range")
    }

    #[test]
    fn overdue_time_is_read_less_and_less_often() {
        let mut backoff = DueBackoff::default();
        let reads: Vec<i64> = (0..400).filter(|second| backoff.is_time(at(0), at(*second))).collect();
        assert_eq!(reads, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]);
    }

    #[test]
    fn later_due_time_is_read_at_once() {
        let mut backoff = DueBackoff::default();
        for second in 0..100 {
            backoff.is_time(at(0), at(second));
        }
        assert!(!backoff.is_time(at(0), at(100)));
        assert!(backoff.is_time(at(101), at(101)));
        assert!(!backoff.is_time(at(50), at(101)), "an older one that is still overdue waits");
    }
}
