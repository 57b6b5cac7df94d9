//! When may a run begin that has one more death of its worker to its name before it is given up?
//!
//! When a process dies, every run in it is lost, and nothing tells the one that ended it from those that were beside it.
//! All are run again at once, and after [`MAX_RESCUES`] times a run is taken for the culprit. That is just only if the
//! innocent are not beside the culprit each time, and left to chance some are: what was lost together begins together.
//!
//! So for the last time they begin one after the other, in a *lane* for each worker: the next one when the one before has
//! ended, or has shown for [`PROBATION`] that it does not end its process at once. First is who never lived long
//! ([`first`]): of all that died together the culprit is nearly always the one that had begun last. It is then alone with
//! such as have more chances than one, and it alone is given up; those who waited behind it are acquitted, which gives
//! them one chance back, and begin at once.
//!
//! A culprit on a schedule is a new run each time, with all its chances left. So whoever dies young together with such as
//! are in the lane, or while they wait, goes there too, and is first.
//!
//! The price is paid only where processes die again and again and no run is to blame: runs that were lost three times
//! begin [`PROBATION`] apart. A culprit that needs longer than that, and lived longer than the others, may still take one
//! of its lane along.

use std::collections::HashSet;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::view::StatusChange;
use milvaion_protocol::status::OccurrenceStatus;

use super::zombie::MAX_RESCUES;

/// From how many rescues on a run takes its turn: it is its last.
pub const FROM: i16 = MAX_RESCUES;
/// When one that takes its turn begins, for people.
pub const IN_TURN: &str = "when no other that was lost so often has just begun";
/// How many rescues stand to the name of one that was acquitted.
pub const ACQUITTED: i16 = FROM - 1;
/// For how long a run is waited for that has its turn and runs.
pub const PROBATION: Duration = Duration::seconds(10);
/// For how long one is waited for at most while the worker lives: nobody may begin it, or a clock may be wrong.
pub const PATIENCE: Duration = Duration::seconds(60);
/// How often a lane is looked at in which somebody waits.
pub const LOOK: Duration = Duration::milliseconds(500);
/// For how long after the culprit was given up those who come are acquitted too: they died with it, and were reported a
/// little later.
const AFTERMATH: Duration = Duration::seconds(2);

/// Who has the turn in a lane, and what has become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Which attempt was let go.
    pub attempt: i32,
    /// When.
    pub since: DateTime<Utc>,
    /// The occurrence as it is now; none when its row is gone.
    pub now: Option<Present>,
    /// When it was given up as one that ends its process, if it was.
    pub given_up_at: Option<DateTime<Utc>>,
    /// Whether an instance of the worker lives that could begin it.
    pub is_served: bool,
}

/// What happens in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Nothing yet.
    Wait,
    /// The first may begin.
    First,
    /// The culprit is found: whoever waited for a turn at this instant leaves the lane.
    Acquit(DateTime<Utc>),
}

/// An occurrence as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// Its state.
    pub status: OccurrenceStatus,
    /// Its attempt.
    pub attempt: i32,
    /// When this attempt began, if it did.
    pub started_at: Option<DateTime<Utc>>,
}

/// Whether a run that is to begin again takes its turn. `rescues` counts those it had with this one; `lived` is how long
/// the attempt lasted that was lost, none if it ended otherwise; and the lane `is_open` when somebody waits in it, or comes
/// to it together with this one.
#[must_use]
pub fn takes_turn(rescues: i16, lived: Option<Duration>, is_open: bool) -> bool {
    rescues >= FROM || (is_open && lived.is_some_and(|lived| lived < PROBATION))
}

/// Whose lanes open because of runs that were lost together and are run again: each with its worker and how many rescues
/// stand to its name with this one.
#[must_use]
pub fn opened<'a>(again: impl IntoIterator<Item = (&'a str, i16)>) -> HashSet<&'a str> {
    again.into_iter().filter(|(_, rescues)| takes_turn(*rescues, None, false)).map(|(worker_id, _)| worker_id).collect()
}

/// What happens in a lane in which somebody waits.
#[must_use]
pub fn signal(turn: Option<Turn>, now: DateTime<Utc>) -> Signal {
    let Some(Turn { attempt, since, now: present, given_up_at, is_served }) = turn else { return Signal::First };
    if let Some(at) = given_up_at {
        return Signal::Acquit(at + AFTERMATH);
    }
    let is_proven = match present {
        Some(present) if present.attempt == attempt => match present.status {
            // The next one could not begin either. All that were let go meanwhile would begin together.
            OccurrenceStatus::Queued if !is_served => return Signal::Wait,
            OccurrenceStatus::Queued => false,
            // By the worker's clock; nothing has begun before it was let go.
            OccurrenceStatus::Running => present.started_at.is_none_or(|started| now - started.max(since) >= PROBATION),
            _ => true,
        },
        _ => true,
    };
    if is_proven || now - since >= PATIENCE { Signal::First } else { Signal::Wait }
}

/// Whose turn is next: of those who wait, by their steps, the one whose longest attempt was the shortest. None if nobody
/// waits.
#[must_use]
pub fn first<T: Ord + Copy>(waiting: &[(T, Vec<StatusChange>)]) -> Option<T> {
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

    fn turn(status: OccurrenceStatus, attempt: i32, started_at: Option<DateTime<Utc>>) -> Option<Turn> {
        let now = Some(Present { status, attempt, started_at });
        Some(Turn { attempt: 3, since: SINCE, now, given_up_at: None, is_served: true })
    }

    #[test]
    fn the_next_waits_until_the_one_before_has_run_for_a_while() {
        let running = turn(OccurrenceStatus::Running, 3, Some(after(1_000)));
        assert_eq!([1_000, 10_999].map(|at| signal(running, after(at))), [Signal::Wait; 2]);
        assert_eq!(signal(running, after(11_000)), Signal::First);
        let queued = turn(OccurrenceStatus::Queued, 3, None);
        assert_eq!(signal(queued, after(59_999)), Signal::Wait);
        assert_eq!(signal(queued, after(60_000)), Signal::First, "nobody begins it: no reason to wait for ever");
        let unserved = queued.map(|turn| Turn { is_served: false, ..turn });
        assert_eq!(signal(unserved, after(3_600_000)), Signal::Wait, "nobody is there: no reason to let more go");
        let ahead = turn(OccurrenceStatus::Running, 3, Some(after(3_600_000)));
        assert_eq!(signal(ahead, after(59_999)), Signal::Wait);
        assert_eq!(signal(ahead, after(60_000)), Signal::First, "its worker's clock is an hour ahead");
        let behind = turn(OccurrenceStatus::Running, 3, Some(after(-3_600_000)));
        assert_eq!(signal(behind, after(9_999)), Signal::Wait, "its worker's clock is an hour behind");
    }

    #[test]
    fn nobody_is_waited_for_who_has_ended_or_waits_again_or_is_gone() {
        use OccurrenceStatus as S;
        for status in [S::Completed, S::Failed, S::Cancelled, S::TimedOut, S::Unknown, S::Skipped] {
            assert_eq!(signal(turn(status, 3, Some(SINCE)), SINCE), Signal::First, "{status:?}");
        }
        assert_eq!(signal(turn(S::Queued, 4, None), SINCE), Signal::First);
        assert_eq!(signal(turn(S::Running, 4, Some(SINCE)), SINCE), Signal::First);
        let gone = Turn { attempt: 3, since: SINCE, now: None, given_up_at: None, is_served: true };
        assert_eq!(signal(Some(gone), SINCE), Signal::First);
        assert_eq!(signal(None, SINCE), Signal::First);
    }

    #[test]
    fn those_that_waited_when_the_culprit_was_given_up_leave_the_lane() {
        let given_up = turn(OccurrenceStatus::Failed, 3, Some(SINCE));
        let given_up = given_up.map(|turn| Turn { given_up_at: Some(after(500)), ..turn });
        assert_eq!(signal(given_up, after(60_000)), Signal::Acquit(after(2_500)));
    }

    #[test]
    fn turns_are_taken_for_the_last_chance_and_by_who_died_young_beside_such() {
        let (young, old) = (Some(Duration::milliseconds(9_999)), Some(Duration::seconds(10)));
        for lived in [None, young, old] {
            assert!(takes_turn(3, lived, false) && takes_turn(3, lived, true), "{lived:?}");
            assert!(!takes_turn(2, lived, false), "{lived:?}");
        }
        assert_eq!([None, young, old].map(|lived| takes_turn(1, lived, true)), [false, true, false]);
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
        assert_eq!(first(&[innocent.clone(), culprit.clone()]), Some(2));
        assert_eq!(first(&[culprit, innocent.clone()]), Some(2));
        assert_eq!(first(&[(3, innocent.1.clone()), innocent]), Some(1), "the older one of equals");
        assert_eq!(first(&[(1, Vec::new())]), Some(1));
        assert_eq!(first::<i32>(&[]), None);
    }
}
