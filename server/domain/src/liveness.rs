//! Decides the state of a worker instance, and whether its clock is right.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::views::InstanceState;
use milvaion_protocol::message::INSTANCE_TIMEOUT_SECONDS;

/// The signs from which the state of an instance follows.
#[derive(Clone, Copy, Debug)]
pub struct InstanceSigns {
    /// The time of the last heartbeat over RabbitMQ.
    pub last_heartbeat_at: DateTime<Utc>,
    /// The last time at which its heartbeat in Redis showed that it is alive although none arrived over RabbitMQ.
    pub seen_in_redis_at: Option<DateTime<Utc>>,
    /// True if the last heartbeat announced that the instance stops.
    pub is_stopping: bool,
    /// True if the instance has reported its shutdown.
    pub is_stopped: bool,
    /// True if runs of the instance are open. Counts only for one without recent heartbeats.
    pub has_runs: bool,
}

/// Returns the state of an instance at `now`. A goodbye may arrive before the reports of the last runs, so these count
/// as left behind only when heartbeats have stayed out for as long as those of a lost instance.
#[must_use]
pub fn instance_state(signs: InstanceSigns, now: DateTime<Utc>) -> InstanceState {
    let is_silent = signs.last_heartbeat_at < alive_since(now);
    let is_in_redis = signs.seen_in_redis_at.is_some_and(|at| at >= alive_since(now));
    match (signs.is_stopped, is_silent) {
        (false, false) if signs.is_stopping => InstanceState::Completing,
        (false, false) => InstanceState::Active,
        (false, true) if is_in_redis => InstanceState::Unreachable,
        (_, true) if signs.has_runs => InstanceState::Draining,
        (false, true) => InstanceState::Lost,
        (true, _) => InstanceState::Gone,
    }
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
    fn state_follows_from_heartbeats_runs_and_goodbye() {
        use InstanceState::{Active, Completing, Draining, Gone, Lost, Unreachable};

        let now = DateTime::UNIX_EPOCH + Duration::hours(1);
        let state = |seconds, is_stopping, is_stopped, has_runs, seen: Option<i64>| {
            let before = |seconds| now - Duration::seconds(seconds);
            let (last_heartbeat_at, seen_in_redis_at) = (before(seconds), seen.map(before));
            let signs = InstanceSigns { last_heartbeat_at, seen_in_redis_at, is_stopping, is_stopped, has_runs };
            instance_state(signs, now)
        };
        // Seconds since the last heartbeat; whether it announced a stop, a goodbye followed and runs are open; seconds
        // since the instance was seen in Redis.
        for (silent, is_stopping, is_stopped, has_runs, seen, expected) in [
            (0, false, false, false, None, Active),
            (15, false, false, true, None, Active),
            (15, true, false, true, None, Completing),
            (15, false, false, true, Some(0), Active),
            (16, false, false, true, Some(15), Unreachable),
            (16, true, false, true, Some(0), Unreachable),
            (16, false, false, true, Some(16), Draining),
            (16, false, false, true, None, Draining),
            (16, true, false, true, None, Draining),
            (16, false, false, false, None, Lost),
            (16, true, false, false, Some(16), Lost),
            (0, true, true, true, None, Gone),
            (0, false, true, false, Some(0), Gone),
            (16, true, true, true, Some(0), Draining),
            (16, true, true, false, None, Gone),
        ] {
            let found = state(silent, is_stopping, is_stopped, has_runs, seen);
            assert_eq!(found, expected, "{silent} s, {is_stopping} {is_stopped} {has_runs} {seen:?}");
        }
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
