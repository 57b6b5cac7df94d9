//! Notes about reports of workers that could not be read, or not in part, in the history of an occurrence.
//!
//! Such a report has no status of its own. Without a note nothing on the page of the occurrence says why a run that ended
//! well counts as lost, or why its duration is missing.

use chrono::{DateTime, Utc};

use crate::views::StatusChange;
use milvaion_protocol::status::OccurrenceStatus;

/// The prefix of the note of a report that could not be read.
pub const UNREADABLE_REPORT_NOTE: &str = "Unreadable";

/// Returns true if a step of the history is a note about a report, and no status change.
#[must_use]
pub fn is_report_note(step: &StatusChange) -> bool {
    step.note.as_deref().is_some_and(|note| note.starts_with(UNREADABLE_REPORT_NOTE))
}

/// Adds a note to the history at its time. It has the status of the step before it, so that it changes none; the end of an
/// occurrence stays its last step.
pub fn insert_report_note(
    history: &mut Vec<StatusChange>,
    attempt: i32,
    instance: Option<String>,
    at: DateTime<Utc>,
    text: &str,
) {
    let later = history.iter().position(|step| step.at > at).unwrap_or(history.len());
    let index = match history.last() {
        Some(last) if last.status.is_final() => later.min(history.len() - 1),
        _ => later,
    };
    let before = index.checked_sub(1).and_then(|index| history.get(index));
    let status = before.map_or(OccurrenceStatus::Queued, |step| step.status);
    let note = Some(format!("{UNREADABLE_REPORT_NOTE}: {text}"));
    history.insert(index, StatusChange { status, at, attempt, by: instance, note });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_is_at_its_time_and_before_the_end() {
        use OccurrenceStatus as S;
        let at = |second| DateTime::UNIX_EPOCH + chrono::Duration::seconds(second);
        let step = |second, status| StatusChange { status, at: at(second), attempt: 1, by: None, note: None };
        let mut open = vec![step(0, S::Queued), step(5, S::Running)];
        insert_report_note(&mut open, 1, None, at(9), "status: the field is missing");
        assert!(is_report_note(&open[2]) && open[2].status == S::Running);
        let mut ended = vec![step(0, S::Queued), step(5, S::Running), step(8, S::Completed)];
        insert_report_note(&mut ended, 1, None, at(9), "durationMs: no number");
        assert!(is_report_note(&ended[2]) && ended[3].status == S::Completed);
        insert_report_note(&mut ended, 1, None, at(2), "durationMs: no number");
        assert_eq!((ended[1].status, is_report_note(&ended[1])), (S::Queued, true));
    }
}
