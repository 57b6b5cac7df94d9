//! Is a failed attempt the last one, and if not, when does the next begin?
//!
//! A worker reports how an attempt ended and knows nothing of what follows. Whether there is a retry left is decided
//! here, from what the occurrence has behind it, so that a worker in any language has retries by reporting that it
//! failed, and nobody's place or memory is taken up while a retry waits.
//!
//! Two counts are kept apart. The *attempt* tells one start from the next and fences late reports; it grows with every
//! start. The *failures* are what the job's retries are counted against: an attempt that was lost with its worker, or
//! handed back because the worker stopped, is repeated without being one.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use milvaion_api::{failures::FailureCause, views::StatusChange};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use milvaion_schedule::rules::MAX_RETRY_DELAY_SECONDS;
use sha2::{Digest, Sha256};

use super::{
    lost_run::{self, LostRunDecision, LostRunRule},
    quarantine,
    transition::AttemptChange,
};

/// The longest pause before an attempt, whoever asks for it.
pub const MAX_RETRY_DELAY: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest pause that doubling leads to.
const MAX_RETRY_BACKOFF: Duration = Duration::from_secs(MAX_RETRY_DELAY_SECONDS);
/// An occurrence that was handed back so often is going round in circles.
const MAX_OCCURRENCE_ATTEMPTS: i32 = 10_000;

/// What an occurrence has behind it and may still do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryContext {
    /// Whose worker runs it.
    pub worker_id: String,
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
    pub on_lost: LostRunRule,
    /// How often it was rescued already.
    pub requeues: i16,
    /// How long this attempt lasted up to its last sign of life, as far as its start is recorded.
    pub ran_for: Option<chrono::Duration>,
    /// Whether somebody takes turns in the worker's lane; see [`open_quarantines`].
    pub quarantine_is_open: bool,
}

impl RetryContext {
    /// What becomes of it if this attempt was lost.
    fn fate(&self) -> LostRunDecision {
        lost_run::decide_lost_run(self.on_lost, self.requeues, self.is_cancelled)
    }
}

/// Opens the lanes of those workers of which a run comes that was lost and has one chance left: who died with it may have
/// to take its turn as well.
pub fn open_quarantines(changes: &[AttemptChange], standings: &mut HashMap<OccurrenceId, RetryContext>) {
    let lost = changes.iter().filter(|change| change.is_lost);
    let again = lost
        .filter_map(|change| standings.get(&change.occurrence_id))
        .filter(|standing| standing.fate() == LostRunDecision::Requeue)
        .map(|standing| (standing.worker_id.as_str(), standing.requeues + 1));
    let opened: HashSet<String> = quarantine::newly_quarantined(again).into_iter().map(str::to_owned).collect();
    for standing in standings.values_mut().filter(|standing| opened.contains(&standing.worker_id)) {
        standing.quarantine_is_open = true;
    }
}

/// The pause after one more failure: `base × 2^failures`, at most a day.
#[must_use]
pub fn backoff(base: Duration, failures: i16) -> Duration {
    let doublings = u32::from(failures.unsigned_abs()).min(31);
    base.saturating_mul(1 << doublings).min(MAX_RETRY_BACKOFF)
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
pub fn decide(change: &mut AttemptChange, standing: &RetryContext, now: DateTime<Utc>) {
    if !change.may_be_retried() {
        return;
    }
    // However this attempt has ended, one that was lost so often has had no more chances than before.
    change.is_quarantined = quarantine::needs_quarantine(standing.requeues, None, standing.quarantine_is_open);
    let asked = change.retry_after.map(|wait| wait.min(MAX_RETRY_DELAY));
    let spent = change.attempt >= MAX_OCCURRENCE_ATTEMPTS;
    if change.is_lost {
        return lose(change, standing, now);
    }
    if change.handed_back {
        if standing.is_cancelled {
            let reason = "Cancelled: its worker stopped before it could end by itself.";
            return finish(change, OccurrenceStatus::Cancelled, reason, now);
        }
        if spent {
            change.cause = Some(FailureCause::Exhausted);
            return finish(change, OccurrenceStatus::Failed, "It was handed back too often.", now);
        }
        let wait = asked.unwrap_or_default();
        return again(change, wait, format!("Handed back; attempt {} {}", change.attempt + 1, when(wait)), now);
    }
    let left = standing.max_retries - standing.failures;
    if change.permanent || left <= 0 || spent || standing.is_cancelled {
        change.cause = Some(match change.status {
            _ if change.permanent => FailureCause::Permanent,
            OccurrenceStatus::TimedOut => FailureCause::TimedOut,
            _ if standing.max_retries > 0 && left <= 0 => FailureCause::Exhausted,
            _ => FailureCause::Failed,
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
fn lose(change: &mut AttemptChange, standing: &RetryContext, now: DateTime<Utc>) {
    match standing.fate() {
        LostRunDecision::Cancel => {
            finish(change, OccurrenceStatus::Cancelled, "Cancelled: its worker's process ended before it could.", now);
        }
        LostRunDecision::Requeue => {
            change.is_requeue = true;
            // Of whom nobody had heard while it ran, its own word must do.
            let lived = standing.ran_for.or_else(|| change.started_at.map(|started| now - started));
            change.is_quarantined =
                quarantine::needs_quarantine(standing.requeues + 1, lived, standing.quarantine_is_open);
            let next = change.attempt + 1;
            let when = if change.is_quarantined { quarantine::QUARANTINE_NOTE } else { "at once" };
            let note = format!("Its worker's process ended before it did; attempt {next} begins {when}");
            again(change, Duration::ZERO, note, now);
        }
        LostRunDecision::Poison => {
            change.cause = Some(FailureCause::Poison);
            let note = format!(
                "Its run ended with its worker's process {} times: it is not given to another.",
                standing.requeues + 1
            );
            finish(change, OccurrenceStatus::Failed, &note, now);
        }
        LostRunDecision::Unknown => {
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

fn again(change: &mut AttemptChange, wait: Duration, note: String, now: DateTime<Utc>) {
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

fn finish(change: &mut AttemptChange, status: OccurrenceStatus, note: &str, now: DateTime<Utc>) {
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
    if status == OccurrenceStatus::Failed {
        // What an earlier attempt failed with is not why it ends.
        change.exception = Some(note.to_owned());
    }
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
mod tests;
