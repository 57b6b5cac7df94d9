//! Decides whether a worker instance is alive, and whether its clock is right.

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

/// The largest difference between the clock of an instance and that of the server that is not shown.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::minutes(1);

/// Returns the notice about the clock of an instance whose heartbeat of `sent`, by its own clock, is read at `now`. None if
/// the clocks agree, or if the heartbeat has no readable time, which is then the start of 1970. A heartbeat that has waited
/// for a server looks like one of a clock that is behind; the next one corrects it.
#[must_use]
pub fn clock_notice(sent: DateTime<Utc>, now: DateTime<Utc>) -> Option<String> {
    let difference = (sent - now).abs();
    if sent == DateTime::UNIX_EPOCH || difference <= MAX_CLOCK_DIFFERENCE {
        return None;
    }
    let side = if sent > now { "ahead of" } else { "behind" };
    // In few steps, so that the time which heartbeats take to arrive does not change the text.
    let amount = match difference.num_minutes() {
        0..10 => "more than a minute",
        10..60 => "more than ten minutes",
        _ => "more than an hour",
    };
    Some(format!(
        "The clock of this instance is {amount} {side} that of the server. Set up time synchronization on its machine: the start, the end and the log lines of its runs have wrong times."
    ))
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

    #[test]
    fn clock_that_differs_by_more_than_a_minute_is_noticed() {
        let now = DateTime::UNIX_EPOCH + Duration::days(1);
        let notice = |difference: Duration| clock_notice(now + difference, now);
        assert_eq!(notice(Duration::minutes(-1)), None);
        assert_eq!(notice(Duration::minutes(1)), None);
        assert!(notice(Duration::hours(-3)).is_some_and(|text| text.contains("more than an hour behind that")));
        assert!(notice(Duration::seconds(121)).is_some_and(|text| text.contains("more than a minute ahead of that")));
        assert_eq!(clock_notice(DateTime::UNIX_EPOCH, now), None, "its time could not be read");
    }
}
