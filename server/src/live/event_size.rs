//! The size of events, which bounds what the hub keeps.
//!
//! One statement may change thousands of occurrences, and one run may print megabytes in a second. An event about all of
//! them would be as large on every server and in Redis, whether a page shows it or not. Events are therefore split.

use milvaion_api::events::LiveEvent;
use milvaion_protocol::message::LogLine;

/// The most occurrences in one event.
const MAX_ROWS: usize = 100;
/// The size of the lines in one event. A single line may be larger.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// The size of an occurrence in an event, without its note.
const ROW_BYTES: usize = 500;
/// The size of a log line without its text.
const LINE_BYTES: usize = 100;

/// Splits events that are too large for one message. The order stays.
pub(super) fn split(events: Vec<LiveEvent>) -> Vec<LiveEvent> {
    let mut parts = Vec::with_capacity(events.len());
    for event in events {
        match event {
            LiveEvent::Occurrences { rows } if rows.len() > MAX_ROWS => {
                parts.extend(rows.chunks(MAX_ROWS).map(|rows| LiveEvent::Occurrences { rows: rows.to_vec() }));
            }
            LiveEvent::Log { occurrence_id, lines } => {
                let (mut part, mut size) = (Vec::new(), 0);
                for line in lines {
                    let bytes = line_bytes(&line);
                    if !part.is_empty() && size + bytes > MAX_LINE_BYTES {
                        parts.push(LiveEvent::Log { occurrence_id, lines: std::mem::take(&mut part) });
                        size = 0;
                    }
                    size += bytes;
                    part.push(line);
                }
                parts.push(LiveEvent::Log { occurrence_id, lines: part });
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
        LiveEvent::Log { lines, .. } => lines.iter().map(line_bytes).sum(),
        _ => ROW_BYTES,
    }
}

fn line_bytes(line: &LogLine) -> usize {
    LINE_BYTES + line.message.len() + line.data.as_ref().map_or(0, |data| data.to_string().len())
}

#[cfg(test)]
pub(super) mod tests {
    use chrono::DateTime;
    use milvaion_protocol::{id::OccurrenceId, message::LogLevel};

    use super::*;

    /// Returns a log line with a text.
    pub(in crate::live) fn line(message: String) -> LogLine {
        LogLine { seq: 1, at: DateTime::UNIX_EPOCH, level: LogLevel::default(), message, data: None }
    }

    #[test]
    fn many_lines_become_several_events_in_order() {
        let lines: Vec<_> = (0..10).map(|n| line(format!("{n} {}", "x".repeat(20_000)))).collect();
        let id = OccurrenceId::default();
        let parts = split(vec![LiveEvent::Log { occurrence_id: id, lines: lines.clone() }, LiveEvent::Cluster]);
        assert_eq!(parts.len(), 5);
        assert!(parts.iter().all(|part| event_bytes(part) <= MAX_LINE_BYTES));
        let joined: Vec<_> = parts
            .into_iter()
            .filter_map(|part| match part {
                LiveEvent::Log { lines, .. } => Some(lines),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(joined, lines);
    }

    #[test]
    fn line_above_the_limit_is_an_event_of_its_own() {
        let lines = vec![line("x".repeat(2 * MAX_LINE_BYTES)); 2];
        assert_eq!(split(vec![LiveEvent::Log { occurrence_id: OccurrenceId::default(), lines }]).len(), 2);
    }
}
