//! The rows of the jobs page, kept current.

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

/// How many of a job's last occurrences its row shows.
const RECENT_OCCURRENCES: usize = 10;

/// The rows on the page. Each is a signal of its own, so that a change repaints one row.
#[derive(Clone, Copy)]
pub(super) struct JobList {
    /// Each with its id.
    pub(super) rows: RwSignal<Vec<(JobId, ArcRwSignal<JobRow>)>>,
    /// Where the next page starts, if there is one.
    pub(super) next: RwSignal<Option<String>>,
}

impl JobList {
    /// The list that was read with the page.
    pub(super) fn new(found: ListPage<JobRow>) -> Self {
        let rows = found.rows.into_iter().map(|row| (row.id, ArcRwSignal::new(row))).collect();
        Self { rows: RwSignal::new(rows), next: RwSignal::new(found.next) }
    }

    /// Follows the events: what an occurrence became is patched in, anything else is read again.
    pub(super) fn keep_current(self, filter: JobFilter) {
        let read = move || {
            let filter = filter.clone();
            async move { jobs(filter).await }
        };
        let refresh = throttled_refresh(Duration::from_secs(1), read, move |found| self.reread(found));
        // Whatever was heard while the page was being read is not in it.
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
                    if note(&mut recent, occurrence.id, occurrence.status) {
                        row.update(|row| row.recent = recent);
                    }
                }
            }
        });
    }
}

/// Puts an occurrence's state where it belongs among the last ten, newest first. Answers whether anything changed. A
/// final state stays, whatever arrives late.
fn note(recent: &mut Vec<(OccurrenceId, OccurrenceStatus)>, id: OccurrenceId, status: OccurrenceStatus) -> bool {
    let place = recent.partition_point(|(other, _)| *other > id);
    match recent.get_mut(place) {
        Some((known, now)) if *known == id => {
            let changes = *now != status && !now.is_final();
            if changes {
                *now = status;
            }
            changes
        }
        _ if place < RECENT_OCCURRENCES => {
            recent.insert(place, (id, status));
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
    fn the_strip_keeps_the_last_ten_in_order() {
        use OccurrenceStatus::{Completed, Queued, Running};
        let mut recent = Vec::new();
        for second in [2, 1, 3] {
            assert!(note(&mut recent, id(second), Queued));
        }
        assert_eq!(recent.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(3), id(2), id(1)]);
        assert!(note(&mut recent, id(2), Completed));
        assert!(!note(&mut recent, id(2), Running), "a late event must not undo the end");
        for second in 10..20 {
            note(&mut recent, id(second), Queued);
        }
        assert_eq!(recent.len(), RECENT_OCCURRENCES);
        assert!(!note(&mut recent, id(0), Completed), "older than the ten shown");
    }
}
