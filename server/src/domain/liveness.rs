//! Is a worker instance there?

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::message::INSTANCE_TIMEOUT_SECONDS;

/// Whether a sign of life at `last` is recent enough at `now`.
#[must_use]
pub fn is_alive(last: DateTime<Utc>, stopped: bool, now: DateTime<Utc>) -> bool {
    !stopped && last >= alive_since(now)
}

/// The oldest sign of life that still counts at `now`.
#[must_use]
pub fn alive_since(now: DateTime<Utc>) -> DateTime<Utc> {
    now - Duration::seconds(INSTANCE_TIMEOUT_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_missed_heartbeats_are_one_too_many() {
        let now = DateTime::UNIX_EPOCH + Duration::hours(1);
        assert!(is_alive(now - Duration::seconds(15), false, now));
        assert!(!is_alive(now - Duration::seconds(16), false, now));
        assert!(!is_alive(now, true, now));
    }
}
