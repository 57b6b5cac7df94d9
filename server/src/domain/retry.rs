//! Is a failed attempt the last one, and if not, when does the next begin?
//!
//! A worker reports how an attempt ended and knows nothing of what follows. Whether there is a retry left is decided
//! here, from what the occurrence has behind it, so that a worker in any language has retries by reporting that it
//! failed, and nobody's place or memory is taken up while a retry waits.
//!
//! Two counts are kept apart. The *attempt* tells one start from the next and fences late reports; it grows with every
//! start. The *failures* are what the job's retries are counted against: an attempt that was lost with its worker, or
//! handed back because the worker stopped, is repeated without being one.

use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::{
    failure::Cause, id::OccurrenceId, rules::LONGEST_PAUSE_SECONDS, status::OccurrenceStatus, view::StatusChange,
};
use sha2::{Digest, Sha256};

use super::{
    transition::Change,
    zombie::{self, Fate, OnLost},
};

/// The longest pause before an attempt, whoever asks for it.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest pause that doubling leads to.
const LONGEST_BACKOFF: Duration = Duration::from_secs(LONGEST_PAUSE_SECONDS);
/// How far apart runs begin again at most that were lost with a worker, for each time it has happened to them before. What
/// was lost together is reported together; begun again together, the innocent would share a worker with the one that ends
/// its process each time, and be taken for such a one too.
const APART: Duration = Duration::from_secs(2);
/// An occurrence that was handed back so often is going round in circles.
const MOST_ATTEMPTS: i32 = 10_000;

/// What an occurrence has behind it and may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How many attempts have failed already.
    pub failures: i16,
    /// How many may be repeated.
    pub max_retries: i16,
    /// The pause before the first retry; each further one doubles it.
    pub base_delay: Duration,
    /// How much of a pause may be taken off, in percent of it: 0 to 100.
    pub jitter_percent: i16,
    /// Whether somebody asked for it to end.
    pub is_cancelled: bool,
    /// What becomes of a run that is lost with its worker.
    pub on_lost: OnLost,
    /// How often it was rescued already.
    pub rescues: i16,
}

/// The pause after one more failure: `base × 2^failures`, at most a day.
#[must_use]
pub fn backoff(base: Duration, failures: i16) -> Duration {
    let doublings = u32::from(failures.unsigned_abs()).min(31);
    base.saturating_mul(1 << doublings).min(LONGEST_BACKOFF)
}

/// The pause without the part that is drawn for this failure: evenly spread from the whole pause down to `percent` of it
/// less, in whole milliseconds. It is never longer than `pause`.
///
/// Occurrences that fail together for one cause would otherwise come back together, and fail together again. The draw
/// is made from the occurrence and its attempt, so that every server, and a report that comes twice, has the same one.
#[must_use]
pub fn jittered(pause: Duration, percent: i16, id: OccurrenceId, attempt: i32) -> Duration {
    let hash = Sha256::new().chain_update(id.0.as_bytes()).chain_update(attempt.to_be_bytes()).finalize();
    let drawn = hash.iter().take(4).fold(0_u32, |drawn, byte| (drawn << 8) | u32::from(*byte));
    let percent = u128::try_from(percent.clamp(0, 100)).unwrap_or_default();
    let sooner = pause.as_millis() * percent * u128::from(drawn) / (100 * u128::from(u32::MAX));
    pause.saturating_sub(Duration::from_millis(u64::try_from(sooner).unwrap_or(u64::MAX)))
}

/// Decides what an ended attempt leads to and writes it into the change: the next attempt and when it may begin, or why
/// this was the last one. A change that is no failure and was not handed back stays as it is.
pub fn decide(change: &mut Change, standing: Standing, now: DateTime<Utc>) {
    if !change.may_be_followed() {
        return;
    }
    let asked = change.retry_after.map(|wait| wait.min(LONGEST_WAIT));
    let spent = change.attempt >= MOST_ATTEMPTS;
    if change.is_lost {
        return lose(change, standing, now);
    }
    if change.handed_back {
        if standing.is_cancelled {
            let reason = "Cancelled: its worker stopped before it could end by itself.";
            return finish(change, OccurrenceStatus::Cancelled, reason, now);
        }
        if spent {
            change.cause = Some(Cause::Exhausted);
            return finish(change, OccurrenceStatus::Failed, "It was handed back too often.", now);
        }
        let wait = asked.unwrap_or_default();
        return again(change, wait, format!("Handed back; attempt {} {}", change.attempt + 1, when(wait)), now);
    }
    let left = standing.max_retries - standing.failures;
    if change.permanent || left <= 0 || spent || standing.is_cancelled {
        change.cause = Some(match change.status {
            _ if change.permanent => Cause::Permanent,
            OccurrenceStatus::TimedOut => Cause::TimedOut,
            _ if standing.max_retries > 0 && left <= 0 => Cause::Exhausted,
            _ => Cause::Failed,
        });
        return;
    }
    // What the job asked for is kept to: it knows why it is not worth coming back sooner.
    let wait = asked.unwrap_or_else(|| {
        let pause = backoff(standing.base_delay, standing.failures);
        jittered(pause, standing.jitter_percent, change.occurrence_id, change.attempt)
    });
    change.counts_as_failure = true;
    let nth = standing.failures + 1;
    again(change, wait, format!("Retry {nth} of {} {}", standing.max_retries, when(wait)), now);
}

/// A run that was lost with its worker's process, by the word of that worker at its next start, or of another that met its
/// claim: the same is decided as about one whose worker fell silent, only sooner.
fn lose(change: &mut Change, standing: Standing, now: DateTime<Utc>) {
    match zombie::fate(standing.on_lost, standing.rescues, standing.is_cancelled) {
        Fate::Cancel => {
            finish(change, OccurrenceStatus::Cancelled, "Cancelled: its worker's process ended before it could.", now);
        }
        Fate::Requeue => {
            change.is_rescue = true;
            let apart = APART.saturating_mul(u32::from(standing.rescues.unsigned_abs()));
            let wait = jittered(apart, 100, change.occurrence_id, change.attempt);
            let note =
                format!("Its worker's process ended before it did; attempt {} {}", change.attempt + 1, when(wait));
            again(change, wait, note, now);
        }
        Fate::Poison => {
            change.cause = Some(Cause::Poison);
            let note = format!(
                "Its run ended with its worker's process {} times: it is not given to another.",
                standing.rescues + 1
            );
            finish(change, OccurrenceStatus::Failed, &note, now);
        }
        Fate::Unknown => {
            let note = "Its worker's process ended before it did, and the job must not be run twice.";
            change.steps.push(StatusChange {
                status: OccurrenceStatus::Unknown,
                at: now,
                attempt: change.attempt,
                by: Some(change.instance_id.clone()),
                note: Some(note.to_owned()),
            });
            change.status = OccurrenceStatus::Unknown;
            change.note = Some(note.to_owned());
        }
    }
}

fn again(change: &mut Change, wait: Duration, note: String, now: DateTime<Utc>) {
    change.steps.push(StatusChange {
        status: OccurrenceStatus::Queued,
        at: now,
        attempt: change.attempt + 1,
        by: None,
        note: Some(note),
    });
    change.status = OccurrenceStatus::Queued;
    change.ended_at = None;
    change.result = None;
    change.waits_until = Some(now + chrono::Duration::from_std(wait).unwrap_or_default());
}

fn finish(change: &mut Change, status: OccurrenceStatus, note: &str, now: DateTime<Utc>) {
    change.steps.push(StatusChange {
        status,
        at: now,
        attempt: change.attempt,
        by: Some(change.instance_id.clone()),
        note: Some(note.to_owned()),
    });
    change.status = status;
    change.ended_at = Some(now);
    change.note = Some(note.to_owned());
}

fn when(wait: Duration) -> String {
    match wait.as_secs() {
        _ if wait.is_zero() => "at once".to_owned(),
        0 => format!("in {} ms", wait.as_millis()),
        seconds @ 1..120 => format!("in {seconds} s"),
        seconds @ 120..7_200 => format!("in {} min", seconds / 60),
        seconds => format!("in {} h", seconds / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use protocol::message::StatusReport;

    use super::*;
    use crate::domain::transition::fold;

    const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

    fn standing(failures: i16, max_retries: i16) -> Standing {
        Standing {
            failures,
            max_retries,
            base_delay: Duration::from_secs(5),
            jitter_percent: 0,
            is_cancelled: false,
            on_lost: OnLost::Requeue,
            rescues: 0,
        }
    }

    fn change(status: OccurrenceStatus) -> Change {
        let report = StatusReport {
            occurrence_id: OccurrenceId::default(),
            attempt: 3,
            instance_id: "w-1".into(),
            status,
            timestamp: NOW,
            result: None,
            exception: Some("boom".into()),
            duration_ms: Some(7),
            progress: None,
            permanent: false,
            retry_after_ms: None,
        };
        fold(vec![report]).remove(0)
    }

    fn occurrence(high: u8, low: u8) -> OccurrenceId {
        OccurrenceId::from_parts(NOW, [0, 0, 0, 0, 0, 0, 0, 0, high, low])
    }

    fn wait(change: &Change) -> Option<i64> {
        change.waits_until.map(|until| (until - NOW).num_milliseconds())
    }

    #[test]
    fn the_pause_doubles_from_the_base_up_to_a_day() {
        let pauses = [0, 1, 2, 3].map(|failures| backoff(Duration::from_secs(5), failures).as_secs());
        assert_eq!(pauses, [5, 10, 20, 40]);
        assert_eq!(backoff(Duration::from_secs(86_400), 100), LONGEST_BACKOFF);
    }

    #[test]
    fn jitter_only_shortens_the_pause_and_by_no_more_than_its_share() {
        let pause = Duration::from_millis(10_500);
        for percent in [0, 1, 20, 100] {
            for n in 0..=255_u8 {
                let drawn = jittered(pause, percent, occurrence(n, 0), 1);
                let least = pause - pause * u32::from(percent.unsigned_abs()) / 100;
                assert!((least..=pause).contains(&drawn), "{percent} %: {drawn:?}");
            }
        }
        let id = occurrence(1, 2);
        assert_eq!(jittered(pause, 0, id, 1), pause);
        assert_eq!(jittered(Duration::ZERO, 100, id, 1), Duration::ZERO);
        assert!(jittered(Duration::MAX, 100, id, 1) <= Duration::MAX);
    }

    #[test]
    fn occurrences_that_fail_together_come_back_evenly_spread() {
        let pause = Duration::from_secs(100);
        let mut tenths = [0; 10];
        for n in 0..1_000_u16 {
            let [high, low] = n.to_be_bytes();
            let drawn = jittered(pause, 50, occurrence(high, low), 1).as_millis();
            // From 50 to 100 s; the whole pause belongs to the last five seconds.
            let tenth = (drawn - 50_000) / 5_000;
            tenths[usize::try_from(tenth).expect("small").min(9)] += 1;
        }
        assert!(tenths.iter().all(|count| (60..=140).contains(count)), "a hundred each, more or less: {tenths:?}");
    }

    #[test]
    fn every_server_draws_the_same_and_each_attempt_has_its_own() {
        let pause = Duration::from_secs(3_600);
        let draw = |attempt| jittered(pause, 100, occurrence(7, 7), attempt);
        assert_eq!(draw(1), draw(1));
        let mut drawn: Vec<_> = (1..=20).map(draw).collect();
        drawn.sort();
        drawn.dedup();
        assert!(drawn.len() > 15, "{drawn:?}");
    }

    #[test]
    fn a_failure_with_a_retry_left_is_queued_again() {
        for status in [OccurrenceStatus::Failed, OccurrenceStatus::TimedOut] {
            let mut change = change(status);
            decide(&mut change, standing(1, 3), NOW);
            assert_eq!((change.status, wait(&change)), (OccurrenceStatus::Queued, Some(10_000)));
            assert!(change.counts_as_failure && change.ended_at.is_none() && change.cause.is_none());
            let steps: Vec<_> = change.steps.iter().map(|step| (step.status, step.attempt)).collect();
            assert_eq!(steps, [(status, 3), (OccurrenceStatus::Queued, 4)]);
            assert_eq!(change.steps[1].note.as_deref(), Some("Retry 2 of 3 in 10 s"));
            // What went wrong stays readable while it waits.
            assert_eq!(change.note.as_deref(), Some("boom"));
        }
    }

    #[test]
    fn the_last_failure_is_the_end_and_says_why() {
        for (status, standing, permanent, cause) in [
            (OccurrenceStatus::Failed, standing(3, 3), false, Cause::Exhausted),
            (OccurrenceStatus::Failed, standing(0, 0), false, Cause::Failed),
            (OccurrenceStatus::Failed, standing(0, 3), true, Cause::Permanent),
            (OccurrenceStatus::TimedOut, standing(3, 3), false, Cause::TimedOut),
            (OccurrenceStatus::Failed, Standing { is_cancelled: true, ..standing(0, 3) }, false, Cause::Failed),
        ] {
            let mut change = Change { permanent, ..change(status) };
            let before = change.clone();
            decide(&mut change, standing, NOW);
            assert_eq!(change.cause, Some(cause));
            assert_eq!(Change { cause: None, ..change }, before);
        }
    }

    #[test]
    fn the_worker_may_name_the_pause() {
        let mut change = Change { retry_after: Some(Duration::from_millis(1_500)), ..change(OccurrenceStatus::Failed) };
        decide(&mut change, standing(0, 1), NOW);
        assert_eq!(wait(&change), Some(1_500));
        let mut change = Change { retry_after: Some(Duration::MAX), ..super::tests::change(OccurrenceStatus::Failed) };
        decide(&mut change, standing(0, 1), NOW);
        assert_eq!(wait(&change), Some(30 * 24 * 3_600_000));
    }

    #[test]
    fn a_retry_comes_sooner_by_its_jitter_but_not_before_what_the_worker_asked_for() {
        let standing = Standing { jitter_percent: 80, ..standing(1, 3) };
        let mut change = change(OccurrenceStatus::Failed);
        decide(&mut change, standing, NOW);
        let drawn = jittered(Duration::from_secs(10), 80, OccurrenceId::default(), 3);
        assert!(drawn < Duration::from_secs(10));
        assert_eq!(wait(&change), i64::try_from(drawn.as_millis()).ok());
        let asked = Duration::from_secs(10);
        let mut change = Change { retry_after: Some(asked), ..super::tests::change(OccurrenceStatus::Failed) };
        decide(&mut change, standing, NOW);
        assert_eq!(wait(&change), Some(10_000));
    }

    #[test]
    fn a_run_that_was_lost_with_its_process_is_rescued_three_times_and_then_poison() {
        // The first time at once, and then apart from what was lost with it.
        for (rescues, most) in [(0, 0), (1, 2_000), (2, 4_000)] {
            let waits: BTreeSet<i64> = (0..50)
                .map(|n| {
                    let mut change = change(OccurrenceStatus::Unknown);
                    change.occurrence_id = OccurrenceId::from_parts(NOW, [n; 10]);
                    decide(&mut change, Standing { rescues, ..standing(0, 0) }, NOW);
                    assert_eq!((change.status, change.is_rescue), (OccurrenceStatus::Queued, true));
                    assert!(!change.counts_as_failure);
                    wait(&change).expect("it is to begin again")
                })
                .collect();
            let (first, last) = (waits.first().copied().unwrap_or(-1), waits.last().copied().unwrap_or(-1));
            assert!(first >= 0 && last <= most, "{waits:?}");
            assert!(last - first >= most / 2, "spread over most of it: {waits:?}");
        }
        let mut change = change(OccurrenceStatus::Unknown);
        decide(&mut change, Standing { rescues: 3, ..standing(0, 5) }, NOW);
        assert_eq!((change.status, change.cause), (OccurrenceStatus::Failed, Some(Cause::Poison)));
        assert!(change.waits_until.is_none() && change.ended_at.is_some());
    }

    #[test]
    fn a_lost_run_of_a_job_that_must_not_be_repeated_is_unknown() {
        let strict = Standing { on_lost: OnLost::Fail, ..standing(0, 5) };
        let mut lost = change(OccurrenceStatus::Unknown);
        decide(&mut lost, strict, NOW);
        assert_eq!((lost.status, lost.ended_at, lost.waits_until), (OccurrenceStatus::Unknown, None, None));
        let mut cancelled = change(OccurrenceStatus::Unknown);
        decide(&mut cancelled, Standing { is_cancelled: true, ..strict }, NOW);
        assert_eq!(cancelled.status, OccurrenceStatus::Cancelled);
    }

    #[test]
    fn what_was_handed_back_has_not_failed() {
        let mut change = change(OccurrenceStatus::Queued);
        assert!(change.handed_back);
        decide(&mut change, standing(0, 0), NOW);
        assert_eq!((change.status, wait(&change)), (OccurrenceStatus::Queued, Some(0)));
        assert!(!change.counts_as_failure);
        assert_eq!(change.steps[0].note.as_deref(), Some("Handed back; attempt 4 at once"));
    }

    #[test]
    fn what_was_to_end_anyway_is_not_handed_back() {
        let mut change = change(OccurrenceStatus::Queued);
        decide(&mut change, Standing { is_cancelled: true, ..standing(0, 3) }, NOW);
        assert_eq!((change.status, change.ended_at), (OccurrenceStatus::Cancelled, Some(NOW)));
    }

    #[test]
    fn nothing_else_is_touched() {
        for status in [OccurrenceStatus::Running, OccurrenceStatus::Completed, OccurrenceStatus::Cancelled] {
            let mut change = change(status);
            let before = change.clone();
            decide(&mut change, standing(0, 3), NOW);
            assert_eq!(change, before);
        }
    }
}
