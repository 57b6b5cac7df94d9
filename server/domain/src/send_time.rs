//! The time at which a message is sent.
//!
//! An occurrence that is created ahead of its due time must not be sent before it. Messages that leave at one instant
//! form one batch; a batch for each microsecond would cost the broker more than the runs do.

use chrono::{DateTime, Duration, Utc};

/// Returns the time to send the message of an occurrence due at `due`: now if it is due, otherwise the due time rounded
/// up to a full millisecond, the resolution of a timer.
#[must_use]
pub fn send_time(due: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc> {
    if due <= now {
        return now;
    }
    match due.timestamp_subsec_nanos() % 1_000_000 {
        0 => due,
        rest => due + Duration::nanoseconds((1_000_000 - rest).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_time_is_rounded_up_to_milliseconds() {
        let at = |micros: i64| DateTime::from_timestamp_micros(1_800_000_000_000_000 + micros).expect("an instant");
        let now = at(5_400);
        for past in [at(-60_000_000), at(0), at(5_000), at(5_399), now] {
            assert_eq!(send_time(past, now), now);
        }
        assert_eq!(send_time(at(5_401), now), at(6_000));
        assert_eq!(send_time(at(6_000), now), at(6_000));
        assert_eq!(send_time(at(6_001), now), at(7_000));
    }
}
