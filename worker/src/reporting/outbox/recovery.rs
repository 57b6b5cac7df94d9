//! What to make of what an earlier process left.

use std::{collections::HashSet, sync::Arc};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, StatusReport, first_log_seq},
    status::OccurrenceStatus,
};

use super::{
    journal::EntryId,
    store::{DroppedLines, EntryKind, OutboxEntry, StoredEntries},
};
use crate::{clock, delivery::claim::AttemptKey};

/// What is to be sent, and what is not.
#[derive(Default)]
pub(crate) struct Recovered {
    /// Reports the broker has not confirmed, in order.
    pub(crate) reports: Vec<(EntryId, StatusReport, Arc<str>)>,
    /// Runs that had begun and did not end, each with the report that says so and the entry of its start.
    pub(crate) interrupted: Vec<(EntryId, StatusReport)>,
    /// Lines the broker has not confirmed, in order.
    pub(crate) lines: Vec<(EntryId, OccurrenceId, LogLine, Arc<str>)>,
    /// How many lines were given up; none where that is of no use any more.
    pub(crate) given_up: Vec<(OccurrenceId, Option<DroppedLines>)>,
    /// Entries that are of no use.
    pub(crate) obsolete: Vec<EntryId>,
}

impl Recovered {
    pub(super) fn from_entries(StoredEntries { entries, given_up }: StoredEntries) -> Self {
        let mut this = Self::default();
        let mut begun = Vec::new();
        let (mut unconfirmed, mut settled, mut ended) =
            <(HashSet<AttemptKey>, HashSet<AttemptKey>, HashSet<AttemptKey>)>::default();
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
                // Handed back or lost: it has ended, and nothing came of it.
                OccurrenceStatus::Queued | OccurrenceStatus::Unknown => drop(ended.insert(attempt)),
                _ => drop((ended.insert(attempt), settled.insert(attempt))),
            }
            this.reports.push((id, report, body));
        }
        // These begin again elsewhere; see the essay.
        let again: HashSet<AttemptKey> = unconfirmed.difference(&settled).copied().collect();
        let Self { reports, lines, interrupted, obsolete, .. } = &mut this;
        reports.retain(|(id, report, _)| keep(!again.contains(&attempt(report)), *id, obsolete));
        let is_again = |occurrence: OccurrenceId, seq: i64| {
            u32::try_from(seq / first_log_seq(1)).is_ok_and(|attempt| again.contains(&(occurrence, attempt)))
        };
        lines.retain(|(id, occurrence, line, _)| keep(!is_again(*occurrence, line.seq), *id, obsolete));
        let of_use = |(occurrence, (count, last))| (occurrence, (!is_again(occurrence, last)).then_some((count, last)));
        let given_up = given_up.into_iter().map(of_use).collect();
        for (id, report) in begun {
            if keep(!ended.contains(&attempt(&report)), id, obsolete) {
                interrupted.push((id, interruption(report)));
            }
        }
        Self { given_up, ..this }
    }
}

fn keep(is_of_use: bool, id: EntryId, obsolete: &mut Vec<EntryId>) -> bool {
    if !is_of_use {
        obsolete.push(id);
    }
    is_of_use
}

fn attempt(report: &StatusReport) -> AttemptKey {
    (report.occurrence_id, report.attempt)
}

/// The end of a run that its process did not live to see: it is lost. Not handed back, for the run may be what ended the
/// process, and whoever handed it back each time would run it for ever.
fn interruption(start: StatusReport) -> StatusReport {
    StatusReport {
        status: OccurrenceStatus::Unknown,
        timestamp: clock::now(),
        exception: Some("interrupted: the worker's process ended before the run did".to_owned()),
        ..start
    }
}
