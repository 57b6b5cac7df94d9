//! The rows of a list that is read again while a user works in it.
//!
//! A row's values change in place, so that an open dialog and a focused button of the row stay. Its position, its removal
//! and the arrival of new rows can wait while the list is in use: while it contains the focus, a text selection or the
//! pointer, while one of its rows is selected, or while a dialog is open. A click then always reaches the row it was
//! meant for. A button shows that changes wait; the next read after the use shows them too.

use std::sync::Arc;

use leptos::prelude::*;
use milvaion_api::page::ListPage;

use super::{time::use_page_clock, waiting_changes::WaitingChangesButton};
use crate::{
    browser,
    format::plural,
    live::{LiveUpdates, set_if_changed},
};

/// The function that draws the row with a key.
type DrawRow = Arc<dyn Fn(&str) -> AnyView + Send + Sync>;

/// The rows of a list with their current values.
pub struct LiveRows<T: 'static> {
    key: fn(&T) -> String,
    /// The rows that are shown or wait.
    rows: StoredValue<Vec<(String, ArcRwSignal<T>)>>,
    order: RowOrder,
}

impl<T> Clone for LiveRows<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LiveRows<T> {}

impl<T: PartialEq + Send + Sync + 'static> LiveRows<T> {
    /// Creates the list from its first page. `key` returns the key of a row, which is unique in the list.
    #[must_use]
    pub fn new(page: ListPage<T>, key: fn(&T) -> String) -> Self {
        let list = Self { key, rows: StoredValue::new(Vec::new()), order: RowOrder::new() };
        list.apply(page, false);
        list
    }

    /// Creates a list that has one page only.
    #[must_use]
    pub fn of_all(rows: Vec<T>, key: fn(&T) -> String) -> Self {
        Self::new(ListPage { rows, next: None }, key)
    }

    /// Returns the keys of the visible rows, and follows which they are.
    #[must_use]
    pub fn keys(self) -> Vec<String> {
        self.order.shown.get()
    }

    /// Returns the visible rows, and follows which they are.
    #[must_use]
    pub fn shown(self) -> Vec<ArcRwSignal<T>> {
        self.order.shown.with(|keys| keys.iter().filter_map(|key| self.find(key)).collect())
    }

    /// Returns the number of visible rows.
    #[must_use]
    pub fn count(self) -> usize {
        self.order.shown.with(Vec::len)
    }

    /// Returns true if there is no visible row.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.order.shown.with(Vec::is_empty)
    }

    /// Returns the cursor of the next page.
    #[must_use]
    pub fn next(self) -> Option<String> {
        self.order.next.get()
    }

    /// Returns the row with this key, which is shown or waits.
    #[must_use]
    pub fn find(self, key: &str) -> Option<ArcRwSignal<T>> {
        self.rows.with_value(|rows| rows.iter().find(|(other, _)| other == key).map(|(_, row)| row.clone()))
    }

    /// Returns the keys of the visible rows that satisfy `condition`, and follows their values.
    pub fn keys_with<C: FromIterator<String>>(self, condition: impl Fn(&T) -> bool) -> C {
        self.shown().into_iter().filter_map(|row| row.with(|row| condition(row).then(|| (self.key)(row)))).collect()
    }

    /// Draws the visible rows. A row is drawn once and follows its values.
    pub fn view(self, draw: impl Fn(RwSignal<T>) -> AnyView + Send + Sync + 'static) -> AnyView {
        self.view_of(self.order.shown.into(), draw)
    }

    /// Draws the rows with these keys.
    pub fn view_of(
        self,
        keys: Signal<Vec<String>>,
        draw: impl Fn(RwSignal<T>) -> AnyView + Send + Sync + 'static,
    ) -> AnyView {
        draw_rows(keys, Arc::new(move |key: &str| self.find(key).map_or_else(|| ().into_any(), |row| draw(row.into()))))
    }

    /// Applies a new read of all rows.
    pub fn apply_all(self, rows: Vec<T>) {
        self.apply(ListPage { rows, next: None }, false);
    }

    /// Applies a new read of the same page. With `hold`, a change of order or membership waits.
    pub fn apply(self, page: ListPage<T>, hold: bool) {
        let mut known = self.rows.get_value();
        let mut keys = Vec::with_capacity(page.rows.len());
        for row in page.rows {
            let key = (self.key)(&row);
            match known.iter().find(|(other, _)| *other == key) {
                Some((_, values)) => update(values, row),
                None => known.push((key.clone(), ArcRwSignal::new(row))),
            }
            keys.push(key);
        }
        self.rows.set_value(known);
        self.order.apply(keys, page.next, hold);
        self.rows.update_value(|rows| rows.retain(|(key, _)| self.order.has(key)));
    }

    /// Changes the values of the rows that are in `rows`. No row moves, arrives or leaves.
    pub fn patch(self, rows: Vec<T>) {
        for row in rows {
            if let Some(values) = self.find(&(self.key)(&row)) {
                update(&values, row);
            }
        }
    }

    /// Returns true if a visible row is not in `rows`, so that its values are not known.
    #[must_use]
    pub fn has_row_outside(self, rows: &[T]) -> bool {
        let keys: Vec<String> = rows.iter().map(self.key).collect();
        let has_other = |shown: &Vec<String>| shown.iter().any(|key| !keys.contains(key));
        self.order.shown.try_with_untracked(has_other) == Some(true)
    }

    /// Lets the next read change the list even while it is in use: the user's own action asked for the change.
    pub fn show_next_read(self) {
        let _ = self.order.shows_next_read.try_set_value(true);
    }

    /// Returns true if changes wait.
    #[must_use]
    pub fn is_held(self) -> bool {
        self.order.held.with(Option::is_some)
    }

    /// Shows the changes that wait.
    pub fn show_held(self) {
        self.order.show_held();
    }

    /// Draws the button that shows the changes that wait, with the number of new rows.
    #[must_use]
    pub fn held_button(self, noun: &'static str) -> AnyView {
        self.order.held_button(noun)
    }
}

fn update<T: PartialEq + Send + Sync + 'static>(values: &ArcRwSignal<T>, row: T) {
    if *values.read_untracked() != row {
        values.set(row);
    }
}

fn draw_rows(keys: Signal<Vec<String>>, draw: DrawRow) -> AnyView {
    let children = move |key: String| draw(&key);
    view! { <For each=move || keys.get() key=|key| key.clone() children/> }.into_any()
}

/// The order of the rows, by their keys.
#[derive(Clone, Copy)]
struct RowOrder {
    shown: RwSignal<Vec<String>>,
    next: RwSignal<Option<String>>,
    /// The order and the cursor that wait.
    held: RwSignal<Option<(Vec<String>, Option<String>)>>,
    shows_next_read: StoredValue<bool>,
}

impl RowOrder {
    fn new() -> Self {
        Self {
            shown: RwSignal::new(Vec::new()),
            next: RwSignal::new(None),
            held: RwSignal::new(None),
            shows_next_read: StoredValue::new(false),
        }
    }

    fn apply(self, keys: Vec<String>, next: Option<String>, hold: bool) {
        let hold = hold && !self.shows_next_read.get_value();
        self.shows_next_read.set_value(false);
        if hold && self.shown.with_untracked(|shown| *shown != keys) {
            self.held.set(Some((keys, next)));
        } else {
            self.show(keys, next);
        }
    }

    fn show(self, keys: Vec<String>, next: Option<String>) {
        set_if_changed(self.shown, keys);
        set_if_changed(self.next, next);
        set_if_changed(self.held, None);
    }

    fn show_held(self) {
        if let Some((keys, next)) = self.held.get_untracked() {
            self.show(keys, next);
        }
    }

    /// Returns true if the row with this key is shown or waits.
    fn has(self, key: &str) -> bool {
        let contains = |keys: &Vec<String>| keys.iter().any(|other| other == key);
        self.shown.with_untracked(contains)
            || self.held.with_untracked(|held| held.as_ref().is_some_and(|(keys, _)| contains(keys)))
    }

    /// Returns the number of new rows among the changes that wait; none if no change waits.
    fn waiting(self) -> Option<usize> {
        self.held.with(|held| {
            let (keys, _) = held.as_ref()?;
            Some(self.shown.with(|shown| keys.iter().filter(|key| !shown.contains(key)).count()))
        })
    }

    fn held_button(self, noun: &'static str) -> AnyView {
        let changes = Memo::new(move |_| {
            self.waiting().map(|number| match number {
                0 => "The list has changed".to_owned(),
                n => plural(i64::try_from(n).unwrap_or(i64::MAX), noun),
            })
        });
        view! { <WaitingChangesButton changes on_show=move |()| self.show_held()/> }.into_any()
    }
}

/// Returns true while the focus, a text selection or the pointer is in the element with this id, or a dialog is open.
#[must_use]
pub fn is_in_use(id: &str) -> bool {
    browser::is_busy_in(id) || browser::is_pointer_in(id) || browser::is_dialog_open()
}

/// Calls `show` once the user has left the element with this id, while `is_waiting` returns true. The clock checks,
/// because no event reports that a selection has ended or that a pointer was released outside the page.
pub fn when_user_left(
    id: &'static str,
    is_waiting: impl Fn() -> bool + Send + Sync + 'static,
    show: impl Fn() + Send + Sync + 'static,
) {
    let (clock, live) = (use_page_clock(), use_context::<LiveUpdates>());
    Effect::new(move |_| {
        let is_checked = clock.now().is_some() && !live.is_some_and(LiveUpdates::is_paused);
        if is_checked && untrack(&is_waiting) && !browser::is_busy_in(id) {
            show();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row = (&'static str, i64);

    fn page(rows: &[Row]) -> ListPage<Row> {
        ListPage { rows: rows.to_vec(), next: None }
    }

    fn list(rows: &[Row]) -> LiveRows<Row> {
        LiveRows::new(page(rows), |(key, _)| (*key).to_owned())
    }

    fn expect(rows: LiveRows<Row>, expected: &[Row]) {
        let shown: Vec<Row> = untrack(|| rows.shown()).iter().map(ArcRwSignal::get_untracked).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn counts_change_in_place_while_rows_are_held() {
        Owner::new().with(|| {
            let rows = list(&[("a", 2), ("b", 1)]);
            rows.apply(page(&[("b", 3), ("c", 2), ("d", 1)]), true);
            expect(rows, &[("a", 2), ("b", 3)]);
            assert_eq!(untrack(|| rows.order.waiting()), Some(2));
            rows.show_held();
            expect(rows, &[("b", 3), ("c", 2), ("d", 1)]);
            assert_eq!(untrack(|| rows.order.waiting()), None);
        });
    }

    #[test]
    fn row_outside_the_page_gets_its_values() {
        Owner::new().with(|| {
            let rows = list(&[("a", 2), ("b", 1)]);
            let read = page(&[("b", 1), ("c", 1)]);
            assert!(rows.has_row_outside(&read.rows));
            rows.apply(read, true);
            rows.patch(vec![("c", 1), ("b", 1), ("a", 0)]);
            expect(rows, &[("a", 0), ("b", 1)]);
            assert!(!rows.has_row_outside(&[("b", 1), ("a", 0)]));
        });
    }

    #[test]
    fn changed_count_keeps_the_row() {
        Owner::new().with(|| {
            let rows = list(&[("a", 2)]);
            let before = rows.find("a").expect("the row");
            rows.apply(page(&[("b", 9), ("a", 5)]), false);
            assert_eq!(before.get_untracked().1, 5, "the row's own signal is updated");
            expect(rows, &[("b", 9), ("a", 5)]);
        });
    }

    #[test]
    fn own_action_changes_a_list_in_use() {
        Owner::new().with(|| {
            let rows = list(&[("a", 2), ("b", 1)]);
            rows.show_next_read();
            rows.apply(page(&[("b", 1)]), true);
            expect(rows, &[("b", 1)]);
            rows.apply(page(&[]), true);
            expect(rows, &[("b", 1)]);
        });
    }
}
