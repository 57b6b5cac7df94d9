//! The rows of the jobs page, kept current by events and refreshes.

use std::time::Duration;

use leptos::prelude::*;
use milvaion_api::{
    events::LiveEvent,
    page::{JobFilter, ListPage},
    views::{JobRow, OccurrenceRow},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

use crate::{
    api::jobs::jobs,
    live::{LiveUpdates, is_resync, throttled_refresh, use_live_updates},
};

/// The number of recent occurrences in a job's row.
const RECENT_OCCURRENCES: usize = 10;

/// The rows on the page. Each row is its own signal, so that a change redraws only that row.
#[derive(Clone, Copy)]
pub(super) struct JobList {
    /// The rows with the ids of their jobs.
    pub(super) rows: RwSignal<Vec<(JobId, ArcRwSignal<JobRow>)>>,
    /// The cursor of the next page; none on the last page.
    pub(super) next: RwSignal<Option<String>>,
}

impl JobList {
    /// Creates the list from the page that was read.
    pub(super) fn new(found: ListPage<JobRow>) -> Self {
        let rows = found.rows.into_iter().map(|row| (row.id, ArcRwSignal::new(row))).collect();
        Self { rows: RwSignal::new(rows), next: RwSignal::new(found.next) }
    }

    /// Follows the events: patches the status of an occurrence into its row, and reads the page again for other events.
    pub(super) fn keep_current(self, filter: JobFilter) {
        let read = move || {
            let filter = filter.clone();
            async move { jobs(filter).await }
        };
        let refresh = throttled_refresh(Duration::from_secs(1), read, move |found| self.reread(found));
        // An event that arrived while the page was being read is not in the data.
        if use_context::<LiveUpdates>().is_some_and(LiveUpdates::received_recently) {
            refresh.request();
        }
        use_live_updates(move |envelope| match &envelope.event {
            LiveEvent::Occurrences { rows } => self.apply(rows),
            LiveEvent::Job { .. } | LiveEvent::JobDeleted { .. } | LiveEvent::Workers => refresh.request(),
            _ if is_resync(envelope) => refresh.request(),
            _ => {}
        });
    }

    fn reread(self, found: ListPage<JobRow>) {
        let known = self.rows.get_untracked();
        let rows: Vec<_> = found
            .rows
            .into_iter()
            .map(|row| match known.iter().find(|(id, _)| *id == row.id) {
                Some((id, signal)) => {
                    if *signal.read_untracked() != row {
                        signal.set(row);
                    }
                    (*id, signal.clone())
                }
                None => (row.id, ArcRwSignal::new(row)),
            })
            .collect();
        let is_same = known.len() == rows.len() && known.iter().zip(&rows).all(|(a, b)| a.0 == b.0);
        if !is_same {
            self.rows.set(rows);
        }
        if self.next.with_untracked(|next| *next != found.next) {
            self.next.set(found.next);
        }
    }

    fn apply(self, occurrences: &[OccurrenceRow]) {
        self.rows.with_untracked(|rows| {
            for occurrence in occurrences {
                if let Some((_, row)) = rows.iter().find(|(id, _)| *id == occurrence.job_id) {
                    let mut recent = row.read_untracked().recent.clone();
                    if record_status(&mut recent, occurrence.id, occurrence.status) {
                        row.update(|row| row.recent = recent);
                    }
                }
            }
        });
    }
}

/// Inserts or updates an occurrence among the last ten, which are in order, newest first. Returns true if anything
/// changed. A final status is not overwritten by a late event.
fn record_status(
    recent: &mut Vec<(OccurrenceId, OccurrenceStatus)>,
    id: OccurrenceId,
    status: OccurrenceStatus,
) -> bool {
    let position = recent.partition_point(|(other, _)| *other > id);
    match recent.get_mut(position) {
        Some((known, now)) if *known == id => {
            let changes = *now != status && !now.is_final();
            if changes {
                *now = status;
            }
            changes
        }
        _ if position < RECENT_OCCURRENCES => {
            recent.insert(position, (id, status));
            recent.truncate(RECENT_OCCURRENCES);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn id(second: i64) -> OccurrenceId {
        OccurrenceId::from_parts(DateTime::from_timestamp(1_795_000_000 + second, 0).expect("in range"), [3; 10])
    }

    #[test]
    fn strip_keeps_the_last_ten_in_order() {
        use OccurrenceStatus::{Completed, Queued, Running};
        let mut recent = Vec::new();
        for second in [2, 1, 3] {
            assert!(record_status(&mut recent, id(second), Queued));
        }
        assert_eq!(recent.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(3), id(2), id(1)]);
        assert!(record_status(&mut recent, id(2), Completed));
        assert!(!record_status(&mut recent, id(2), Running), "a late event must not undo a final status");
        for second in 10..20 {
            record_status(&mut recent, id(second), Queued);
        }
        assert_eq!(recent.len(), RECENT_OCCURRENCES);
        assert!(!record_status(&mut recent, id(0), Completed), "older than the ten shown");
    }
}
