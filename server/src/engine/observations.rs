//! What single services observe and the health of the server shows.

use std::sync::{Arc, Mutex};

use chrono::{DateTime, Utc};

use crate::store::snapshots::OldSnapshot;

/// The time without an echo after which the health of the server shows it.
const REPORTED_DEAFNESS: chrono::Duration = chrono::Duration::seconds(15);

/// The time since which no echo returns to this server, for the health. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct DeafSince(Arc<Mutex<Option<Deafness>>>);

#[derive(Clone, Copy, Debug)]
struct Deafness {
    since: DateTime<Utc>,
    last_tried: DateTime<Utc>,
}

impl DeafSince {
    /// Returns the time, if no echo has returned for 15 s; `None` on a server that sends no echoes now,
    /// because another one leads.
    #[must_use]
    pub fn get(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let deafness = self.0.lock().map_or(None, |deafness| *deafness)?;
        let is_current = now - deafness.last_tried < REPORTED_DEAFNESS;
        (is_current && now - deafness.since >= REPORTED_DEAFNESS).then_some(deafness.since)
    }

    pub(crate) fn record(&self, is_receiving: bool, now: DateTime<Utc>) {
        if let Ok(mut deafness) = self.0.lock() {
            let since = deafness.map_or(now, |deafness| deafness.since);
            *deafness = (!is_receiving).then_some(Deafness { since, last_tried: now });
        }
    }
}

/// The oldest snapshot that the last check has found. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LastSnapshot(Arc<Mutex<Option<OldSnapshot>>>);

impl LastSnapshot {
    /// Returns the snapshot; `None` if no session holds an old one.
    #[must_use]
    pub fn get(&self) -> Option<OldSnapshot> {
        self.0.lock().ok()?.clone()
    }

    /// Stores a snapshot. Returns the one before.
    pub(crate) fn replace(&self, found: Option<OldSnapshot>) -> Option<OldSnapshot> {
        self.0.lock().ok().and_then(|mut last| std::mem::replace(&mut *last, found))
    }
}
