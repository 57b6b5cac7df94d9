//! The rows of a list that is read again when alerts change.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::{
    alerts::{Alert, AlertChannelRow, AlertRuleRow},
    events::{EventEnvelope, LiveEvent},
};

use crate::components::{cluster_state::use_cluster_status, time::use_page_clock};

/// The delay before a page is read again after a change.
pub const REFRESH_DELAY: Duration = Duration::from_millis(300);

/// A row that is identified by an id.
pub trait KeyedRow: Clone + PartialEq + Send + Sync + 'static {
    /// Returns the id, unique in the list.
    fn key(&self) -> String;
}

impl KeyedRow for Alert {
    fn key(&self) -> String {
        self.id.to_string()
    }
}

impl KeyedRow for AlertRuleRow {
    fn key(&self) -> String {
        self.id.to_string()
    }
}

impl KeyedRow for AlertChannelRow {
    fn key(&self) -> String {
        self.id.to_string()
    }
}

/// Rows with their current values. A refresh changes the rows that differ and keeps the others.
pub struct KeyedRows<T: 'static>(RwSignal<Vec<(String, ArcRwSignal<T>)>>);

impl<T> Clone for KeyedRows<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for KeyedRows<T> {}

impl<T: KeyedRow> KeyedRows<T> {
    /// Returns the first rows of a list.
    #[must_use]
    pub fn new(rows: Vec<T>) -> Self {
        Self(RwSignal::new(rows.into_iter().map(|row| (row.key(), ArcRwSignal::new(row))).collect()))
    }

    /// Returns the id and the values of each row.
    #[must_use]
    pub fn get(self) -> Vec<(String, ArcRwSignal<T>)> {
        self.0.get()
    }

    /// Returns true if there is no row.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.with(Vec::is_empty)
    }

    /// Shows the rows that were read.
    pub fn apply(self, read: Vec<T>) {
        let known: HashMap<_, _> = self.0.get_untracked().into_iter().collect();
        let rows: Vec<_> = read
            .into_iter()
            .map(|row| {
                let key = row.key();
                match known.get(&key) {
                    Some(signal) => {
                        if signal.with_untracked(|known| *known != row) {
                            signal.set(row);
                        }
                        (key, signal.clone())
                    }
                    None => (key, ArcRwSignal::new(row)),
                }
            })
            .collect();
        if self.0.with_untracked(|known| !known.iter().map(|(key, _)| key).eq(rows.iter().map(|(key, _)| key))) {
            self.0.set(rows);
        }
    }
}

/// Returns true if alerts, rules or channels have changed.
pub fn is_about_alerts(envelope: &EventEnvelope) -> bool {
    matches!(envelope.event, LiveEvent::Alerts)
}

/// Returns the server's time. Before hydration it is the time of the first status, which the server's HTML has too.
pub fn use_server_now() -> Signal<DateTime<Utc>> {
    let (clock, status) = (use_page_clock(), use_cluster_status());
    Signal::derive(move || {
        let read = || status.with_untracked(|status| status.as_ref().map(|status| status.now));
        clock.now().or_else(read).unwrap_or_default()
    })
}
