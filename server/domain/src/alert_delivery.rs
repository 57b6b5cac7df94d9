//! Decides when a message about an alert is sent again after an attempt that failed.

use chrono::{DateTime, TimeDelta, Utc};

/// The time from the first attempt to the second.
const FIRST_PAUSE: TimeDelta = TimeDelta::seconds(10);
/// The longest time between two attempts.
const LONGEST_PAUSE: TimeDelta = TimeDelta::minutes(30);
/// The time for which a message is tried.
pub const DELIVERY_LIMIT: TimeDelta = TimeDelta::hours(24);

/// Returns the time of the attempt after attempt number `attempt`, which failed at `now`; `None` if the message, which was
/// made at `created_at`, is given up. An error that the next attempt meets too, such as an unknown address, is tried at
/// the longest pause: a user may correct the channel or the receiver meanwhile.
#[must_use]
pub fn next_attempt(
    attempt: i32,
    is_permanent: bool,
    created_at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Option<DateTime<Utc>> {
    let doublings = u32::try_from(attempt - 1).unwrap_or_default().min(16);
    let pause = if is_permanent { LONGEST_PAUSE } else { (FIRST_PAUSE * 2_i32.pow(doublings)).min(LONGEST_PAUSE) };
    let at = now + pause;
    (at - created_at <= DELIVERY_LIMIT).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(attempt: i32, is_permanent: bool) -> Option<i64> {
        let now = DateTime::UNIX_EPOCH + TimeDelta::hours(1);
        next_attempt(attempt, is_permanent, DateTime::UNIX_EPOCH, now).map(|at| (at - now).num_seconds())
    }

    #[test]
    fn pauses_double_up_to_half_an_hour() {
        let pauses: Vec<_> = [1, 2, 3, 8, 9, 100].into_iter().filter_map(|attempt| pause(attempt, false)).collect();
        assert_eq!(pauses, [10, 20, 40, 1_280, 1_800, 1_800]);
        assert_eq!(pause(1, true), Some(1_800));
    }

    #[test]
    fn message_is_given_up_after_a_day() {
        let created = DateTime::UNIX_EPOCH;
        let at = created + DELIVERY_LIMIT - TimeDelta::minutes(30);
        assert_eq!(next_attempt(20, false, created, at), Some(created + DELIVERY_LIMIT));
        assert_eq!(next_attempt(20, false, created, at + TimeDelta::seconds(1)), None);
    }
}
