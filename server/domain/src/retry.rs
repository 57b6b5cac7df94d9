//! Decides whether a failed attempt is retried, and when the retry starts.
//!
//! A worker reports how an attempt ended and takes no part in what follows. The retry is decided here, from the history
//! of the occurrence. A worker in any language therefore gets retries by reporting failures, and a pending retry uses
//! no worker permit and no worker memory.
//!
//! Two counts are kept apart. The *attempt* distinguishes one start from the next and fences late reports; it increases
//! with every start. The *failures* count against the job's maximum number of retries. An attempt that was lost with
//! its worker, or handed back because the worker stopped, is repeated without counting as a failure.

use std::time::Duration;

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

/// Maximum delay before an attempt, even if a worker requests a longer one.
pub const MAX_RETRY_DELAY: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum delay that exponential backoff reaches.
const MAX_RETRY_BACKOFF: Duration = Duration::from_secs(MAX_RETRY_DELAY_SECONDS);
/// The cause of an attempt that a worker reported as lost, without the reason that the worker gave.
const LOST_ATTEMPT: &str = "Reported as lost by the worker";
/// Number of attempts at which an occurrence is failed, because it is evidently handed back in a loop.
const MAX_OCCURRENCE_ATTEMPTS: i32 = 10_000;

/// The history and the rules of an occurrence that a retry decision needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryContext {
    /// Number of failed attempts so far.
    pub failures: i16,
    /// Maximum number of retries.
    pub max_retries: i16,
    /// Delay before the first retry; each further retry doubles it.
    pub base_delay: Duration,
    /// Retry jitter: the maximum share by which the delay is shortened, in percent, 0 to 100.
    pub jitter_percent: u16,
    /// True if its cancellation was requested.
    pub is_cancelled: bool,
    /// The job's rule for lost runs.
    pub on_lost: LostRunRule,
    /// Number of times it was requeued already.
    pub requeues: i16,
    /// True if the instance that ran it had announced that it stops.
    pub is_stopping: bool,
}

impl RetryContext {
    /// Returns the decision for the case that this attempt was lost.
    fn lost_run_decision(&self) -> LostRunDecision {
        lost_run::decide_lost_run(self.on_lost, self.requeues, self.is_cancelled, self.is_stopping)
    }
}

/// Returns the exponential backoff after one more failure: `base × 2^failures`, at most one day.
#[must_use]
pub fn backoff(base: Duration, failures: i16) -> Duration {
    let doublings = u32::from(failures.unsigned_abs()).min(31);
    base.saturating_mul(1 << doublings).min(MAX_RETRY_BACKOFF)
}

/// Shortens the delay by retry jitter: evenly distributed between the whole delay and `percent` of it less, in whole
/// milliseconds. The result is never longer than `pause`.
///
/// Occurrences that fail together for one cause would otherwise be retried together, and fail together again. The
/// jitter is derived from the occurrence and its attempt, so that every server, and a report that arrives twice,
/// computes the same.
#[must_use]
pub fn jittered(pause: Duration, percent: u16, id: OccurrenceId, attempt: i32) -> Duration {
    let hash = Sha256::new().chain_update(id.0.as_bytes()).chain_update(attempt.to_be_bytes()).finalize();
    let drawn = hash.iter().take(4).fold(0_u32, |drawn, byte| (drawn << 8) | u32::from(*byte));
    let sooner = pause.as_millis() * u128::from(percent.min(100)) * u128::from(drawn) / (100 * u128::from(u32::MAX));
    pause.saturating_sub(Duration::from_millis(u64::try_from(sooner).unwrap_or(u64::MAX)))
}

/// Decides what follows an ended attempt and writes it into the change: the next attempt and its start time, or the
/// cause of the final failure. A change that neither failed nor was handed back stays as it is.
pub fn decide(change: &mut AttemptChange, context: &RetryContext, now: DateTime<Utc>) {
    if !change.may_be_retried() {
        return;
    }
    // Regardless of how this attempt ended, a run that was lost so often has no requeue left and stays in quarantine.
    change.is_quarantined = quarantine::needs_quarantine(context.requeues);
    let requested = change.retry_after.map(|wait| wait.min(MAX_RETRY_DELAY));
    let attempts_exhausted = change.attempt >= MAX_OCCURRENCE_ATTEMPTS;
    if change.is_lost {
        return decide_lost(change, context, now);
    }
    if change.handed_back {
        if context.is_cancelled {
            let reason = with_reason("Cancelled: the worker handed the run back", change);
            return finish(change, OccurrenceStatus::Cancelled, &reason, now);
        }
        if attempts_exhausted {
            change.cause = Some(FailureCause::Exhausted);
            let reason = format!("Failed: it was handed back too often ({MAX_OCCURRENCE_ATTEMPTS} attempts).");
            return finish(change, OccurrenceStatus::Failed, &reason, now);
        }
        let wait = requested.unwrap_or_default();
        let cause = with_reason("Handed back by the worker", change);
        let note = format!("{cause}; attempt {} starts {}", change.attempt + 1, delay_text(wait));
        return requeue(change, wait, note, now);
    }
    let left = context.max_retries - context.failures;
    if change.permanent || left <= 0 || attempts_exhausted || context.is_cancelled {
        change.cause = Some(match change.status {
            _ if change.permanent => FailureCause::Permanent,
            OccurrenceStatus::TimedOut => FailureCause::TimedOut,
            _ if context.max_retries > 0 && left <= 0 => FailureCause::Exhausted,
            _ => FailureCause::Failed,
        });
        return;
    }
    // A delay that the job requested is used without jitter: the job has a reason not to be retried sooner.
    let wait = requested.unwrap_or_else(|| {
        let pause = backoff(context.base_delay, context.failures);
        jittered(pause, context.jitter_percent, change.occurrence_id, change.attempt)
    });
    change.counts_as_failure = true;
    let nth = context.failures + 1;
    requeue(change, wait, format!("Retry {nth} of {} {}", context.max_retries, delay_text(wait)), now);
}

/// Decides what follows a run that was lost with its worker's process. The worker reported the loss at its next start,
/// or another worker that found its claim reported it. The decision is the same as for a run without heartbeats, only
/// sooner.
fn decide_lost(change: &mut AttemptChange, context: &RetryContext, now: DateTime<Utc>) {
    match context.lost_run_decision() {
        LostRunDecision::Cancel => {
            let note = format!("Cancelled: a cancel request was open. {}", with_reason(LOST_ATTEMPT, change));
            finish(change, OccurrenceStatus::Cancelled, &note, now);
        }
        LostRunDecision::Requeue => {
            // A process that was ended from outside says nothing about the run.
            change.is_requeue = !context.is_stopping;
            let requeues = context.requeues + i16::from(change.is_requeue);
            change.is_quarantined = quarantine::needs_quarantine(requeues);
            let next = change.attempt + 1;
            let start = if change.is_quarantined { quarantine::QUARANTINE_NOTE } else { "at once" };
            let note = format!("{}; attempt {next} starts {start}", with_reason(LOST_ATTEMPT, change));
            requeue(change, Duration::ZERO, note, now);
        }
        LostRunDecision::Poison => {
            change.cause = Some(FailureCause::Poison);
            let cause = with_reason(LOST_ATTEMPT, change);
            let note = format!("Failed as a poison run: lost with its worker {} times. {cause}", context.requeues + 1);
            finish(change, OccurrenceStatus::Failed, &note, now);
        }
        LostRunDecision::Unknown => {
            let note = format!(
                "{}; the lost run policy is not to run it again; a report within {} minutes still counts",
                with_reason(LOST_ATTEMPT, change),
                lost_run::LATE_REPORT_WINDOW.num_minutes()
            );
            change.steps.push(StatusChange {
                status: OccurrenceStatus::Unknown,
                at: now,
                attempt: change.attempt,
                by: Some(change.instance_id.clone()),
                note: Some(note.clone()),
            });
            change.status = OccurrenceStatus::Unknown;
            change.note = Some(note);
        }
    }
}

/// Appends the reason that the worker reported. The timeline keeps it after the next attempt has replaced the note.
fn with_reason(text: &str, change: &AttemptChange) -> String {
    match change.note.as_deref().map(|reason| reason.trim_end_matches('.')) {
        Some(reason) if !reason.is_empty() => format!("{text}: {reason}"),
        _ => text.to_owned(),
    }
}

fn requeue(change: &mut AttemptChange, wait: Duration, note: String, now: DateTime<Utc>) {
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
        // The exception of an earlier attempt is not the reason for this end.
        change.exception = Some(note.to_owned());
    }
}

fn delay_text(wait: Duration) -> String {
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
