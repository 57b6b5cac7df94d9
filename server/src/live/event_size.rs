//! The size of events, which bounds what the hub keeps.
//!
//! One statement may change thousands of occurrences. An event about all of them would be as large on every server and in
//! Redis, whether a page shows it or not. Events are therefore split.

use milvaion_api::events::LiveEvent;

/// The most occurrences in one event.
const MAX_ROWS: usize = 100;
/// The size of an occurrence in an event, without its note.
const ROW_BYTES: usize = 500;

/// Splits events that are too large for one message. The order stays.
pub(super) fn split(events: Vec<LiveEvent>) -> Vec<LiveEvent> {
    let mut parts = Vec::with_capacity(events.len());
    for event in events {
        match event {
            LiveEvent::Occurrences { rows } if rows.len() > MAX_ROWS => {
                parts.extend(rows.chunks(MAX_ROWS).map(|rows| LiveEvent::Occurrences { rows: rows.to_vec() }));
            }
            event => parts.push(event),
        }
    }
    parts
}

/// Returns the approximate size of an event in memory, in bytes.
pub(super) fn event_bytes(event: &LiveEvent) -> usize {
    match event {
        LiveEvent::Occurrences { rows } => {
            rows.iter().map(|row| ROW_BYTES + row.note.as_deref().map_or(0, str::len)).sum()
        }
        _ => ROW_BYTES,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use chrono::DateTime;
    use milvaion_api::views::{OccurrenceRow, TriggerSource};
    use milvaion_protocol::{
        id::{JobId, OccurrenceId},
        status::OccurrenceStatus,
    };

    use super::*;

    /// Returns an occurrence of a version, with a note.
    pub(in crate::live) fn row(version: i32, note: String) -> OccurrenceRow {
        OccurrenceRow {
            id: OccurrenceId::default(),
            job_id: JobId::default(),
            job_name: "Nightly report".into(),
            status: OccurrenceStatus::Failed,
            version,
            trigger: TriggerSource::Manual,
            attempt: 1,
            scheduled_for: DateTime::UNIX_EPOCH,
            started_at: None,
            ended_at: None,
            duration_ms: None,
            instance_id: None,
            progress: None,
            note: Some(note),
            waits_until: None,
            cancel_requested_at: None,
        }
    }

    #[test]
    fn many_occurrences_become_several_events_in_order() {
        let rows: Vec<_> = (0..250).map(|version| row(version, String::new())).collect();
        let parts = split(vec![LiveEvent::Occurrences { rows: rows.clone() }, LiveEvent::Cluster]);
        let (parts, last) = (&parts[..3], &parts[3..]);
        assert_eq!(last, [LiveEvent::Cluster]);
        let joined: Vec<_> = parts
            .iter()
            .filter_map(|part| match part {
                LiveEvent::Occurrences { rows } => Some(rows.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(joined, rows);
        assert!(parts.iter().all(|part| event_bytes(part) <= MAX_ROWS * ROW_BYTES));
    }
}
