//! Decides whether a worker instance is alive.

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::message::INSTANCE_TIMEOUT_SECONDS;

/// Returns true if the instance has not stopped and its heartbeat at `last` is recent enough at `now`.
#[must_use]
pub fn is_alive(last: DateTime<Utc>, stopped: bool, now: DateTime<Utc>) -> bool {
    !stopped && last >= alive_since(now)
}

/// Returns the oldest heartbeat that still counts as alive at `now`.
#[must_use]
pub fn alive_since(now: DateTime<Utc>) -> DateTime<Utc> {
    now - Duration::seconds(INSTANCE_TIMEOUT_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_is_dead_after_three_missed_heartbeats() {
        let now = DateTime::UNIX_EPOCH + Duration::hours(1);
        assert!(is_alive(now - Duration::seconds(15), false, now));
        assert!(!is_alive(now - Duration::seconds(16), false, now));
        assert!(!is_alive(now, true, now));
    }
}
