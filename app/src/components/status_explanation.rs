//! The one-sentence explanation of an occurrence's status.

use milvaion_api::views::OccurrenceView;
use milvaion_protocol::status::OccurrenceStatus;

use crate::format;

/// The maximum length of a quoted cause, in characters. The page shows the full text as the exception.
const CAUSE_MAX_CHARS: usize = 160;

/// Explains the status of an occurrence. The sentence claims nothing beyond the record, and it names the condition that
/// a queued occurrence waits for.
#[must_use]
pub fn explain_status(view: &OccurrenceView) -> String {
    let row = &view.row;
    let target = format!("{}/{}", view.worker_id, view.job_type);
    let instance = row.instance_id.as_deref().unwrap_or("a worker instance");
    let on_attempt = if row.attempt > 1 { format!(" on attempt {}", row.attempt) } else { String::new() };
    let because = |text: &Option<String>| {
        text.as_deref()
            .and_then(|text| text.lines().next())
            .filter(|line| !line.is_empty())
            .map(|line| format::clip(line, CAUSE_MAX_CHARS))
    };
    match row.status {
        OccurrenceStatus::Queued if !view.worker_alive => {
            format!("Queued: no live worker offers {target}. The run starts when one does.")
        }
        OccurrenceStatus::Queued if row.waits_until.is_some() => {
            let next = row.attempt;
            match (view.changes.iter().rev().nth(1).map(|step| step.status), because(&row.note)) {
                (Some(OccurrenceStatus::Failed | OccurrenceStatus::TimedOut), Some(cause)) => {
                    format!("Retrying: attempt {} failed: {cause}. Attempt {next} is delayed.", next - 1)
                }
                (_, Some(cause)) => format!("Queued: attempt {next} is delayed; {cause}"),
                _ => format!("Queued: attempt {next} is delayed."),
            }
        }
        OccurrenceStatus::Queued if view.is_held => {
            "Queued: waiting for a slot, because of a concurrency limit or an earlier occurrence of the job.".to_owned()
        }
        OccurrenceStatus::Queued if view.published_at.is_none() => {
            "Queued: recorded, but its message is not yet sent to the broker.".to_owned()
        }
        OccurrenceStatus::Queued if row.attempt > 1 => {
            format!("Queued: attempt {} is waiting for free capacity on worker {}.", row.attempt, view.worker_id)
        }
        OccurrenceStatus::Queued => format!("Queued: waiting for free capacity on worker {}.", view.worker_id),
        OccurrenceStatus::Running => format!("Running on {instance}{on_attempt}."),
        OccurrenceStatus::Completed => match row.duration_ms {
            Some(millis) => format!("Completed in {}{on_attempt}.", format::duration(millis)),
            None => format!("Completed{on_attempt}."),
        },
        OccurrenceStatus::Failed => match because(&view.exception).or_else(|| because(&row.note)) {
            Some(cause) => format!("Failed{on_attempt}: {cause}"),
            None => format!("Failed{on_attempt}. The worker reported no reason."),
        },
        OccurrenceStatus::Cancelled => match because(&row.note) {
            // The server's own note starts with the word.
            Some(cause) if cause.starts_with("Cancelled ") => cause,
            Some(cause) => format!("Cancelled: {cause}"),
            None => "Cancelled on request.".to_owned(),
        },
        OccurrenceStatus::TimedOut => match row.duration_ms {
            Some(millis) => format!("Timed out after {}{on_attempt}.", format::duration(millis)),
            None => format!("Timed out{on_attempt}."),
        },
        OccurrenceStatus::Unknown => {
            format!("Unknown: {instance} stopped sending heartbeats. A late report may still set the result.")
        }
        // This text is not truncated, because nothing else on the page states why the run was skipped.
        OccurrenceStatus::Skipped => {
            match row.note.as_deref().map(|note| note.strip_prefix("Skipped: ").unwrap_or(note)) {
                Some(cause) if !cause.trim().is_empty() => format!("Skipped: {cause}"),
                _ => "Skipped by the job's overlap or misfire policy.".to_owned(),
            }
        }
    }
}

/// Returns the note of the occurrence, unless the explanation contains it.
#[must_use]
pub fn unexplained_note(view: &OccurrenceView) -> Option<String> {
    let note = view.row.note.as_deref().map(str::trim).filter(|note| !note.is_empty())?;
    (!explain_status(view).contains(note)).then(|| note.to_owned())
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use milvaion_api::views::{OccurrenceRow, TriggerSource};
    use milvaion_protocol::id::{JobId, OccurrenceId};

    use super::*;

    fn view(status: OccurrenceStatus) -> OccurrenceView {
        OccurrenceView {
            row: OccurrenceRow {
                id: OccurrenceId::default(),
                job_id: JobId::default(),
                job_name: "report".into(),
                status,
                version: 1,
                trigger: TriggerSource::Schedule,
                attempt: 1,
                scheduled_for: DateTime::UNIX_EPOCH,
                started_at: None,
                ended_at: None,
                duration_ms: Some(1_200),
                instance_id: Some("local-1".into()),
                progress: None,
                note: None,
                waits_until: None,
            },
            worker_id: "local".into(),
            job_type: "http-request".into(),
            job_version: 1,
            job_data: serde_json::Value::Null,
            triggered_by: None,
            trigger_reason: None,
            repeats: None,
            published_at: Some(DateTime::UNIX_EPOCH),
            is_held: false,
            result: None,
            exception: None,
            changes: vec![],
            log: vec![],
            log_has_earlier: false,
            job_exists: true,
            worker_alive: true,
        }
    }

    #[test]
    fn queued_occurrence_names_its_wait() {
        let mut queued = view(OccurrenceStatus::Queued);
        assert_eq!(explain_status(&queued), "Queued: waiting for free capacity on worker local.");
        queued.published_at = None;
        queued.is_held = true;
        assert!(explain_status(&queued).contains("waiting for a slot"));
        queued.is_held = false;
        assert_eq!(explain_status(&queued), "Queued: recorded, but its message is not yet sent to the broker.");
        queued.worker_alive = false;
        assert_eq!(
            explain_status(&queued),
            "Queued: no live worker offers local/http-request. The run starts when one does."
        );
    }

    #[test]
    fn ended_occurrence_states_its_cause() {
        assert_eq!(explain_status(&view(OccurrenceStatus::Completed)), "Completed in 1.2 s.");
        let mut failed = view(OccurrenceStatus::Failed);
        failed.row.attempt = 3;
        failed.exception = Some("status 500 instead of 200\nbody: …".into());
        assert_eq!(explain_status(&failed), "Failed on attempt 3: status 500 instead of 200");
        let mut skipped = view(OccurrenceStatus::Skipped);
        skipped.row.note = Some("the previous occurrence was still running".into());
        assert_eq!(explain_status(&skipped), "Skipped: the previous occurrence was still running");
        skipped.row.note = Some(format!("Skipped: {}", "three due times were missed ".repeat(10).trim_end()));
        let note = skipped.row.note.clone().unwrap_or_default();
        assert_eq!(explain_status(&skipped), note, "complete, without repetition");
        assert_eq!(unexplained_note(&skipped), None);
        let mut cancelled = view(OccurrenceStatus::Cancelled);
        cancelled.row.note = Some("Cancelled by ada@example.org: wrong input".into());
        assert_eq!(explain_status(&cancelled), "Cancelled by ada@example.org: wrong input");
        cancelled.row.note = Some("Replaced by a newer occurrence of the job".into());
        assert_eq!(explain_status(&cancelled), "Cancelled: Replaced by a newer occurrence of the job");
        let mut completed = view(OccurrenceStatus::Completed);
        completed.row.note = Some("covers 3 misfires".into());
        assert_eq!(unexplained_note(&completed).as_deref(), Some("covers 3 misfires"));
    }
}
