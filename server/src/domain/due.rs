//! A job is due: what is fired, and when is it due again?

use chrono::{DateTime, Duration, Utc};
use protocol::schedule::Schedule;

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Firing {
    /// The due instant this fire is for.
    pub scheduled_for: DateTime<Utc>,
    /// When it is due next; none when nothing is left.
    pub next_fire_at: Option<DateTime<Utc>>,
}

/// Fires a job that was due at `due`. However many instants were missed while the scheduler was away, one occurrence is
/// made, for the earliest of them, and the rhythm goes on from `now`: a scheduler that wakes up must not flood.
#[must_use]
pub fn fire(schedule: &Schedule, due: DateTime<Utc>, end_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Firing {
    let next = schedule.next_from(due, now).filter(|next| end_at.is_none_or(|end| *next < end));
    Firing { scheduled_for: due, next_fire_at: next }
}

/// When a job that was just defined, edited or resumed is due first. Time that passed while it was paused is not
/// caught up.
#[must_use]
pub fn first(
    schedule: &Schedule,
    start_at: Option<DateTime<Utc>>,
    end_at: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Option<DateTime<Utc>> {
    // One millisecond before the start, so that a start that is itself a match counts.
    let after = start_at.map_or(now, |start| now.max(start - Duration::milliseconds(1)));
    schedule.next_after(after).filter(|next| end_at.is_none_or(|end| *next < end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("instant")
    }

    fn every(seconds: u64) -> Schedule {
        Schedule::Every { seconds }
    }

    #[test]
    fn many_missed_fires_become_one_and_the_rhythm_goes_on() {
        let firing = fire(&every(60), at("2026-01-01T00:00:00Z"), None, at("2026-01-01T03:00:30Z"));
        assert_eq!(firing.scheduled_for, at("2026-01-01T00:00:00Z"));
        assert_eq!(firing.next_fire_at, Some(at("2026-01-01T03:01:00Z")));
    }

    #[test]
    fn nothing_is_left_after_once_or_after_the_end() {
        let due = at("2026-01-01T00:00:00Z");
        assert_eq!(fire(&Schedule::Once { at: due }, due, None, due).next_fire_at, None);
        assert_eq!(fire(&every(60), due, Some(at("2026-01-01T00:01:00Z")), due).next_fire_at, None);
    }

    #[test]
    fn a_start_that_matches_counts() {
        let cron = Schedule::Cron { expression: "0 9 * * *".into(), zone: "UTC".into() };
        let start = at("2026-02-01T09:00:00Z");
        assert_eq!(first(&cron, Some(start), None, at("2026-01-01T00:00:00Z")), Some(start));
    }

    #[test]
    fn resuming_catches_nothing_up() {
        let now = at("2026-03-01T12:00:00Z");
        assert_eq!(first(&every(10), None, None, now), Some(now + Duration::seconds(10)));
    }
}
