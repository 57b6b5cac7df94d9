//! Folds a batch of reports into one change per attempt.
//!
//! Reports arrive at least once, in batches, and sometimes out of order. Before the database is queried, all reports
//! about one attempt are folded into one [`AttemptChange`]: the furthest status they reach, and the status changes on
//! the way. The database then applies it only where the row's present status allows it, so a duplicate, late or forged
//! report changes nothing.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_api::{failures::FailureCause, styled_text::without_sequences, views::StatusChange};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{MAX_CHECKPOINT_BYTES, MAX_RESULT_BYTES, RunProgress, StatusReport, truncate_text},
    status::OccurrenceStatus,
    storable::{clean_text, is_storable},
};

use serde_json::Value;

use super::fingerprint::fingerprint;

/// Maximum length of a note, in bytes: one line in a list.
const MAX_NOTE_BYTES: usize = 300;

/// The combined content of one batch's reports about one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptChange {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt, from 1.
    pub attempt: i32,
    /// The status that the batch leads to.
    pub status: OccurrenceStatus,
    /// The instance that reported it.
    pub instance_id: String,
    /// The start of the attempt, by the worker's clock, if the batch contains it.
    pub started_at: Option<DateTime<Utc>>,
    /// The end of the attempt, by the worker's clock, if it has ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// Duration of the attempt in milliseconds.
    pub duration_ms: Option<i64>,
    /// The job's return value.
    pub result: Option<String>,
    /// The error text of a failure.
    pub exception: Option<String>,
    /// The exception's first line.
    pub note: Option<String>,
    /// True if the attempt was handed back without having failed. [`retry`](super::retry) decides what follows.
    pub handed_back: bool,
    /// True if its worker's process ended before the attempt did, as the worker found at its next start, or another
    /// worker found by its claim. [`retry`](super::retry) decides what follows.
    pub is_lost: bool,
    /// True if the next attempt is a requeue of a lost run.
    pub is_requeue: bool,
    /// True if the next attempt waits in its worker's quarantine.
    pub is_quarantined: bool,
    /// True if the failure is permanent, so that a retry is useless.
    pub permanent: bool,
    /// The delay before the next attempt that the worker requests.
    pub retry_after: Option<Duration>,
    /// The earliest start of the next attempt. Set exactly if the change leads back to Queued.
    pub waits_until: Option<DateTime<Utc>>,
    /// True if it uses up one of the job's retries.
    pub counts_as_failure: bool,
    /// For a final failure, the reason why there is no further attempt.
    pub cause: Option<FailureCause>,
    /// The fingerprint of the exception; equal for failures with the same cause.
    pub fingerprint: Option<String>,
    /// The last progress by the worker's clock, with its time.
    pub progress: Option<(DateTime<Utc>, RunProgress)>,
    /// The last checkpoint by the worker's clock, with its time.
    pub checkpoint: Option<(DateTime<Utc>, Value)>,
    /// The status changes, oldest first; the first one is Running exactly if `started_at` is known.
    pub steps: Vec<StatusChange>,
}

impl AttemptChange {
    /// Returns true if a retry may follow, if the occurrence has one left.
    #[must_use]
    pub fn may_be_retried(&self) -> bool {
        self.handed_back || self.is_lost || matches!(self.status, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut)
    }

    /// Returns true if no later report of the attempt can change the result.
    fn is_over(&self) -> bool {
        self.handed_back || self.is_lost || self.status.is_final()
    }
}

/// Folds reports, in the order of arrival, into one change for each attempt. Drops reports with status Skipped, which a
/// worker must not send, and reports after an end.
#[must_use]
pub fn fold(reports: Vec<StatusReport>) -> Vec<AttemptChange> {
    let mut changes: Vec<AttemptChange> = Vec::with_capacity(reports.len());
    let mut index: HashMap<(OccurrenceId, u32), usize> = HashMap::with_capacity(reports.len());
    for report in reports {
        if report.status == OccurrenceStatus::Skipped {
            continue;
        }
        match index.get(&(report.occurrence_id, report.attempt)) {
            Some(&at) => add(&mut changes[at], report),
            None => {
                index.insert((report.occurrence_id, report.attempt), changes.len());
                changes.push(begin(report));
            }
        }
    }
    changes
}

/// Truncates the report's texts to their bounds and replaces characters that PostgreSQL cannot store.
#[must_use]
pub fn sanitize_report(report: StatusReport) -> StatusReport {
    let bounded = |text: String| clean_text(truncate_text(text, MAX_NOTE_BYTES));
    let progress = report
        .progress
        .map(|progress| RunProgress { percent: progress.percent.min(100), message: bounded(progress.message) });
    let had_checkpoint = report.checkpoint.is_some();
    let fits = |checkpoint: &Value| checkpoint.to_string().len() <= MAX_CHECKPOINT_BYTES && is_storable(checkpoint);
    let checkpoint = report.checkpoint.filter(fits);
    let is_incomplete = report.is_incomplete || (had_checkpoint && checkpoint.is_none());
    StatusReport { instance_id: bounded(report.instance_id), progress, checkpoint, is_incomplete, ..report }
}

fn begin(report: StatusReport) -> AttemptChange {
    let mut change = AttemptChange {
        occurrence_id: report.occurrence_id,
        attempt: i32::try_from(report.attempt).unwrap_or(i32::MAX),
        status: OccurrenceStatus::Queued,
        instance_id: report.instance_id.clone(),
        started_at: None,
        ended_at: None,
        duration_ms: None,
        result: None,
        exception: None,
        note: None,
        handed_back: false,
        is_lost: false,
        is_requeue: false,
        is_quarantined: false,
        permanent: false,
        retry_after: None,
        waits_until: None,
        counts_as_failure: false,
        cause: None,
        fingerprint: None,
        progress: None,
        checkpoint: None,
        steps: Vec::with_capacity(2),
    };
    add(&mut change, report);
    change
}

fn add(change: &mut AttemptChange, mut report: StatusReport) {
    let is_start = report.is_start();
    // Reports of one attempt may arrive in another order than the worker sent them, so the end does not matter.
    if let Some(checkpoint) = report.checkpoint.take()
        && change.checkpoint.as_ref().is_none_or(|(at, _)| *at <= report.timestamp)
    {
        change.checkpoint = Some((report.timestamp, checkpoint));
    }
    if change.is_over() && is_start && change.started_at.is_none() {
        // The start arrived after the end: it adds only the start time.
        change.started_at = Some(report.timestamp);
        change.steps.insert(0, step(&report, None));
        return;
    }
    if change.is_over() {
        return;
    }
    if matches!(report.status, OccurrenceStatus::Queued | OccurrenceStatus::Unknown) {
        change.handed_back = report.status == OccurrenceStatus::Queued;
        change.is_lost = !change.handed_back;
        change.instance_id = report.instance_id;
        change.retry_after = report.retry_after_ms.map(Duration::from_millis);
        change.note = report.exception.as_deref().map(first_line);
        return;
    }
    if let Some(progress) = &report.progress
        && change.progress.as_ref().is_none_or(|(at, _)| *at <= report.timestamp)
    {
        change.progress = Some((report.timestamp, progress.clone()));
    }
    if change.status == report.status {
        if report.status == OccurrenceStatus::Running {
            // The start arrived after the first progress: the earliest time is the start time.
            change.started_at = change.started_at.map(|at| at.min(report.timestamp));
        }
        return;
    }
    if report.status == OccurrenceStatus::Running {
        change.started_at.get_or_insert(report.timestamp);
    }
    if report.status.is_final() {
        change.ended_at = Some(report.timestamp);
        change.duration_ms = report.duration_ms.and_then(|ms| i64::try_from(ms).ok());
        change.note = report.exception.as_deref().map(first_line);
        let failed = matches!(report.status, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut);
        // A timeout is its own cause. What follows its first line says how far the run came.
        let is_timeout = report.status == OccurrenceStatus::TimedOut;
        let cause = if is_timeout { change.note.as_deref() } else { report.exception.as_deref() };
        change.fingerprint = failed.then(|| fingerprint(cause.unwrap_or_default()));
        change.permanent = report.permanent;
        change.retry_after = report.retry_after_ms.map(Duration::from_millis);
    }
    change.steps.push(step(&report, change.note.clone()));
    change.status = report.status;
    change.instance_id = report.instance_id;
    change.result = report.result.map(|text| clean_text(truncate_text(text, MAX_RESULT_BYTES)));
    change.exception = report.exception.map(|text| clean_text(truncate_text(text, MAX_RESULT_BYTES)));
}

fn step(report: &StatusReport, note: Option<String>) -> StatusChange {
    StatusChange {
        status: report.status,
        at: report.timestamp,
        attempt: i32::try_from(report.attempt).unwrap_or(i32::MAX),
        by: Some(report.instance_id.clone()),
        note,
    }
}

/// Returns the first non-empty line of an exception, short enough for a list, without escape sequences.
#[must_use]
pub fn first_line(text: &str) -> String {
    let text = clean_text(text);
    // A carriage return does not hide what stands before it, such as the exit code.
    let text = without_sequences(&text).replace('\r', " ");
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    truncate_text(line.to_owned(), MAX_NOTE_BYTES)
}

#[cfg(test)]
mod tests {
    use chrono::Duration;

    use super::*;

    fn report(attempt: u32, status: OccurrenceStatus, second: i64) -> StatusReport {
        StatusReport {
            exception: (status == OccurrenceStatus::Failed).then(|| "boom\nat line 3".into()),
            duration_ms: status.is_final().then_some(5),
            ..StatusReport::new(
                OccurrenceId::default(),
                attempt,
                "w-1",
                status,
                DateTime::UNIX_EPOCH + Duration::seconds(second),
            )
        }
    }

    #[test]
    fn short_run_in_one_batch_is_one_change() {
        let changes = fold(vec![report(1, OccurrenceStatus::Running, 1), report(1, OccurrenceStatus::Failed, 2)]);
        assert_eq!(changes.len(), 1);
        let change = &changes[0];
        assert_eq!(change.status, OccurrenceStatus::Failed);
        assert_eq!(change.steps.len(), 2);
        assert_eq!(change.note.as_deref(), Some("boom"));
        assert_eq!(change.duration_ms, Some(5));
        assert!(change.started_at < change.ended_at);
    }

    #[test]
    fn order_and_duplicates_do_not_matter() {
        let running = report(1, OccurrenceStatus::Running, 1);
        let done = report(1, OccurrenceStatus::Completed, 2);
        let straight = fold(vec![running.clone(), done.clone()]);
        assert_eq!(fold(vec![done.clone(), running.clone()]), straight);
        assert_eq!(fold(vec![running.clone(), running, done.clone(), done]), straight);
    }

    #[test]
    fn first_final_report_wins() {
        let changes = fold(vec![report(1, OccurrenceStatus::Completed, 2), report(1, OccurrenceStatus::Failed, 3)]);
        assert_eq!(changes[0].status, OccurrenceStatus::Completed);
    }

    #[test]
    fn attempt_is_handed_back_with_or_without_start() {
        let changes = fold(vec![
            report(1, OccurrenceStatus::Running, 1),
            report(1, OccurrenceStatus::Queued, 2),
            report(1, OccurrenceStatus::Completed, 3),
            report(2, OccurrenceStatus::Queued, 3),
        ]);
        assert!(changes.iter().all(|change| change.handed_back));
        assert_eq!(
            changes.iter().map(|change| (change.status, change.steps.len())).collect::<Vec<_>>(),
            [(OccurrenceStatus::Running, 1), (OccurrenceStatus::Queued, 0)]
        );
    }

    #[test]
    fn attempts_are_separate_and_skipped_is_dropped() {
        let changes = fold(vec![
            report(1, OccurrenceStatus::Running, 1),
            report(2, OccurrenceStatus::Running, 2),
            report(2, OccurrenceStatus::Skipped, 3),
        ]);
        assert_eq!(changes.iter().map(|change| change.attempt).collect::<Vec<_>>(), [1, 2]);
        assert!(changes.iter().all(|change| change.status == OccurrenceStatus::Running));
    }

    #[test]
    fn progress_does_not_go_back() {
        let progress = |percent: u8, second| StatusReport {
            progress: Some(RunProgress { percent, message: String::new() }),
            ..report(1, OccurrenceStatus::Running, second)
        };
        for order in [[20, 60], [60, 20]] {
            let changes = fold(order.map(|percent| progress(percent, percent.into())).to_vec());
            let found = changes[0].progress.as_ref().map(|(at, progress)| (at.timestamp(), progress.percent));
            assert_eq!(found, Some((60, 60)), "{order:?}");
            assert_eq!(changes[0].started_at.map(|at| at.timestamp()), Some(20), "{order:?}");
        }
        // A job may set its progress back, and of two reports at the same time the second counts.
        let changes = fold(vec![progress(60, 1), progress(5, 2), progress(7, 2)]);
        assert_eq!(changes[0].progress.as_ref().map(|(_, progress)| progress.percent), Some(7));
    }

    #[test]
    fn newest_checkpoint_counts_even_if_it_arrives_after_the_end() {
        let checkpoint = |value: i32, second| StatusReport {
            checkpoint: Some(Value::from(value)),
            ..report(1, OccurrenceStatus::Running, second)
        };
        let changes =
            fold(vec![checkpoint(5, 5), report(1, OccurrenceStatus::Failed, 9), checkpoint(3, 3), checkpoint(7, 7)]);
        assert_eq!(changes[0].checkpoint.as_ref().map(|(_, value)| value.clone()), Some(Value::from(7)));
        assert_eq!(changes[0].status, OccurrenceStatus::Failed);
    }

    #[test]
    fn checkpoint_over_its_bound_is_dropped() {
        let with = |checkpoint: Value| {
            let report = StatusReport { checkpoint: Some(checkpoint), ..report(1, OccurrenceStatus::Running, 1) };
            sanitize_report(report).checkpoint.is_some()
        };
        assert!(with(Value::from("x".repeat(MAX_CHECKPOINT_BYTES - 2))));
        assert!(!with(Value::from("x".repeat(MAX_CHECKPOINT_BYTES - 1))));
        assert!(!with(Value::from("\0")));
        assert!(with(Value::from("\\u0000")), "the escape as text is no NUL");
    }

    #[test]
    fn timeouts_are_one_group_wherever_the_run_stopped() {
        let fingerprint = |status, text: &str| {
            let report = StatusReport { exception: Some(text.to_owned()), ..report(1, status, 1) };
            fold(vec![report])[0].fingerprint.clone()
        };
        let (one, other) = ("timed out after 5 s\nstopped in a.csv", "timed out after 9 s\nstopped in b.csv");
        assert_eq!(fingerprint(OccurrenceStatus::TimedOut, one), fingerprint(OccurrenceStatus::TimedOut, other));
        assert_ne!(fingerprint(OccurrenceStatus::Failed, one), fingerprint(OccurrenceStatus::Failed, other));
    }

    #[test]
    fn nul_is_replaced() {
        assert_eq!(first_line("\n  a\0b  \nc"), "a\u{fffd}b");
    }

    #[test]
    fn first_line_has_no_escape_sequences() {
        let text = "\x1b[0m\r\nexit code 1:\r\x1b[31mError\x1b[0m: disk is full\r\n";
        assert_eq!(first_line(text), "exit code 1: Error: disk is full");
    }
}
