//! A list of occurrences that is kept current by events.
//!
//! Rows are patched in place by id and never replaced, and only by a version that is not older than the one on the
//! page, so that a late event cannot undo a newer one. New rows are inserted at the top. While the user works in the
//! list they are deferred until the user requests them, so that nothing moves under a pointer or a selection.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::{
    page::{ListPage, OccurrenceFilter},
    views::OccurrenceRow,
};
use milvaion_protocol::id::OccurrenceId;

use crate::format;

/// The maximum number of rows on the page. The newest are kept; older ones are on the next page.
pub const MAX_OCCURRENCE_ROWS: usize = 200;

/// One row of the list.
#[derive(Clone)]
pub struct OccurrenceEntry {
    /// The occurrence's id.
    pub id: OccurrenceId,
    /// The current values.
    pub row: ArcRwSignal<OccurrenceRow>,
    /// Commit time of the values if an event delivered them, as ISO 8601 with milliseconds.
    pub event_at: ArcRwSignal<Option<String>>,
    /// True if an event added the row.
    pub is_new: bool,
}

impl OccurrenceEntry {
    fn new(row: OccurrenceRow, event_at: Option<DateTime<Utc>>) -> Self {
        Self {
            id: row.id,
            is_new: event_at.is_some(),
            row: ArcRwSignal::new(row),
            event_at: ArcRwSignal::new(event_at.map(format::iso)),
        }
    }

    fn patch(&self, row: &OccurrenceRow, event_at: Option<DateTime<Utc>>) {
        let known = self.row.read_untracked();
        // Progress changes a row without a new version, so an equal version is accepted.
        if row.version < known.version || *row == *known {
            return;
        }
        drop(known);
        self.event_at.set(event_at.map(format::iso));
        self.row.set(row.clone());
    }
}

/// A live list of occurrences.
#[derive(Clone, Copy)]
pub struct OccurrenceList {
    filter: StoredValue<OccurrenceFilter>,
    shown: RwSignal<Vec<OccurrenceEntry>>,
    deferred: RwSignal<Vec<OccurrenceEntry>>,
    next: RwSignal<Option<String>>,
}

impl OccurrenceList {
    /// Creates the list from its first page.
    #[must_use]
    pub fn new(filter: OccurrenceFilter, page: ListPage<OccurrenceRow>) -> Self {
        let shown = page.rows.into_iter().map(|row| OccurrenceEntry::new(row, None)).collect();
        Self {
            filter: StoredValue::new(filter),
            shown: RwSignal::new(shown),
            deferred: RwSignal::new(Vec::new()),
            next: RwSignal::new(page.next),
        }
    }

    /// Returns the visible rows, newest first.
    #[must_use]
    pub fn shown(self) -> RwSignal<Vec<OccurrenceEntry>> {
        self.shown
    }

    /// Returns the number of deferred rows.
    #[must_use]
    pub fn waiting(self) -> usize {
        self.deferred.with(Vec::len)
    }

    /// Returns the cursor of the next page.
    #[must_use]
    pub fn next(self) -> Option<String> {
        self.next.get()
    }

    /// Applies the rows of an event. With `defer`, new rows wait until the user requests them.
    pub fn apply(self, rows: &[OccurrenceRow], at: DateTime<Utc>, defer: bool) {
        let mut new = Vec::new();
        for row in rows {
            let known = self.find(row.id);
            let fits = self.filter.with_value(|filter| fits(filter, row));
            match (known, fits) {
                (Some(entry), true) => entry.patch(row, Some(at)),
                (Some(entry), false) => {
                    if row.version >= entry.row.read_untracked().version {
                        self.remove(row.id);
                    }
                }
                (None, true) => new.push(OccurrenceEntry::new(row.clone(), Some(at))),
                (None, false) => {}
            }
        }
        // New rows belong to the top of the first page only. An old row that newly matches the filter belongs further
        // down, where the next read inserts it.
        if new.is_empty() || self.filter.with_value(|filter| filter.before.is_some()) {
            return;
        }
        if defer {
            self.deferred.update(|deferred| insert(deferred, new));
        } else {
            self.insert(new);
        }
    }

    /// Inserts the deferred rows.
    pub fn show_waiting(self) {
        let waiting = self.deferred.try_update(std::mem::take).unwrap_or_default();
        if !waiting.is_empty() {
            self.insert(waiting);
        }
    }

    /// Applies a new read of the same page: patches known rows, adds new ones and removes missing ones.
    pub fn reread(self, page: ListPage<OccurrenceRow>, defer: bool) {
        let oldest_read = page.rows.last().map(|row| row.id);
        let read_all = page.next.is_none();
        let is_read = |id: OccurrenceId| page.rows.iter().any(|row| row.id == id);
        // Rows below the end of this read came from an earlier read and may still exist.
        let gone = |id: OccurrenceId| !is_read(id) && (read_all || oldest_read.is_none_or(|oldest| id >= oldest));
        if self.shown.with_untracked(|shown| shown.iter().any(|entry| gone(entry.id))) {
            self.shown.update(|shown| shown.retain(|entry| !gone(entry.id)));
        }
        let mut new = Vec::new();
        for row in &page.rows {
            match self.find(row.id) {
                Some(entry) => entry.patch(row, None),
                None => new.push(OccurrenceEntry::new(row.clone(), None)),
            }
        }
        let extends_below = self
            .shown
            .with_untracked(|shown| shown.last().is_none_or(|last| oldest_read.is_none_or(|oldest| oldest <= last.id)));
        if extends_below {
            self.next.set(page.next.clone());
        }
        if !new.is_empty() {
            if defer {
                self.deferred.update(|deferred| insert(deferred, new));
            } else {
                self.insert(new);
            }
        }
    }

    fn find(self, id: OccurrenceId) -> Option<OccurrenceEntry> {
        let within = |entries: &Vec<OccurrenceEntry>| entries.iter().find(|entry| entry.id == id).cloned();
        self.shown.with_untracked(within).or_else(|| self.deferred.with_untracked(within))
    }

    fn remove(self, id: OccurrenceId) {
        for entries in [self.shown, self.deferred] {
            if entries.with_untracked(|entries| entries.iter().any(|entry| entry.id == id)) {
                entries.update(|entries| entries.retain(|entry| entry.id != id));
            }
        }
    }

    fn insert(self, new: Vec<OccurrenceEntry>) {
        self.shown.update(|shown| {
            insert(shown, new);
            if shown.len() > MAX_OCCURRENCE_ROWS {
                shown.truncate(MAX_OCCURRENCE_ROWS);
                self.next.set(shown.last().map(|entry| entry.id.to_string()));
            }
        });
    }
}

/// Inserts `new` in the order of their ids. Ids sort by time, and the newest comes first.
fn insert(entries: &mut Vec<OccurrenceEntry>, new: Vec<OccurrenceEntry>) {
    for entry in new {
        let index = entries.partition_point(|other| other.id > entry.id);
        if entries.get(index).is_none_or(|other| other.id != entry.id) {
            entries.insert(index, entry);
        }
    }
}

fn fits(filter: &OccurrenceFilter, row: &OccurrenceRow) -> bool {
    filter.job_id.is_none_or(|id| id == row.job_id)
        && filter.status.is_none_or(|status| status == row.status)
        && filter.before.is_none_or(|before| row.id < before)
        && filter.since.is_none_or(|since| row.id.created_at() >= since)
}

#[cfg(test)]
mod tests {
    use milvaion_api::views::TriggerSource;
    use milvaion_protocol::status::OccurrenceStatus;

    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_795_000_000 + second, 0).expect("in range")
    }

    fn row(second: i64, status: OccurrenceStatus, version: i32) -> OccurrenceRow {
        OccurrenceRow {
            id: OccurrenceId::from_parts(at(second), [1; 10]),
            job_id: milvaion_protocol::id::JobId::default(),
            job_name: "report".into(),
            status,
            version,
            trigger: TriggerSource::Schedule,
            attempt: 1,
            scheduled_for: at(second),
            started_at: None,
            ended_at: None,
            duration_ms: None,
            instance_id: None,
            progress: None,
            note: None,
            waits_until: None,
            cancel_requested_at: None,
        }
    }

    fn ids(list: OccurrenceList) -> Vec<OccurrenceId> {
        list.shown.with_untracked(|shown| shown.iter().map(|entry| entry.id).collect())
    }

    fn status_at(list: OccurrenceList, index: usize) -> OccurrenceStatus {
        list.shown.with_untracked(|shown| shown[index].row.read_untracked().status)
    }

    fn in_owner(check: impl FnOnce()) {
        Owner::new().with(check);
    }

    use OccurrenceStatus::{Completed, Queued, Running};

    #[test]
    fn late_event_does_not_undo_a_newer_one() {
        in_owner(|| {
            let list = OccurrenceList::new(
                OccurrenceFilter::default(),
                ListPage { rows: vec![row(1, Queued, 1)], next: None },
            );
            list.apply(&[row(1, Completed, 3)], at(5), false);
            list.apply(&[row(1, Running, 2)], at(6), false);
            assert_eq!(status_at(list, 0), Completed);
        });
    }

    #[test]
    fn new_rows_are_inserted_by_time() {
        in_owner(|| {
            let list = OccurrenceList::new(
                OccurrenceFilter::default(),
                ListPage { rows: vec![row(1, Queued, 1)], next: None },
            );
            list.apply(&[row(3, Queued, 1)], at(5), false);
            list.apply(&[row(2, Queued, 1), row(3, Running, 2)], at(6), false);
            assert_eq!(ids(list), [row(3, Queued, 1).id, row(2, Queued, 1).id, row(1, Queued, 1).id]);
            assert_eq!(status_at(list, 0), Running);
        });
    }

    #[test]
    fn deferred_rows_are_patched() {
        in_owner(|| {
            let list = OccurrenceList::new(OccurrenceFilter::default(), ListPage { rows: vec![], next: None });
            list.apply(&[row(1, Queued, 1)], at(5), true);
            list.apply(&[row(1, Completed, 2)], at(6), true);
            assert!(ids(list).is_empty());
            assert_eq!(list.deferred.with_untracked(Vec::len), 1);
            list.show_waiting();
            assert_eq!(status_at(list, 0), Completed);
        });
    }

    #[test]
    fn row_outside_the_filter_is_removed() {
        in_owner(|| {
            let filter = OccurrenceFilter { status: Some(Running), ..OccurrenceFilter::default() };
            let list = OccurrenceList::new(filter, ListPage { rows: vec![row(1, Running, 2)], next: None });
            list.apply(&[row(1, Completed, 3), row(2, Queued, 1)], at(5), false);
            assert!(ids(list).is_empty());
        });
    }

    #[test]
    fn later_page_takes_no_new_rows() {
        in_owner(|| {
            let filter = OccurrenceFilter { before: Some(row(9, Queued, 1).id), ..OccurrenceFilter::default() };
            let list = OccurrenceList::new(filter, ListPage { rows: vec![row(1, Running, 2)], next: None });
            list.apply(&[row(10, Queued, 1), row(2, Queued, 1)], at(11), false);
            assert_eq!(ids(list).len(), 1);
        });
    }

    #[test]
    fn oldest_rows_are_dropped_above_the_limit() {
        in_owner(|| {
            let rows: Vec<_> = (0..200).rev().map(|second| row(second, Queued, 1)).collect();
            let list = OccurrenceList::new(OccurrenceFilter::default(), ListPage { rows, next: None });
            list.apply(&[row(300, Queued, 1)], at(301), false);
            assert_eq!(ids(list).len(), MAX_OCCURRENCE_ROWS);
            assert_eq!(list.next.get_untracked(), Some(row(1, Queued, 1).id.to_string()));
        });
    }

    #[test]
    fn reread_removes_missing_rows_within_its_range() {
        in_owner(|| {
            let rows: Vec<_> = (1..=4).rev().map(|second| row(second, Queued, 1)).collect();
            let list = OccurrenceList::new(OccurrenceFilter::default(), ListPage { rows, next: None });
            let read = vec![row(5, Queued, 1), row(4, Running, 2), row(2, Queued, 1)];
            list.reread(ListPage { rows: read, next: Some("more".into()) }, false);
            let seconds: Vec<i64> =
                ids(list).into_iter().map(|id| id.created_at().timestamp() - at(0).timestamp()).collect();
            assert_eq!(seconds, [5, 4, 2, 1]);
            assert_eq!(status_at(list, 1), Running);
            assert_eq!(list.next.get_untracked(), None);
        });
    }
}
