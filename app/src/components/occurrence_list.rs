//! A list of occurrences that is kept current by events.
//!
//! Rows are patched in place by id and never replaced, and only by a version that is not older than the one on the
//! page, so that a late event cannot undo a newer one. New rows are inserted at the top.
//!
//! A read and an event can pass each other. The server publishes an event after its commit, so a read that begins after
//! an event has arrived contains the change; a read that began before may lack it. The list therefore counts the events
//! it applies, and each read carries the count from its beginning, its [`ReadMark`]. A row that an event changed after
//! the mark is newer than the read: the read neither removes it nor turns it back. No clock is involved. A row that an
//! event removed is remembered with its version for the same reason: only a newer version of it is added again.
//!
//! Nothing moves under a pointer, the focus or a selection. While the user works in the list, new rows are deferred until
//! the user requests them, and a row that no longer belongs to the list stays, marked and with its new values, until the
//! user has left the list.

use std::collections::BTreeMap;

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
/// The maximum number of removed rows that are remembered. The oldest are forgotten first.
const MAX_REMEMBERED_REMOVALS: usize = 1_000;

/// The position of a read among the events: the number of events that the list had applied when the read began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMark(u64);

/// The user's position relative to the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderActivity {
    /// True while the focus, a pressed pointer or a text selection is in the list. No row moves or leaves.
    pub is_in_list: bool,
    /// True while the page is scrolled down. New rows at the top are deferred.
    pub is_scrolled: bool,
}

impl ReaderActivity {
    const fn defers_new_rows(self) -> bool {
        self.is_in_list || self.is_scrolled
    }
}

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
    /// True if the row no longer belongs to the list and stays only until the user has left the list.
    pub is_leaving: ArcRwSignal<bool>,
    /// The number of the last event that changed the row; 0 if none did.
    last_event: ArcStoredValue<u64>,
}

impl OccurrenceEntry {
    fn new(row: OccurrenceRow, event: Option<(DateTime<Utc>, u64)>) -> Self {
        Self {
            id: row.id,
            is_new: event.is_some(),
            row: ArcRwSignal::new(row),
            event_at: ArcRwSignal::new(event.map(|(at, _)| format::iso(at))),
            is_leaving: ArcRwSignal::new(false),
            last_event: ArcStoredValue::new(event.map_or(0, |(_, number)| number)),
        }
    }

    fn version(&self) -> i32 {
        self.row.read_untracked().version
    }

    /// Returns true if an event changed the row after the read began.
    fn is_newer_than(&self, mark: ReadMark) -> bool {
        self.last_event.get_value() > mark.0
    }

    fn patch_from_event(&self, row: &OccurrenceRow, at: DateTime<Utc>, number: u64) {
        // Progress changes a row without a new version, so an equal version is accepted.
        if row.version >= self.version() {
            self.last_event.set_value(number);
            self.set_row(row, Some(at));
        }
    }

    fn patch_from_read(&self, row: &OccurrenceRow, mark: ReadMark) {
        let known = self.version();
        // With equal versions the progress of the event is newer than that of the read.
        if row.version > known || (row.version == known && !self.is_newer_than(mark)) {
            self.set_row(row, None);
        }
    }

    fn set_row(&self, row: &OccurrenceRow, event_at: Option<DateTime<Utc>>) {
        if *self.row.read_untracked() != *row {
            self.event_at.set(event_at.map(format::iso));
            self.row.set(row.clone());
        }
    }

    fn set_leaving(&self, is_leaving: bool) {
        if self.is_leaving.get_untracked() != is_leaving {
            self.is_leaving.set(is_leaving);
        }
    }
}

/// A live list of occurrences.
#[derive(Clone, Copy)]
pub struct OccurrenceList {
    filter: StoredValue<OccurrenceFilter>,
    shown: RwSignal<Vec<OccurrenceEntry>>,
    deferred: RwSignal<Vec<OccurrenceEntry>>,
    next: RwSignal<Option<String>>,
    /// The number of applied events.
    events: StoredValue<u64>,
    /// The rows that events removed, with the version that no longer belonged to the list.
    removed: StoredValue<BTreeMap<OccurrenceId, i32>>,
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
            events: StoredValue::new(0),
            removed: StoredValue::new(BTreeMap::new()),
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

    /// Returns the mark of a read that begins now.
    #[must_use]
    pub fn begin_read(self) -> ReadMark {
        ReadMark(self.events.get_value())
    }

    /// Applies the rows of an event.
    pub fn apply(self, rows: &[OccurrenceRow], at: DateTime<Utc>, reader: ReaderActivity) {
        let number = self.events.get_value() + 1;
        self.events.set_value(number);
        let mut new = Vec::new();
        for row in rows {
            let fits = self.filter.with_value(|filter| fits(filter, row));
            match self.find(row.id) {
                Some(entry) if row.version < entry.version() => {}
                Some(entry) => {
                    entry.patch_from_event(row, at, number);
                    entry.set_leaving(!fits);
                    if !fits {
                        self.remember_removal(row.id, row.version);
                        self.retain(self.deferred, |entry| entry.id != row.id);
                        if !reader.is_in_list {
                            self.retain(self.shown, |entry| entry.id != row.id);
                        }
                    }
                }
                None if fits && !self.was_removed(row) => {
                    new.push(OccurrenceEntry::new(row.clone(), Some((at, number))));
                }
                // An older event of the same row may still arrive, and a read in progress may still contain it.
                None if !fits && self.filter.with_value(|filter| filter.job_id.is_none_or(|id| id == row.job_id)) => {
                    self.remember_removal(row.id, row.version);
                }
                None => {}
            }
        }
        // New rows belong to the top of the first page only. An old row that newly matches the filter belongs further
        // down, where the next read inserts it.
        if new.is_empty() || self.filter.with_value(|filter| filter.before.is_some()) {
            return;
        }
        self.add(new, reader);
    }

    /// Inserts the deferred rows.
    pub fn show_waiting(self) {
        let waiting = self.deferred.try_update(std::mem::take).unwrap_or_default();
        if !waiting.is_empty() {
            self.insert(waiting);
        }
    }

    /// Applies a new read of the same page, which began at `mark`: patches known rows, adds new ones and removes missing
    /// ones.
    pub fn reread(self, mark: ReadMark, page: ListPage<OccurrenceRow>, reader: ReaderActivity) {
        let oldest_read = page.rows.last().map(|row| row.id);
        let read_all = page.next.is_none();
        let is_read = |id: OccurrenceId| page.rows.iter().any(|row| row.id == id);
        // Rows below the end of this read came from an earlier read and may still exist.
        let is_gone = |entry: &OccurrenceEntry| {
            !is_read(entry.id)
                && !entry.is_newer_than(mark)
                && (read_all || oldest_read.is_none_or(|oldest| entry.id >= oldest))
        };
        self.retain(self.deferred, |entry| !is_gone(entry));
        if reader.is_in_list {
            self.shown.with_untracked(|shown| {
                shown.iter().filter(|entry| is_gone(entry)).for_each(|entry| entry.set_leaving(true));
            });
        } else {
            self.retain(self.shown, |entry| !is_gone(entry));
        }
        let mut new = Vec::new();
        for row in &page.rows {
            match self.find(row.id) {
                Some(entry) => {
                    // A row that an event took out of the list after the read began stays marked.
                    if !self.was_removed(row) {
                        entry.patch_from_read(row, mark);
                        entry.set_leaving(false);
                    }
                }
                None if self.was_removed(row) => {}
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
            self.add(new, reader);
        }
    }

    /// Returns true if a row waits for the user to leave the list.
    #[must_use]
    pub fn has_leaving_rows(self) -> bool {
        self.shown.with_untracked(|shown| shown.iter().any(|entry| entry.is_leaving.get_untracked()))
    }

    /// Removes the rows that no longer belong to the list. Called once the user has left the list.
    pub fn remove_leaving_rows(self) {
        self.retain(self.shown, |entry| !entry.is_leaving.get_untracked());
    }

    fn find(self, id: OccurrenceId) -> Option<OccurrenceEntry> {
        let within = |entries: &Vec<OccurrenceEntry>| entries.iter().find(|entry| entry.id == id).cloned();
        self.shown.with_untracked(within).or_else(|| self.deferred.with_untracked(within))
    }

    fn retain(self, entries: RwSignal<Vec<OccurrenceEntry>>, keeps: impl Fn(&OccurrenceEntry) -> bool) {
        if !entries.with_untracked(|entries| entries.iter().all(&keeps)) {
            entries.update(|entries| entries.retain(&keeps));
        }
    }

    fn remember_removal(self, id: OccurrenceId, version: i32) {
        self.removed.update_value(|removed| {
            let known = removed.entry(id).or_insert(version);
            *known = (*known).max(version);
            if removed.len() > MAX_REMEMBERED_REMOVALS {
                removed.pop_first();
            }
        });
    }

    /// Returns true if an event removed this version of the row or a newer one.
    fn was_removed(self, row: &OccurrenceRow) -> bool {
        self.removed.with_value(|removed| removed.get(&row.id).is_some_and(|version| row.version <= *version))
    }

    fn add(self, new: Vec<OccurrenceEntry>, reader: ReaderActivity) {
        if reader.defers_new_rows() {
            self.deferred.update(|deferred| insert(deferred, new));
        } else {
            self.insert(new);
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
        && (!filter.delayed || row.waits_until.is_some())
        // A row does not name its parent, so a list of children changes when it is read again.
        && filter.parent_id.is_none()
        && filter.before.is_none_or(|before| row.id < before)
        && filter.since.is_none_or(|since| row.id.created_at() >= since)
}

#[cfg(test)]
mod tests {
    use milvaion_api::views::TriggerSource;
    use milvaion_protocol::status::OccurrenceStatus;

    use super::*;

    const AWAY: ReaderActivity = ReaderActivity { is_in_list: false, is_scrolled: false };
    const IN_LIST: ReaderActivity = ReaderActivity { is_in_list: true, is_scrolled: false };

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
            list.apply(&[row(1, Completed, 3)], at(5), AWAY);
            list.apply(&[row(1, Running, 2)], at(6), AWAY);
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
            list.apply(&[row(3, Queued, 1)], at(5), AWAY);
            list.apply(&[row(2, Queued, 1), row(3, Running, 2)], at(6), AWAY);
            assert_eq!(ids(list), [row(3, Queued, 1).id, row(2, Queued, 1).id, row(1, Queued, 1).id]);
            assert_eq!(status_at(list, 0), Running);
        });
    }

    #[test]
    fn deferred_rows_are_patched() {
        in_owner(|| {
            let list = OccurrenceList::new(OccurrenceFilter::default(), ListPage { rows: vec![], next: None });
            list.apply(&[row(1, Queued, 1)], at(5), IN_LIST);
            list.apply(&[row(1, Completed, 2)], at(6), IN_LIST);
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
            list.apply(&[row(1, Completed, 3), row(2, Queued, 1)], at(5), AWAY);
            assert!(ids(list).is_empty());
        });
    }

    #[test]
    fn later_page_takes_no_new_rows() {
        in_owner(|| {
            let filter = OccurrenceFilter { before: Some(row(9, Queued, 1).id), ..OccurrenceFilter::default() };
            let list = OccurrenceList::new(filter, ListPage { rows: vec![row(1, Running, 2)], next: None });
            list.apply(&[row(10, Queued, 1), row(2, Queued, 1)], at(11), AWAY);
            assert_eq!(ids(list).len(), 1);
        });
    }

    #[test]
    fn oldest_rows_are_dropped_above_the_limit() {
        in_owner(|| {
            let rows: Vec<_> = (0..200).rev().map(|second| row(second, Queued, 1)).collect();
            let list = OccurrenceList::new(OccurrenceFilter::default(), ListPage { rows, next: None });
            list.apply(&[row(300, Queued, 1)], at(301), AWAY);
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
            list.reread(list.begin_read(), ListPage { rows: read, next: Some("more".into()) }, AWAY);
            let seconds: Vec<i64> =
                ids(list).into_iter().map(|id| id.created_at().timestamp() - at(0).timestamp()).collect();
            assert_eq!(seconds, [5, 4, 2, 1]);
            assert_eq!(status_at(list, 1), Running);
            assert_eq!(list.next.get_untracked(), None);
        });
    }

    fn running_list(rows: Vec<OccurrenceRow>) -> OccurrenceList {
        let filter = OccurrenceFilter { status: Some(Running), ..OccurrenceFilter::default() };
        OccurrenceList::new(filter, ListPage { rows, next: None })
    }

    fn page(rows: Vec<OccurrenceRow>) -> ListPage<OccurrenceRow> {
        ListPage { rows, next: None }
    }

    #[test]
    fn older_read_keeps_the_row_of_an_event() {
        in_owner(|| {
            let list = OccurrenceList::new(OccurrenceFilter::default(), page(vec![row(1, Queued, 1)]));
            let mark = list.begin_read();
            list.apply(&[row(2, Queued, 1)], at(5), AWAY);
            list.reread(mark, page(vec![row(1, Queued, 1)]), AWAY);
            assert_eq!(ids(list), [row(2, Queued, 1).id, row(1, Queued, 1).id]);
            list.reread(list.begin_read(), page(vec![row(1, Queued, 1)]), AWAY);
            assert_eq!(ids(list), [row(1, Queued, 1).id], "a read that began after the event decides");
        });
    }

    #[test]
    fn older_read_does_not_restore_a_removed_row() {
        in_owner(|| {
            let list = running_list(vec![row(1, Running, 2)]);
            let mark = list.begin_read();
            list.apply(&[row(1, Completed, 3)], at(5), AWAY);
            list.reread(mark, page(vec![row(1, Running, 2)]), AWAY);
            assert!(ids(list).is_empty());
            list.apply(&[row(1, Running, 2)], at(4), AWAY);
            assert!(ids(list).is_empty(), "nor does a late event");
            list.reread(list.begin_read(), page(vec![row(1, Running, 5)]), AWAY);
            assert_eq!(ids(list).len(), 1, "a newer version belongs to the list again");
        });
    }

    #[test]
    fn late_event_does_not_add_an_ended_row() {
        in_owner(|| {
            let list = running_list(vec![]);
            list.apply(&[row(1, Completed, 3)], at(5), AWAY);
            list.apply(&[row(1, Running, 2)], at(4), AWAY);
            assert!(ids(list).is_empty());
        });
    }

    #[test]
    fn older_read_does_not_undo_progress() {
        in_owner(|| {
            let list = OccurrenceList::new(OccurrenceFilter::default(), page(vec![row(1, Running, 2)]));
            let mark = list.begin_read();
            let progressed = OccurrenceRow { note: Some("half".into()), ..row(1, Running, 2) };
            list.apply(&[progressed], at(5), AWAY);
            list.reread(mark, page(vec![row(1, Running, 2)]), AWAY);
            let note = list.shown.with_untracked(|shown| shown[0].row.read_untracked().note.clone());
            assert_eq!(note.as_deref(), Some("half"));
        });
    }

    #[test]
    fn row_stays_while_the_user_is_in_the_list() {
        in_owner(|| {
            let list = running_list(vec![row(2, Running, 2), row(1, Running, 2)]);
            list.apply(&[row(1, Completed, 3)], at(5), IN_LIST);
            assert_eq!(ids(list).len(), 2);
            assert_eq!(status_at(list, 1), Completed, "the row shows its new status");
            list.reread(list.begin_read(), page(vec![]), IN_LIST);
            assert_eq!(ids(list).len(), 2);
            assert!(list.has_leaving_rows());
            list.apply(&[row(2, Running, 4)], at(6), IN_LIST);
            list.remove_leaving_rows();
            assert_eq!(ids(list), [row(2, Running, 2).id], "a row that fits again stays");
            assert!(!list.has_leaving_rows());
        });
    }
}
