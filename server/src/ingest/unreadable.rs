//! What becomes of messages that cannot be read, or not in part: a log line with the field, a counter, the page *Workers*
//! and the history of the occurrence.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::OccurrenceId,
    message::StatusReport,
    reading::{ReadProblem, UnreadableReport},
};

use crate::store::{Store, unreadable::UnreadablePart};

/// Describes the fields that were left out of a report whose status was read.
pub(super) fn of_report(report: &StatusReport, problems: &[ReadProblem]) -> Vec<UnreadablePart> {
    let part = |problem: &ReadProblem| UnreadablePart {
        occurrence_id: Some(report.occurrence_id),
        attempt: report.attempt,
        instance_id: Some(report.instance_id.clone()),
        ..describe(problem, &format!("the report {} was taken without a part of it", report.status.label()))
    };
    problems.iter().map(part).collect()
}

/// Describes a report that was dropped.
pub(super) fn of_dropped_report(report: UnreadableReport) -> UnreadablePart {
    UnreadablePart {
        occurrence_id: report.occurrence_id,
        attempt: report.attempt.unwrap_or(0),
        instance_id: report.instance_id,
        ..describe(&report.problem, "a report was dropped, so its status is unknown")
    }
}

/// Describes log lines that were dropped, or whose characters were replaced.
pub(super) fn of_log(id: Option<OccurrenceId>, problems: &[ReadProblem], sender: Option<&str>) -> Vec<UnreadablePart> {
    let part = |problem: &ReadProblem| {
        let is_changed = id.is_some() && problem.field.is_empty();
        let note = if is_changed { "log lines were changed" } else { "a log line was dropped" };
        UnreadablePart { occurrence_id: id, instance_id: sender.map(str::to_owned), ..describe(problem, note) }
    };
    problems.iter().map(part).collect()
}

fn describe(problem: &ReadProblem, note: &str) -> UnreadablePart {
    UnreadablePart { reason: problem.to_string(), note: format!("{note}. {problem}"), ..UnreadablePart::default() }
}

/// Logs, counts and stores what could not be read. Returns true if the page *Workers* shows a change.
///
/// # Errors
///
/// Returns an error if PostgreSQL cannot be reached. Any other failure is logged only: what could be read is stored.
pub(super) async fn record(
    store: &Store,
    queue: &'static str,
    parts: &[UnreadablePart],
    now: DateTime<Utc>,
) -> anyhow::Result<bool> {
    if parts.is_empty() {
        return Ok(false);
    }
    for part in parts {
        tracing::warn!(
            queue,
            occurrence.id = part.occurrence_id.map(tracing::field::display),
            worker.instance = part.instance_id,
            reason = part.reason,
            "a part of a worker's message on queue {queue} cannot be read: {}",
            part.reason
        );
    }
    store.metrics().unreadable(queue, parts.len());
    match store.record_unreadable(parts, now).await {
        Ok(has_counted) => Ok(has_counted),
        Err(error) if error.is_outage() => Err(error.into()),
        Err(error) => {
            tracing::error!(error = %crate::error::chain(&error), "unreadable messages could not be counted at their instances");
            Ok(false)
        }
    }
}
