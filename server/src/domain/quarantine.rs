//! When may a run begin that has one more death of its worker to its name before it is given up?
//!
//! When a process dies, every run in it is lost, and nothing tells the one that ended it from those that were beside it.
//! All are run again at once, and after [`MAX_REQUEUES`] times a run is taken for the culprit. That is just only if the
//! innocent are not beside the culprit each time, and left to chance some are: what was lost together begins together.
//!
//! So for the last time they begin one after the other, in a *lane* for each worker: the next one when the one before has
//! ended, or has shown for [`QUARANTINE_OBSERVATION`] that it does not end its process at once. First is who never lived long
//! ([`next_to_release`]): of all that died together the culprit is nearly always the one that had begun last. It is then alone with
//! such as have more chances than one, and it alone is given up; those who waited behind it are acquitted, which gives
//! them one chance back, and begin at once.
//!
//! A culprit on a schedule is a new run each time, with all its chances left. So whoever dies young together with such as
//! are in the lane, or while they wait, goes there too, and is first.
//!
//! The price is paid only where processes die again and again and no run is to blame: runs that were lost three times
//! begin [`QUARANTINE_OBSERVATION`] apart. A culprit that needs longer than that, and lived longer than the others, may still take one
//! of its lane along.

use std::collections::HashSet;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::views::StatusChange;
use milvaion_protocol::status::OccurrenceStatus;

use super::lost_run::MAX_REQUEUES;

/// From how many requeues on a run takes its turn: it is its last.
pub const MIN_QUARANTINE_REQUEUES: i16 = MAX_REQUEUES;
/// When one that takes its turn begins, for people.
pub const QUARANTINE_NOTE: &str = "when no other that was lost so often has just begun";
/// How many requeues stand to the name of one that was acquitted.
pub const REQUEUES_AFTER_RELEASE: i16 = MIN_QUARANTINE_REQUEUES - 1;
/// For how long a run is waited for that has its turn and runs.
pub const QUARANTINE_OBSERVATION: Duration = Duration::seconds(10);
/// For how long one is waited for at most while the worker lives: nobody may begin it, or a clock may be wrong.
pub const MAX_RELEASE_WAIT: Duration = Duration::seconds(60);
/// How often a lane is looked at in which somebody waits.
pub const QUARANTINE_POLL_INTERVAL: Duration = Duration::milliseconds(500);
/// For how long after the culprit was given up those who come are acquitted too: they died with it, and were reported a
/// little later.
const LATE_LOSS_WINDOW: Duration = Duration::seconds(2);

/// Who has the turn in a lane, and what has become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineRelease {
    /// Which attempt was let go.
    pub attempt: i32,
    /// When.
    pub since: DateTime<Utc>,
    /// The occurrence as it is now; none when its row is gone.
    pub now: Option<OccurrenceState>,
    /// When it was given up as one that ends its process, if it was.
    pub poisoned_at: Option<DateTime<Utc>>,
    /// Whether an instance of the worker lives that could begin it.
    pub has_live_instance: bool,
}

/// What happens in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineDecision {
    /// Nothing yet.
    Wait,
    /// The first may begin.
    ReleaseNext,
    /// The culprit is found: whoever waited for a turn at this instant leaves the lane.
    ReleaseAll(DateTime<Utc>),
}

/// An occurrence as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccurrenceState {
    /// Its state.
    pub status: OccurrenceStatus,
    /// Its attempt.
    pub attempt: i32,
    /// When this attempt began, if it did.
    pub started_at: Option<DateTime<Utc>>,
}

/// Whether a run that is to begin again takes its turn. `requeues` counts those it had with this one; `lived` is how long
/// the attempt lasted that was lost, none if it ended otherwise; and the lane `is_open` when somebody waits in it, or comes
/// to it together with this one.
#[must_use]
pub fn needs_quarantine(requeues: i16, lived: Option<Duration>, is_open: bool) -> bool {
    requeues >= MIN_QUARANTINE_REQUEUES || (is_open && lived.is_some_and(|lived| lived < QUARANTINE_OBSERVATION))
}

/// Whose lanes open because of runs that were lost together and are run again: each with its worker and how many requeues
/// stand to its name with this one.
#[must_use]
pub fn newly_quarantined<'a>(again: impl IntoIterator<Item = (&'a str, i16)>) -> HashSet<&'a str> {
    again
        .into_iter()
        .filter(|(_, requeues)| needs_quarantine(*requeues, None, false))
        .map(|(worker_id, _)| worker_id)
        .collect()
}

/// What happens in a lane in which somebody waits.
#[must_use]
pub fn decide_quarantine(turn: Option<QuarantineRelease>, now: DateTime<Utc>) -> QuarantineDecision {
    let Some(QuarantineRelease { attempt, since, now: present, poisoned_at, has_live_instance }) = turn else {
        return QuarantineDecision::ReleaseNext;
    };
    if let Some(at) = poisoned_at {
        return QuarantineDecision::ReleaseAll(at + LATE_LOSS_WINDOW);
    }
    let is_proven = match present {
        Some(present) if present.attempt == attempt => match present.status {
            // The next one could not begin either. All that were let go meanwhile would begin together.
            OccurrenceStatus::Queued if !has_live_instance => return QuarantineDecision::Wait,
            OccurrenceStatus::Queued => false,
            // By the worker's clock; nothing has begun before it was let go.
            OccurrenceStatus::Running => {
                present.started_at.is_none_or(|started| now - started.max(since) >= QUARANTINE_OBSERVATION)
            }
            _ => true,
        },
        _ => true,
    };
    if is_proven || now - since >= MAX_RELEASE_WAIT {
        QuarantineDecision::ReleaseNext
    } else {
        QuarantineDecision::Wait
    }
}

/// Whose turn is next: of those who wait, by their steps, the one whose longest attempt was the shortest. None if nobody
/// waits.
#[must_use]
pub fn next_to_release<T: Ord + Copy>(waiting: &[(T, Vec<StatusChange>)]) -> Option<T> {
    waiting.iter().map(|(who, steps)| (longest_attempt(steps), *who)).min().map(|(_, who)| who)
}

/// How long the longest attempt lasted, up to the step that ended it.
fn longest_attempt(steps: &[StatusChange]) -> Duration {
    let attempts = steps.windows(2).filter(|pair| pair[0].status == OccurrenceStatus::Running);
    attempts.map(|pair| pair[1].at - pair[0].at).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINCE: DateTime<Utc> = DateTime::UNIX_EPOCH;

    fn after(millis: i64) -> DateTime<Utc> {
        SINCE + chrono::Duration::milliseconds(millis)
    }

    fn turn(status: OccurrenceStatus, attempt: i32, started_at: Option<DateTime<Utc>>) -> Option<QuarantineRelease> {
        let now = Some(OccurrenceState { status, attempt, started_at });
        Some(QuarantineRelease { attempt: 3, since: SINCE, now, poisoned_at: None, has_live_instance: true })
    }

    #[test]
    fn the_next_waits_until_the_one_before_has_run_for_a_while() {
        let running = turn(OccurrenceStatus::Running, 3, Some(after(1_000)));
        assert_eq!([1_000, 10_999].map(|at| decide_quarantine(running, after(at))), [QuarantineDecision::Wait; 2]);
        assert_eq!(decide_quarantine(running, after(11_000)), QuarantineDecision::ReleaseNext);
        let queued = turn(OccurrenceStatus::Queued, 3, None);
        assert_eq!(decide_quarantine(queued, after(59_999)), QuarantineDecision::Wait);
        assert_eq!(
            decide_quarantine(queued, after(60_000)),
            QuarantineDecision::ReleaseNext,
            "nobody begins it: no reason to wait for ever"
        );
        let unserved = queued.map(|turn| QuarantineRelease { has_live_instance: false, ..turn });
        assert_eq!(
            decide_quarantine(unserved, after(3_600_000)),
            QuarantineDecision::Wait,
            "nobody is there: no reason to let more go"
        );
        let ahead = turn(OccurrenceStatus::Running, 3, Some(after(3_600_000)));
        assert_eq!(decide_quarantine(ahead, after(59_999)), QuarantineDecision::Wait);
        assert_eq!(
            decide_quarantine(ahead, after(60_000)),
            QuarantineDecision::ReleaseNext,
            "its worker's clock is an hour ahead"
        );
        let behind = turn(OccurrenceStatus::Running, 3, Some(after(-3_600_000)));
        assert_eq!(
            decide_quarantine(behind, after(9_999)),
            QuarantineDecision::Wait,
            "its worker's clock is an hour behind"
        );
    }

    #[test]
    fn nobody_is_waited_for_who_has_ended_or_waits_again_or_is_gone() {
        use OccurrenceStatus as S;
        for status in [S::Completed, S::Failed, S::Cancelled, S::TimedOut, S::Unknown, S::Skipped] {
            assert_eq!(
                decide_quarantine(turn(status, 3, Some(SINCE)), SINCE),
                QuarantineDecision::ReleaseNext,
                "{status:?}"
            );
        }
        assert_eq!(decide_quarantine(turn(S::Queued, 4, None), SINCE), QuarantineDecision::ReleaseNext);
        assert_eq!(decide_quarantine(turn(S::Running, 4, Some(SINCE)), SINCE), QuarantineDecision::ReleaseNext);
        let gone =
            QuarantineRelease { attempt: 3, since: SINCE, now: None, poisoned_at: None, has_live_instance: true };
        assert_eq!(decide_quarantine(Some(gone), SINCE), QuarantineDecision::ReleaseNext);
        assert_eq!(decide_quarantine(None, SINCE), QuarantineDecision::ReleaseNext);
    }

    #[test]
    fn those_that_waited_when_the_culprit_was_given_up_leave_the_lane() {
        let given_up = turn(OccurrenceStatus::Failed, 3, Some(SINCE));
        let given_up = given_up.map(|turn| QuarantineRelease { poisoned_at: Some(after(500)), ..turn });
        assert_eq!(decide_quarantine(given_up, after(60_000)), QuarantineDecision::ReleaseAll(after(2_500)));
    }

    #[test]
    fn turns_are_taken_for_the_last_chance_and_by_who_died_young_beside_such() {
        let (young, old) = (Some(Duration::milliseconds(9_999)), Some(Duration::seconds(10)));
        for lived in [None, young, old] {
            assert!(needs_quarantine(3, lived, false) && needs_quarantine(3, lived, true), "{lived:?}");
            assert!(!needs_quarantine(2, lived, false), "{lived:?}");
        }
        assert_eq!([None, young, old].map(|lived| needs_quarantine(1, lived, true)), [false, true, false]);
    }

    #[test]
    fn first_is_who_never_lived_long() {
        let steps = |lives: &[i64]| -> Vec<StatusChange> {
            let step = |status, at| StatusChange { status, at: after(at), attempt: 1, by: None, note: None };
            let lives = lives.iter().enumerate();
            let begun = lives.flat_map(|(n, life)| {
                let at = i64::try_from(n).expect("few") * 100_000;
                [
                    step(OccurrenceStatus::Queued, at),
                    step(OccurrenceStatus::Running, at + 10_000),
                    step(OccurrenceStatus::Queued, at + 10_000 + life),
                ]
            });
            begun.collect()
        };
        // They died together twice, and the first time one of them had run for a while.
        let (innocent, culprit) = ((1, steps(&[8_000, 200, 200])), (2, steps(&[200, 200, 200])));
        assert_eq!(next_to_release(&[innocent.clone(), culprit.clone()]), Some(2));
        assert_eq!(next_to_release(&[culprit, innocent.clone()]), Some(2));
        assert_eq!(next_to_release(&[(3, innocent.1.clone()), innocent]), Some(1), "the older one of equals");
        assert_eq!(next_to_release(&[(1, Vec::new())]), Some(1));
        assert_eq!(next_to_release::<i32>(&[]), None);
    }
}
