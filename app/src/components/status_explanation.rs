//! The explanation of an occurrence's status.
//!
//! It states only what the server has on record: a report that arrived, a message that the broker confirmed, a request
//! that is stored. A run that was last reported as running may have ended since, and a message that was sent may be with
//! any instance. The text names the record in such cases.

use chrono::{DateTime, Utc};
use milvaion_api::{
    styled_text::shown_text,
    views::{OccurrenceView, StatusChange},
};
use milvaion_protocol::status::OccurrenceStatus;

use crate::format;

/// The maximum length of a quoted cause, in characters. The page shows the full text as the exception.
const CAUSE_MAX_CHARS: usize = 160;
/// The start of the note of a cancel request, which the explanation replaces by its own words.
const REQUEST_PREFIX: &str = "Cancellation ";

/// Explains the status of an occurrence, and names the condition that a queued occurrence waits for.
#[must_use]
pub fn explain_status(view: &OccurrenceView) -> String {
    let row = &view.row;
    let on_attempt = if row.attempt > 1 { format!(" on attempt {}", row.attempt) } else { String::new() };
    let cause = clipped(row.note.as_deref());
    if row.is_cancelling() {
        return explain_cancelling(view);
    }
    match row.status {
        OccurrenceStatus::Queued => explain_queued(view),
        OccurrenceStatus::Running => match row.instance_id.as_deref() {
            Some(instance) if view.instance_unreachable => format!(
                "Running{on_attempt}. Worker instance {instance} is unreachable: it is alive, but nothing that it sends over \
                 RabbitMQ arrives. It keeps the run until the job's unreachable timeout."
            ),
            Some(instance) if !view.instance_alive => {
                format!("Running{on_attempt} by its last report. Worker instance {instance} sends no heartbeats now.")
            }
            Some(instance) if view.is_overdue => format!(
                "Running on {instance}{on_attempt}, and overdue: its timeout has passed, and the worker has not ended it. The \
                 server asks it to; if that does not help, restart the worker."
            ),
            Some(instance) => format!("Running on {instance}{on_attempt}."),
            None => format!("Running on a worker instance{on_attempt}."),
        },
        OccurrenceStatus::Completed => match row.duration_ms {
            Some(millis) => format!("Completed in {}{on_attempt}.", format::duration(millis)),
            None => format!("Completed{on_attempt}."),
        },
        OccurrenceStatus::Failed => match cause.or_else(|| clipped(view.exception.as_deref())) {
            // The server's own note starts with the word.
            Some(cause) if cause.starts_with("Failed ") => cause,
            Some(cause) => format!("Failed{on_attempt}: {cause}"),
            None => format!("Failed{on_attempt}. The worker reported no reason."),
        },
        OccurrenceStatus::Cancelled => match cause {
            Some(cause) if cause.starts_with("Cancelled ") || cause.starts_with("Cancelled:") => cause,
            Some(cause) => match cause.strip_prefix(REQUEST_PREFIX) {
                Some(request) => format!("Cancelled, {request}"),
                None => format!("Cancelled: {cause}"),
            },
            None if row.cancel_requested_at.is_some() => "Cancelled on request.".to_owned(),
            None => "Cancelled by its worker, which reported no reason.".to_owned(),
        },
        OccurrenceStatus::TimedOut => match row.duration_ms {
            Some(millis) => format!("Timed out after {}{on_attempt}.", format::duration(millis)),
            None => format!("Timed out{on_attempt}."),
        },
        // The note names the evidence: heartbeats that stopped, that no longer list the run, or a report of the worker.
        OccurrenceStatus::Unknown => match first_line(row.note.as_deref()) {
            Some(cause) => format!("Unknown: {cause}"),
            None => "Unknown: the run is lost. A late report may still set the result.".to_owned(),
        },
        // This text is not truncated, because nothing else on the page states why the run was skipped.
        OccurrenceStatus::Skipped => {
            match row.note.as_deref().map(|note| note.strip_prefix("Skipped: ").unwrap_or(note)) {
                Some(cause) if !cause.trim().is_empty() => format!("Skipped: {cause}"),
                _ => "Skipped by the job's overlap or misfire policy.".to_owned(),
            }
        }
    }
}

/// Returns the time until which a queued occurrence is delayed. A requeued run that waits in quarantine has no such time:
/// its wait starts at the step that queued it.
#[must_use]
pub fn delayed_until(view: &OccurrenceView) -> Option<DateTime<Utc>> {
    let step = queued_step(view);
    view.row.waits_until.filter(|until| step.is_none_or(|step| *until > step.at))
}

/// Returns the step that queued the present attempt. An event delivers the row before the page is read again with the
/// step.
fn queued_step(view: &OccurrenceView) -> Option<&StatusChange> {
    let is_own = |step: &&StatusChange| step.status == OccurrenceStatus::Queued && step.attempt == view.row.attempt;
    view.changes.last().filter(is_own)
}

/// Explains a cancel request that is stored while the occurrence is open.
fn explain_cancelling(view: &OccurrenceView) -> String {
    let row = &view.row;
    let request = match first_line(row.note.as_deref()).and_then(|note| note.strip_prefix(REQUEST_PREFIX)) {
        Some(request) => format!("Cancelling, {}", request.trim_end_matches('.')),
        None => "Cancelling on request".to_owned(),
    };
    match row.instance_id.as_deref() {
        Some(instance) if row.status == OccurrenceStatus::Running => {
            format!("{request}. Worker instance {instance} has not reported the end of the run yet.")
        }
        _ => format!("{request}. The server cancels the occurrence."),
    }
}

fn explain_queued(view: &OccurrenceView) -> String {
    let row = &view.row;
    let target = format!("{}/{}", view.worker_id, view.job_type);
    let step = queued_step(view);
    let sentence = if delayed_until(view).is_some() {
        explain_delay(view, step)
    } else if row.waits_until.is_some() {
        // The step names the condition.
        match step.and_then(|step| step.note.as_deref()) {
            Some(note) => format!("Queued: {note}."),
            None => format!("Queued: attempt {} is not sent to the broker yet.", row.attempt),
        }
    } else if view.is_held {
        "Queued: waiting for a slot, because of a concurrency limit or an earlier occurrence of the job.".to_owned()
    } else if !view.worker_alive {
        return format!("Queued: no live worker offers {target}. The run cannot start before one does.");
    } else if view.published_at.is_none() {
        "Queued: recorded, but its message is not yet sent to the broker.".to_owned()
    } else {
        let attempt = if row.attempt > 1 { format!("attempt {} was ", row.attempt) } else { String::new() };
        return format!(
            "Queued: {attempt}sent to worker {}, and no instance has reported its start yet.",
            view.worker_id
        );
    };
    if view.worker_alive { sentence } else { format!("{sentence} No live worker offers {target}.") }
}

/// Explains an attempt that is delayed: by a retry, by a hand-back, or by the job.
fn explain_delay(view: &OccurrenceView, step: Option<&StatusChange>) -> String {
    let next = view.row.attempt;
    let note = clipped(view.row.note.as_deref());
    let ended = view
        .changes
        .iter()
        .rev()
        .find(|change| change.attempt == next - 1 && change.status != OccurrenceStatus::Queued)
        .map(|change| (change.status, clipped(change.note.as_deref())));
    match ended {
        Some((OccurrenceStatus::Failed, cause)) => {
            let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("Retrying: attempt {} failed{cause}. Attempt {next} is delayed.", next - 1)
        }
        Some((OccurrenceStatus::TimedOut, _)) => {
            format!("Retrying: attempt {} timed out. Attempt {next} is delayed.", next - 1)
        }
        // The note may be that of an earlier attempt. It is the reason of this delay if the step repeats it.
        _ => match note.filter(|note| step.is_none_or(|step| step.note.as_deref().is_some_and(|s| s.contains(note)))) {
            Some(cause) => format!("Queued: attempt {next} is delayed; {cause}"),
            None => format!("Queued: attempt {next} is delayed."),
        },
    }
}

fn first_line(text: Option<&str>) -> Option<&str> {
    text.and_then(|text| text.lines().next()).map(str::trim).filter(|line| !line.is_empty())
}

fn clipped(text: Option<&str>) -> Option<String> {
    let text = text.map(shown_text);
    first_line(text.as_deref()).map(|line| format::clip(line, CAUSE_MAX_CHARS))
}

/// Returns the note of the occurrence, unless the explanation or the timeline contains it.
#[must_use]
pub fn unexplained_note(view: &OccurrenceView) -> Option<String> {
    let note = view.row.note.as_deref().map(str::trim).filter(|note| !note.is_empty())?;
    let is_shown = is_explained(view, note)
        || view.changes.iter().any(|step| step.note.as_deref().is_some_and(|text| text.contains(note)));
    (!is_shown).then(|| note.to_owned())
}

/// Returns the exception, unless it only repeats the explanation of a cancelled run.
#[must_use]
pub fn unexplained_exception(view: &OccurrenceView) -> Option<String> {
    let exception = view.exception.clone()?;
    let is_shown = view.row.status == OccurrenceStatus::Cancelled && is_explained(view, shown_text(&exception).trim());
    (!is_shown).then_some(exception)
}

fn is_explained(view: &OccurrenceView, text: &str) -> bool {
    explain_status(view).contains(text.strip_prefix(REQUEST_PREFIX).unwrap_or(text).trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
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
                cancel_requested_at: None,
            },
            worker_id: "local".into(),
            job_type: "http-request".into(),
            job_version: 1,
            job_data: serde_json::Value::Null,
            triggered_by: None,
            trigger_token: None,
            trigger_reason: None,
            repeats: None,
            parent_id: None,
            children: Vec::new(),
            has_more_children: false,
            trace_id: "019a9b3f7c007abc8def0123456789ab".into(),
            trace_url: None,
            published_at: Some(DateTime::UNIX_EPOCH),
            is_held: false,
            result: None,
            exception: None,
            changes: vec![],
            log: vec![],
            log_has_earlier: false,
            log_skipped: 0,
            job_exists: true,
            worker_alive: true,
            instance_alive: true,
            instance_unreachable: false,
            is_overdue: false,
        }
    }

    fn step(status: OccurrenceStatus, attempt: i32, second: i64, note: Option<&str>) -> StatusChange {
        StatusChange { status, at: at(second), attempt, by: None, note: note.map(str::to_owned) }
    }

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(second)
    }

    #[test]
    fn queued_occurrence_names_its_wait() {
        let mut queued = view(OccurrenceStatus::Queued);
        assert_eq!(
            explain_status(&queued),
            "Queued: sent to worker local, and no instance has reported its start yet."
        );
        queued.row.attempt = 2;
        assert_eq!(
            explain_status(&queued),
            "Queued: attempt 2 was sent to worker local, and no instance has reported its start yet."
        );
        queued.published_at = None;
        queued.is_held = true;
        assert!(explain_status(&queued).contains("waiting for a slot"));
        queued.is_held = false;
        assert_eq!(explain_status(&queued), "Queued: recorded, but its message is not yet sent to the broker.");
        queued.worker_alive = false;
        assert_eq!(
            explain_status(&queued),
            "Queued: no live worker offers local/http-request. The run cannot start before one does."
        );
        queued.is_held = true;
        assert_eq!(
            explain_status(&queued),
            "Queued: waiting for a slot, because of a concurrency limit or an earlier occurrence of the job. No live \
             worker offers local/http-request."
        );
    }

    #[test]
    fn delay_names_the_reason_of_this_attempt() {
        let mut waits = view(OccurrenceStatus::Queued);
        waits.row.attempt = 2;
        waits.row.waits_until = Some(at(60));
        waits.row.note = Some("boom".into());
        let queued = |note| step(OccurrenceStatus::Queued, 2, 3, Some(note));
        waits.changes = vec![
            step(OccurrenceStatus::Queued, 1, 0, None),
            step(OccurrenceStatus::Failed, 1, 2, Some("boom")),
            queued("Retry 1 of 3 in 57 s"),
        ];
        assert_eq!(explain_status(&waits), "Retrying: attempt 1 failed: boom. Attempt 2 is delayed.");
        waits.changes[1] = step(OccurrenceStatus::TimedOut, 1, 2, None);
        assert_eq!(explain_status(&waits), "Retrying: attempt 1 timed out. Attempt 2 is delayed.");
        waits.changes[1] = step(OccurrenceStatus::Running, 1, 2, None);
        waits.changes[2] = queued("Handed back by the worker: boom; attempt 2 starts in 57 s");
        assert_eq!(explain_status(&waits), "Queued: attempt 2 is delayed; boom");
        waits.changes[2] = queued("Handed back by the worker; attempt 2 starts in 57 s");
        assert_eq!(explain_status(&waits), "Queued: attempt 2 is delayed.", "the note is that of another attempt");
        assert_eq!(delayed_until(&waits), Some(at(60)));
        waits.row.waits_until = Some(at(3));
        assert_eq!(delayed_until(&waits), None, "it waits for other runs");
        waits.changes[2] = queued("No heartbeat; attempt 2 starts after the runs ahead of it in quarantine");
        assert_eq!(
            explain_status(&waits),
            "Queued: No heartbeat; attempt 2 starts after the runs ahead of it in quarantine."
        );
    }

    #[test]
    fn running_occurrence_names_a_silent_instance() {
        let mut running = view(OccurrenceStatus::Running);
        assert_eq!(explain_status(&running), "Running on local-1.");
        running.is_overdue = true;
        assert!(
            explain_status(&running).contains("and overdue: its timeout has passed"),
            "{}",
            explain_status(&running)
        );
        running.instance_unreachable = true;
        assert!(explain_status(&running).contains("is unreachable: it is alive"), "{}", explain_status(&running));
        running.instance_unreachable = false;
        running.instance_alive = false;
        assert_eq!(
            explain_status(&running),
            "Running by its last report. Worker instance local-1 sends no heartbeats now."
        );
    }

    #[test]
    fn cancel_request_is_stated_until_the_end() {
        let mut running = view(OccurrenceStatus::Running);
        running.row.cancel_requested_at = Some(at(5));
        running.row.note = Some("Cancellation requested by ada@example.org: wrong input".into());
        assert!(running.row.is_cancelling());
        assert_eq!(
            explain_status(&running),
            "Cancelling, requested by ada@example.org: wrong input. Worker instance local-1 has not reported the end of the \
             run yet."
        );
        assert_eq!(unexplained_note(&running), None);
        let mut cancelled = running;
        cancelled.row.status = OccurrenceStatus::Cancelled;
        cancelled.exception = cancelled.row.note.clone();
        assert!(!cancelled.row.is_cancelling());
        assert_eq!(explain_status(&cancelled), "Cancelled, requested by ada@example.org: wrong input");
        assert_eq!(unexplained_exception(&cancelled), None, "stated once");
        cancelled.exception = Some("stopped at step 3".into());
        assert_eq!(unexplained_exception(&cancelled).as_deref(), Some("stopped at step 3"));
    }

    #[test]
    fn unknown_occurrence_states_the_evidence() {
        let mut unknown = view(OccurrenceStatus::Unknown);
        assert!(explain_status(&unknown).starts_with("Unknown: the run is lost."));
        let note = "Worker instance local-1 sends heartbeats, but for at least 16 s none of them listed this run; the lost \
                    run policy is not to run it again; a report within 10 minutes still counts";
        unknown.row.note = Some(note.into());
        assert_eq!(explain_status(&unknown), format!("Unknown: {note}"));
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
        failed.row.note = Some("Failed as a poison run: lost with its worker 4 times.".into());
        assert_eq!(explain_status(&failed), "Failed as a poison run: lost with its worker 4 times.");
        let mut cancelled = view(OccurrenceStatus::Cancelled);
        assert_eq!(explain_status(&cancelled), "Cancelled by its worker, which reported no reason.");
        cancelled.row.cancel_requested_at = Some(at(0));
        assert_eq!(explain_status(&cancelled), "Cancelled on request.");
        cancelled.row.note = Some("Cancelled by ada@example.org: wrong input".into());
        assert_eq!(explain_status(&cancelled), "Cancelled by ada@example.org: wrong input");
        cancelled.row.note = Some("Replaced by a newer occurrence of the job".into());
        assert_eq!(explain_status(&cancelled), "Cancelled: Replaced by a newer occurrence of the job");
        let mut completed = view(OccurrenceStatus::Completed);
        completed.row.note = Some("covers 3 misfires".into());
        assert_eq!(unexplained_note(&completed).as_deref(), Some("covers 3 misfires"));
        completed.changes = vec![step(OccurrenceStatus::Queued, 1, 0, Some("covers 3 misfires"))];
        assert_eq!(unexplained_note(&completed), None, "the timeline states it");
    }
}
