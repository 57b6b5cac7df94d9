//! The rows of a list that is read again while a user works in it.
//!
//! A row's values change in place. Its position, its removal and the arrival of new rows wait while the list is in use:
//! while it contains the focus, a text selection or the pointer, while one of its rows is selected, or while a dialog is
//! open. A click then always reaches the row it was meant for. A button shows that changes wait; the next read after the
//! use shows them too.

use leptos::prelude::*;
use milvaion_api::{
    failures::{DeadLetterRow, FailureGroup, FailureRow},
    page::ListPage,
};

use crate::{browser, components::waiting_changes::WaitingChangesButton, format::plural};

/// A row that is identified by an id.
pub(super) trait ListRow: Clone + PartialEq + Send + Sync + 'static {
    /// Returns the id, unique in the list.
    fn row_id(&self) -> String;
}

impl ListRow for FailureGroup {
    fn row_id(&self) -> String {
        self.fingerprint.clone()
    }
}

impl ListRow for FailureRow {
    fn row_id(&self) -> String {
        self.occurrence_id.to_string()
    }
}

impl ListRow for DeadLetterRow {
    fn row_id(&self) -> String {
        self.id.to_string()
    }
}

/// One row with its current values.
#[derive(Clone)]
pub(super) struct RowEntry<T: 'static> {
    /// The row's id.
    pub(super) id: String,
    /// The current values.
    pub(super) row: ArcRwSignal<T>,
}

/// The rows of a list.
pub(super) struct LiveRows<T: 'static> {
    shown: RwSignal<Vec<RowEntry<T>>>,
    next: RwSignal<Option<String>>,
    held: RwSignal<Option<ListPage<T>>>,
    shows_next_read: StoredValue<bool>,
}

impl<T> Clone for LiveRows<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LiveRows<T> {}

impl<T: ListRow> LiveRows<T> {
    /// Creates the list from its first page.
    pub(super) fn new(page: ListPage<T>) -> Self {
        let entries = page.rows.into_iter().map(|row| RowEntry { id: row.row_id(), row: ArcRwSignal::new(row) });
        Self {
            shown: RwSignal::new(entries.collect()),
            next: RwSignal::new(page.next),
            held: RwSignal::new(None),
            shows_next_read: StoredValue::new(false),
        }
    }

    /// Returns the visible rows.
    pub(super) fn shown(self) -> Vec<RowEntry<T>> {
        self.shown.get()
    }

    /// Returns true if there is no visible row.
    pub(super) fn is_empty(self) -> bool {
        self.shown.with(Vec::is_empty)
    }

    /// Returns the cursor of the next page.
    pub(super) fn next(self) -> Option<String> {
        self.next.get()
    }

    /// Returns the ids of the visible rows that satisfy `condition`, and follows their values.
    pub(super) fn ids_with<C: FromIterator<String>>(self, condition: impl Fn(&T) -> bool) -> C {
        self.shown.with(|shown| {
            shown.iter().filter(|entry| entry.row.with(&condition)).map(|entry| entry.id.clone()).collect()
        })
    }

    /// Applies a new read of the same page. With `hold`, a change of order or membership waits.
    pub(super) fn apply(self, page: ListPage<T>, hold: bool) {
        let hold = hold && !self.shows_next_read.get_value();
        self.shows_next_read.set_value(false);
        self.patch(&page.rows);
        let is_same = self.shown.with_untracked(|shown| {
            shown.iter().map(|entry| entry.id.clone()).eq(page.rows.iter().map(ListRow::row_id))
        });
        if hold && !is_same {
            self.held.set(Some(page));
        } else {
            self.show(page, is_same);
        }
    }

    /// Changes the values of the visible rows that are in `rows`. No row moves, arrives or leaves.
    pub(super) fn patch(self, rows: &[T]) {
        self.shown.with_untracked(|shown| {
            for row in rows {
                let id = row.row_id();
                if let Some(entry) = shown.iter().find(|entry| entry.id == id)
                    && *entry.row.read_untracked() != *row
                {
                    entry.row.set(row.clone());
                }
            }
        });
    }

    /// Returns true if a visible row is not in `rows`, so that its values are not known.
    pub(super) fn has_row_outside(self, rows: &[T]) -> bool {
        let is_outside = |entry: &RowEntry<T>| rows.iter().all(|row| row.row_id() != entry.id);
        self.shown.try_with_untracked(|shown| shown.iter().any(is_outside)) == Some(true)
    }

    /// Lets the next read change the list even while it is in use: the user's own action asked for the change.
    pub(super) fn show_next_read(self) {
        let _ = self.shows_next_read.try_set_value(true);
    }

    fn show(self, page: ListPage<T>, is_same: bool) {
        if !is_same {
            let known = self.shown.get_untracked();
            let entry = |row: T| {
                let id = row.row_id();
                known
                    .iter()
                    .find(|entry| entry.id == id)
                    .cloned()
                    .unwrap_or_else(|| RowEntry { id, row: ArcRwSignal::new(row) })
            };
            self.shown.set(page.rows.into_iter().map(entry).collect());
        }
        self.next.set(page.next);
        if self.held.with_untracked(Option::is_some) {
            self.held.set(None);
        }
    }

    /// Shows the changes that wait.
    fn show_held(self) {
        if let Some(page) = self.held.get_untracked() {
            self.show(page, false);
        }
    }

    /// Returns the number of new rows among the changes that wait; none if no change waits.
    fn waiting(self) -> Option<usize> {
        self.held.with(|held| {
            let held = held.as_ref()?;
            let is_new = |row: &&T| {
                let id = row.row_id();
                self.shown.with(|shown| shown.iter().all(|entry| entry.id != id))
            };
            Some(held.rows.iter().filter(is_new).count())
        })
    }
}

/// Returns true while the focus, a text selection or the pointer is in the element with this id, or a dialog is open.
pub(super) fn is_in_use(id: &str) -> bool {
    browser::is_busy_in(id) || browser::is_pointer_in(id) || browser::is_dialog_open()
}

/// Draws the button that shows the changes that wait, with the number of new rows.
pub(super) fn held_rows_button<T: ListRow>(rows: LiveRows<T>, noun: &'static str) -> AnyView {
    let changes = Memo::new(move |_| {
        rows.waiting().map(|number| match number {
            0 => "The list has changed".to_owned(),
            n => plural(i64::try_from(n).unwrap_or(i64::MAX), noun),
        })
    });
    view! { <WaitingChangesButton changes on_show=move |()| rows.show_held()/> }.into_any()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use milvaion_api::failures::FailureCause;
    use milvaion_protocol::id::{JobId, OccurrenceId};

    use super::*;

    fn group(fingerprint: &str, count: i64) -> FailureGroup {
        FailureGroup {
            fingerprint: fingerprint.into(),
            count,
            open: count,
            jobs: 1,
            first_at: DateTime::UNIX_EPOCH,
            last_at: DateTime::UNIX_EPOCH,
            occurrence_id: OccurrenceId::default(),
            job_id: JobId::default(),
            job_name: "report".into(),
            cause: FailureCause::Failed,
            note: String::new(),
        }
    }

    fn page(rows: &[(&str, i64)]) -> ListPage<FailureGroup> {
        ListPage { rows: rows.iter().map(|(fingerprint, count)| group(fingerprint, *count)).collect(), next: None }
    }

    fn shown(rows: LiveRows<FailureGroup>) -> Vec<(String, i64)> {
        rows.shown.with_untracked(|shown| {
            shown.iter().map(|entry| (entry.id.clone(), entry.row.read_untracked().count)).collect()
        })
    }

    fn expect(rows: LiveRows<FailureGroup>, expected: &[(&str, i64)]) {
        let expected: Vec<_> = expected.iter().map(|(id, count)| ((*id).to_owned(), *count)).collect();
        assert_eq!(shown(rows), expected);
    }

    #[test]
    fn counts_change_in_place_while_rows_are_held() {
        Owner::new().with(|| {
            let rows = LiveRows::new(page(&[("a", 2), ("b", 1)]));
            rows.apply(page(&[("b", 3), ("c", 2), ("d", 1)]), true);
            expect(rows, &[("a", 2), ("b", 3)]);
            assert_eq!(untrack(|| rows.waiting()), Some(2));
            rows.show_held();
            expect(rows, &[("b", 3), ("c", 2), ("d", 1)]);
            assert_eq!(untrack(|| rows.waiting()), None);
        });
    }

    #[test]
    fn row_outside_the_page_gets_its_values() {
        Owner::new().with(|| {
            let rows = LiveRows::new(page(&[("a", 2), ("b", 1)]));
            let read = page(&[("b", 1), ("c", 1)]);
            assert!(rows.has_row_outside(&read.rows));
            rows.apply(read, true);
            rows.patch(&page(&[("c", 1), ("b", 1), ("a", 0)]).rows);
            expect(rows, &[("a", 0), ("b", 1)]);
            assert!(!rows.has_row_outside(&page(&[("b", 1), ("a", 0)]).rows));
        });
    }

    #[test]
    fn changed_count_keeps_the_row() {
        Owner::new().with(|| {
            let rows = LiveRows::new(page(&[("a", 2)]));
            let before = rows.shown.with_untracked(|shown| shown[0].row.clone());
            rows.apply(page(&[("b", 9), ("a", 5)]), false);
            assert_eq!(before.get_untracked().count, 5, "the row's own signal is updated");
            expect(rows, &[("b", 9), ("a", 5)]);
        });
    }

    #[test]
    fn own_action_changes_a_list_in_use() {
        Owner::new().with(|| {
            let rows = LiveRows::new(page(&[("a", 2), ("b", 1)]));
            rows.show_next_read();
            rows.apply(page(&[("b", 1)]), true);
            expect(rows, &[("b", 1)]);
            rows.apply(page(&[]), true);
            expect(rows, &[("b", 1)]);
        });
    }
}
