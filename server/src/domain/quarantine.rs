//! Quarantine: serializes runs that have one crash of their worker left before they are failed as poison.
//!
//! When a worker process dies, every run in it is lost, and nothing distinguishes the run that crashed the process from
//! the runs beside it. All of them are requeued at once, and after [`MAX_REQUEUES`] requeues the next loss fails a run
//! as poison. That is fair only if innocent runs do not share a process with the poison run every time. By chance some
//! do, because runs that were lost together also restart together.
//!
//! For their last attempt, runs therefore start one after the other, in one quarantine per worker. The next run starts
//! when the previous one has ended, or has run for [`QUARANTINE_OBSERVATION`] without crashing its process. The run
//! whose attempts were the shortest goes first ([`next_to_release`]): of the runs that died together, the poison run is
//! nearly always the one that started last. It then shares its process only with runs that have more attempts left, and
//! it alone is failed. The runs that waited behind it are released at once and get one requeue back.
//!
//! A scheduled poison job creates a new run each time, with all its requeues left. A run that is lost soon after its
//! start, together with quarantined runs or while runs wait in quarantine, is therefore quarantined too, and goes
//! first.
//!
//! Quarantine costs time only where processes crash repeatedly without a poison run: runs that were lost three times
//! then start [`QUARANTINE_OBSERVATION`] apart. A poison run that needs longer than that to crash, and has run longer
//! than the others, can still crash a process with one quarantined run in it.

use std::collections::HashSet;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::views::StatusChange;
use milvaion_protocol::status::OccurrenceStatus;

use super::lost_run::MAX_REQUEUES;

/// Number of requeues from which a run is quarantined: the attempt that follows is its last.
pub const MIN_QUARANTINE_REQUEUES: i16 = MAX_REQUEUES;
/// The start time of a quarantined run as the notes for users describe it: "attempt 4 starts …".
pub const QUARANTINE_NOTE: &str = "after the runs ahead of it in quarantine";
/// Requeue count of a run that leaves quarantine because the poison run was found.
pub const REQUEUES_AFTER_RELEASE: i16 = MIN_QUARANTINE_REQUEUES - 1;
/// Time that a released run is observed while it runs, before the next one is released.
pub const QUARANTINE_OBSERVATION: Duration = Duration::seconds(10);
/// Maximum time to wait for a released run while its worker is alive: no instance may start it, or a clock may be
/// wrong.
pub const MAX_RELEASE_WAIT: Duration = Duration::seconds(60);
/// Interval at which a quarantine with waiting runs is checked.
pub const QUARANTINE_POLL_INTERVAL: Duration = Duration::milliseconds(500);
/// Time after the poison run failed in which newly quarantined runs are released too. They died with the poison run and
/// were reported a little later.
const LATE_LOSS_WINDOW: Duration = Duration::seconds(2);

/// The run that was released from a quarantine last, with its present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineRelease {
    /// The attempt that was released.
    pub attempt: i32,
    /// The instant of the release.
    pub since: DateTime<Utc>,
    /// The occurrence's present state; none if its row was deleted.
    pub state: Option<OccurrenceState>,
    /// The instant at which it was failed as poison, if it was.
    pub poisoned_at: Option<DateTime<Utc>>,
    /// True if a live instance of the worker could start it.
    pub has_live_instance: bool,
}

/// The next action in a quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineDecision {
    /// Nothing is released yet.
    Wait,
    /// The next run may start.
    ReleaseNext,
    /// The poison run was found: every run that was quarantined by this instant is released.
    ReleaseAll(DateTime<Utc>),
}

/// The present state of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccurrenceState {
    /// The stored status.
    pub status: OccurrenceStatus,
    /// The attempt in force, from 1.
    pub attempt: i32,
    /// The start of this attempt, if it has started.
    pub started_at: Option<DateTime<Utc>>,
}

/// Returns true if a run that is about to be requeued must be quarantined.
///
/// `requeues` includes the requeue being decided. `lived` is the duration of the lost attempt; `None` if the attempt
/// ended otherwise. `is_open` is true if runs wait in the worker's quarantine or enter it together with this run.
#[must_use]
pub fn needs_quarantine(requeues: i16, lived: Option<Duration>, is_open: bool) -> bool {
    requeues >= MIN_QUARANTINE_REQUEUES || (is_open && lived.is_some_and(|lived| lived < QUARANTINE_OBSERVATION))
}

/// Returns the workers whose quarantine is opened by runs that were lost together and are requeued. Each run is given
/// as its worker and its requeue count including this requeue.
#[must_use]
pub fn newly_quarantined<'a>(requeued: impl IntoIterator<Item = (&'a str, i16)>) -> HashSet<&'a str> {
    requeued
        .into_iter()
        .filter(|(_, requeues)| needs_quarantine(*requeues, None, false))
        .map(|(worker_id, _)| worker_id)
        .collect()
}

/// Decides if a run is released from a quarantine in which runs wait.
#[must_use]
pub fn decide_quarantine(released: Option<QuarantineRelease>, now: DateTime<Utc>) -> QuarantineDecision {
    let Some(QuarantineRelease { attempt, since, state, poisoned_at, has_live_instance }) = released else {
        return QuarantineDecision::ReleaseNext;
    };
    if let Some(at) = poisoned_at {
        return QuarantineDecision::ReleaseAll(at + LATE_LOSS_WINDOW);
    }
    let is_stable = match state {
        Some(state) if state.attempt == attempt => match state.status {
            // The next run could not start either, and all runs released meanwhile would start together.
            OccurrenceStatus::Queued if !has_live_instance => return QuarantineDecision::Wait,
            OccurrenceStatus::Queued => false,
            // `started_at` is by the worker's clock; no run starts before its release.
            OccurrenceStatus::Running => {
                state.started_at.is_none_or(|started| now - started.max(since) >= QUARANTINE_OBSERVATION)
            }
            _ => true,
        },
        _ => true,
    };
    if is_stable || now - since >= MAX_RELEASE_WAIT {
        QuarantineDecision::ReleaseNext
    } else {
        QuarantineDecision::Wait
    }
}

/// Returns the next run to release: of the waiting runs, by their status changes, the one whose longest attempt was the
/// shortest. `None` if no run waits.
#[must_use]
pub fn next_to_release<T: Ord + Copy>(waiting: &[(T, Vec<StatusChange>)]) -> Option<T> {
    waiting.iter().map(|(run, steps)| (longest_attempt(steps), *run)).min().map(|(_, run)| run)
}

/// Returns the duration of the longest attempt, up to the status change that ended it.
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

    fn released(
        status: OccurrenceStatus,
        attempt: i32,
        started_at: Option<DateTime<Utc>>,
    ) -> Option<QuarantineRelease> {
        let state = Some(OccurrenceState { status, attempt, started_at });
        Some(QuarantineRelease { attempt: 3, since: SINCE, state, poisoned_at: None, has_live_instance: true })
    }

    #[test]
    fn next_waits_until_the_previous_has_run_for_a_while() {
        let running = released(OccurrenceStatus::Running, 3, Some(after(1_000)));
        assert_eq!([1_000, 10_999].map(|at| decide_quarantine(running, after(at))), [QuarantineDecision::Wait; 2]);
        assert_eq!(decide_quarantine(running, after(11_000)), QuarantineDecision::ReleaseNext);
        let queued = released(OccurrenceStatus::Queued, 3, None);
        assert_eq!(decide_quarantine(queued, after(59_999)), QuarantineDecision::Wait);
        assert_eq!(
            decide_quarantine(queued, after(60_000)),
            QuarantineDecision::ReleaseNext,
            "no instance starts it: the wait is bounded"
        );
        let unserved = queued.map(|released| QuarantineRelease { has_live_instance: false, ..released });
        assert_eq!(
            decide_quarantine(unserved, after(3_600_000)),
            QuarantineDecision::Wait,
            "no instance is alive: releasing more runs would start them together"
        );
        let ahead = released(OccurrenceStatus::Running, 3, Some(after(3_600_000)));
        assert_eq!(decide_quarantine(ahead, after(59_999)), QuarantineDecision::Wait);
        assert_eq!(
            decide_quarantine(ahead, after(60_000)),
            QuarantineDecision::ReleaseNext,
            "its worker's clock is an hour ahead"
        );
        let behind = released(OccurrenceStatus::Running, 3, Some(after(-3_600_000)));
        assert_eq!(
            decide_quarantine(behind, after(9_999)),
            QuarantineDecision::Wait,
            "its worker's clock is an hour behind"
        );
    }

    #[test]
    fn ended_requeued_or_deleted_run_is_not_waited_for() {
        use OccurrenceStatus as S;
        for status in [S::Completed, S::Failed, S::Cancelled, S::TimedOut, S::Unknown, S::Skipped] {
            assert_eq!(
                decide_quarantine(released(status, 3, Some(SINCE)), SINCE),
                QuarantineDecision::ReleaseNext,
                "{status:?}"
            );
        }
        assert_eq!(decide_quarantine(released(S::Queued, 4, None), SINCE), QuarantineDecision::ReleaseNext);
        assert_eq!(decide_quarantine(released(S::Running, 4, Some(SINCE)), SINCE), QuarantineDecision::ReleaseNext);
        let gone =
            QuarantineRelease { attempt: 3, since: SINCE, state: None, poisoned_at: None, has_live_instance: true };
        assert_eq!(decide_quarantine(Some(gone), SINCE), QuarantineDecision::ReleaseNext);
        assert_eq!(decide_quarantine(None, SINCE), QuarantineDecision::ReleaseNext);
    }

    #[test]
    fn waiting_runs_are_released_with_the_poison_run() {
        let poisoned = released(OccurrenceStatus::Failed, 3, Some(SINCE));
        let poisoned = poisoned.map(|released| QuarantineRelease { poisoned_at: Some(after(500)), ..released });
        assert_eq!(decide_quarantine(poisoned, after(60_000)), QuarantineDecision::ReleaseAll(after(2_500)));
    }

    #[test]
    fn last_requeue_and_short_lived_neighbours_are_quarantined() {
        let (young, old) = (Some(Duration::milliseconds(9_999)), Some(Duration::seconds(10)));
        for lived in [None, young, old] {
            assert!(needs_quarantine(3, lived, false) && needs_quarantine(3, lived, true), "{lived:?}");
            assert!(!needs_quarantine(2, lived, false), "{lived:?}");
        }
        assert_eq!([None, young, old].map(|lived| needs_quarantine(1, lived, true)), [false, true, false]);
    }

    #[test]
    fn shortest_lived_run_is_released_first() {
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
        // They died together twice; before that, one of them had run for a while.
        let (innocent, poison) = ((1, steps(&[8_000, 200, 200])), (2, steps(&[200, 200, 200])));
        assert_eq!(next_to_release(&[innocent.clone(), poison.clone()]), Some(2));
        assert_eq!(next_to_release(&[poison, innocent.clone()]), Some(2));
        assert_eq!(next_to_release(&[(3, innocent.1.clone()), innocent]), Some(1), "the older one of equals");
        assert_eq!(next_to_release(&[(1, Vec::new())]), Some(1));
        assert_eq!(next_to_release::<i32>(&[]), None);
    }
}
