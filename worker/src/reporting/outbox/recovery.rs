//! Decides what happens to the entries that an earlier process left.

use std::{collections::HashSet, sync::Arc};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, StatusReport, first_log_seq},
    status::OccurrenceStatus,
};

use super::{
    entry::{DroppedLines, EntryKind, OutboxEntry, StoredEntries},
    journal::EntryId,
};
use crate::{clock, delivery::claim::AttemptKey};

/// The entries of an earlier process: those to send, and those to delete.
#[derive(Default)]
pub(crate) struct RecoveredReports {
    /// Reports that the broker has not confirmed, in order.
    pub(crate) reports: Vec<(EntryId, StatusReport, Arc<str>)>,
    /// Runs that had begun and did not end, each with the report of its interruption and the entry of its start.
    pub(crate) interrupted: Vec<(EntryId, StatusReport)>,
    /// Lines that the broker has not confirmed, in order.
    pub(crate) lines: Vec<(EntryId, OccurrenceId, LogLine, Arc<str>)>,
    /// Counts of dropped lines. `None` if the count is obsolete.
    pub(crate) dropped_lines: Vec<(OccurrenceId, Option<DroppedLines>)>,
    /// Entries to delete.
    pub(crate) obsolete: Vec<EntryId>,
}

impl RecoveredReports {
    /// Sorts the stored entries by what happens to them.
    pub(super) fn from_entries(StoredEntries { entries, dropped_lines }: StoredEntries) -> Self {
        let mut this = Self::default();
        let mut begun = Vec::new();
        let (mut unconfirmed, mut settled) = <(HashSet<AttemptKey>, HashSet<AttemptKey>)>::default();
        let (mut ended, mut handed_back) = <(HashSet<AttemptKey>, HashSet<AttemptKey>)>::default();
        for OutboxEntry { id, kind, occurrence, body } in entries {
            if kind == EntryKind::Line {
                match serde_json::from_str(&body) {
                    Ok(line) => this.lines.push((id, occurrence, line, body)),
                    Err(_) => this.obsolete.push(id),
                }
                continue;
            }
            let Ok(report) = serde_json::from_str::<StatusReport>(&body) else {
                this.obsolete.push(id);
                continue;
            };
            if kind == EntryKind::Begun {
                begun.push((id, report));
                continue;
            }
            let attempt = attempt(&report);
            match report.status {
                OccurrenceStatus::Running => drop(unconfirmed.insert(attempt)),
                // Handed back: another instance starts the attempt again. A snooze has a pause, and its attempt has ended.
                OccurrenceStatus::Queued if report.retry_after_ms.is_none() => {
                    ended.insert(attempt);
                    handed_back.insert(attempt);
                }
                // Lost: the attempt has ended without a result.
                OccurrenceStatus::Unknown => drop(ended.insert(attempt)),
                _ => drop((ended.insert(attempt), settled.insert(attempt))),
            }
            this.reports.push((id, report, body));
        }
        // The outcome of these attempts is decided elsewhere; see the documentation of the parent module.
        let open: HashSet<AttemptKey> = unconfirmed.difference(&settled).copied().collect();
        let Self { reports, lines, interrupted, obsolete, .. } = &mut this;
        reports.retain(|(id, report, _)| keep(!open.contains(&attempt(report)), *id, obsolete));
        // Their lines are sent, unless another instance starts the same attempt and writes lines with the same numbers.
        let is_again = |occurrence: OccurrenceId, seq: i64| {
            u32::try_from(seq / first_log_seq(1)).is_ok_and(|attempt| {
                open.contains(&(occurrence, attempt)) && handed_back.contains(&(occurrence, attempt))
            })
        };
        lines.retain(|(id, occurrence, line, _)| keep(!is_again(*occurrence, line.seq), *id, obsolete));
        let keep_count =
            |(occurrence, (count, last))| (occurrence, (!is_again(occurrence, last)).then_some((count, last)));
        let dropped_lines = dropped_lines.into_iter().map(keep_count).collect();
        for (id, report) in begun {
            if keep(!ended.contains(&attempt(&report)), id, obsolete) {
                interrupted.push((id, interruption(report)));
            }
        }
        Self { dropped_lines, ..this }
    }
}

/// Returns `is_needed`, and marks an entry that is not needed as obsolete.
fn keep(is_needed: bool, id: EntryId, obsolete: &mut Vec<EntryId>) -> bool {
    if !is_needed {
        obsolete.push(id);
    }
    is_needed
}

fn attempt(report: &StatusReport) -> AttemptKey {
    (report.occurrence_id, report.attempt)
}

/// Builds the report of a run whose process died before the run ended: it is lost. It is not handed back, because the
/// run itself may have killed the process, and handing it back each time would repeat it for ever.
fn interruption(start: StatusReport) -> StatusReport {
    StatusReport {
        status: OccurrenceStatus::Unknown,
        timestamp: clock::now(),
        exception: Some("interrupted: the worker's process ended before the run did".to_owned()),
        ..start
    }
}
