//! The occurrences whose log lines are published, because a page shows them.
//!
//! A run may print megabytes in a second while no page shows it, so log lines are published only on request. The stream of
//! a page names the logs that it shows. Its server announces them to the others through Redis, and the server that has
//! stored lines asks Redis whether a page shows them.
//!
//! No line is missed: a server stores lines before it asks, and a page reads its log after the announcement
//! ([`LiveEvent::LogsWatched`](milvaion_api::events::LiveEvent::LogsWatched)). Lines that were stored before it are in
//! that read, and later ones are published. Without Redis, a page receives only the lines that its own server stores, for
//! which no announcement is needed.

use std::collections::{HashMap, HashSet};

use milvaion_protocol::id::OccurrenceId;
use tokio::sync::watch;

/// The logs that pages of this server show. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct LogWatches(watch::Sender<WatchState>);

#[derive(Debug, Default)]
struct WatchState {
    /// The number of streams for each log.
    streams: HashMap<OccurrenceId, usize>,
    /// The logs that are announced to the other servers.
    announced: HashSet<OccurrenceId>,
    /// True while announcements are needed and possible.
    is_connected: bool,
}

impl LogWatches {
    /// Begins to watch logs, until the result is dropped.
    #[must_use]
    pub fn watch(&self, ids: &[OccurrenceId]) -> LogWatch {
        let ids: HashSet<OccurrenceId> = ids.iter().copied().collect();
        self.0.send_modify(|state| {
            for id in &ids {
                *state.streams.entry(*id).or_default() += 1;
            }
        });
        LogWatch { ids, watches: self.clone(), changed: self.0.subscribe() }
    }

    /// Returns true if a page of this server shows the log.
    #[must_use]
    pub fn contains(&self, id: OccurrenceId) -> bool {
        self.0.borrow().streams.contains_key(&id)
    }

    /// Returns a receiver that is notified of every change.
    pub(super) fn changes(&self) -> WatchChanges {
        WatchChanges(self.0.subscribe())
    }

    /// Returns the logs that are shown and not announced.
    pub(super) fn unannounced(&self) -> Vec<OccurrenceId> {
        self.0.borrow().unannounced().collect()
    }

    /// Records that logs were announced.
    pub(super) fn note_announced(&self, ids: &[OccurrenceId]) {
        self.0.send_modify(|state| state.announced.extend(ids));
    }

    /// Removes and returns the announced logs that are no longer shown. They are removed before Redis withdraws them, so
    /// that a page that shows one again waits for a new announcement.
    pub(super) fn take_ended(&self) -> Vec<OccurrenceId> {
        let mut ended = Vec::new();
        self.0.send_if_modified(|state| {
            ended.extend(state.announced.extract_if(|id| !state.streams.contains_key(id)));
            false
        });
        ended
    }

    /// Records that Redis is available, if every shown log is announced. Returns false if one is not.
    pub(super) fn connect(&self) -> bool {
        self.0.send_if_modified(|state| {
            let is_complete = state.unannounced().next().is_none();
            state.is_connected = is_complete;
            is_complete
        })
    }

    /// Records that the connection to Redis is lost, and with it every announcement.
    pub(super) fn disconnect(&self) {
        self.0.send_modify(|state| {
            state.announced.clear();
            state.is_connected = false;
        });
    }
}

impl WatchState {
    fn unannounced(&self) -> impl Iterator<Item = OccurrenceId> {
        self.streams.keys().filter(|id| !self.announced.contains(id)).copied()
    }
}

/// The notifications of changes.
#[derive(Debug)]
pub(super) struct WatchChanges(watch::Receiver<WatchState>);

impl WatchChanges {
    /// Waits for a change since the last call.
    pub(super) async fn next(&mut self) {
        // Fails only if the sender is gone, which the caller holds.
        let _ = self.0.changed().await;
    }
}

/// The logs that one stream shows.
#[derive(Debug)]
pub struct LogWatch {
    ids: HashSet<OccurrenceId>,
    watches: LogWatches,
    changed: watch::Receiver<WatchState>,
}

impl LogWatch {
    /// Returns true if the stream shows the log.
    #[must_use]
    pub fn contains(&self, id: OccurrenceId) -> bool {
        self.ids.contains(&id)
    }

    /// Returns the logs.
    #[must_use]
    pub fn ids(&self) -> Vec<OccurrenceId> {
        self.ids.iter().copied().collect()
    }

    /// Waits until every line that is stored from now on is published to this server, as far as Redis is available.
    pub async fn announced(&mut self) {
        let is_announced =
            |state: &WatchState| !state.is_connected || self.ids.iter().all(|id| state.announced.contains(id));
        // Fails only if the sender is gone, which this watch holds.
        let _ = self.changed.wait_for(is_announced).await;
    }
}

impl Drop for LogWatch {
    fn drop(&mut self) {
        self.watches.0.send_modify(|state| {
            for id in &self.ids {
                if let Some(streams) = state.streams.get_mut(id) {
                    *streams -= 1;
                }
            }
            state.streams.retain(|_, streams| *streams > 0);
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn id(n: u128) -> OccurrenceId {
        OccurrenceId(uuid::Uuid::from_u128(n))
    }

    #[test]
    fn log_is_watched_until_its_last_stream_ends() {
        let watches = LogWatches::default();
        let (first, second) = (watches.watch(&[id(1)]), watches.watch(&[id(1), id(1), id(2)]));
        drop(second);
        assert!(watches.contains(id(1)));
        assert!(!watches.contains(id(2)));
        drop(first);
        assert!(!watches.contains(id(1)));
    }

    #[test]
    fn watch_is_announced_only_after_redis_has_confirmed_it() {
        let watches = LogWatches::default();
        let mut alone = watches.watch(&[id(1)]);
        assert!(alone.announced().now_or_never().is_some(), "without Redis, no server is asked");
        assert!(!watches.connect(), "a log that is shown is not announced");
        watches.note_announced(&watches.unannounced());
        assert!(watches.connect());

        let mut watch = watches.watch(&[id(2)]);
        assert!(watch.announced().now_or_never().is_none());
        watches.note_announced(&watches.unannounced());
        assert!(watch.announced().now_or_never().is_some());

        drop(watch);
        assert_eq!(watches.take_ended(), [id(2)]);
        let mut again = watches.watch(&[id(2)]);
        assert!(again.announced().now_or_never().is_none(), "Redis may have withdrawn it");
        watches.disconnect();
        assert!(again.announced().now_or_never().is_some());
        assert_eq!(watches.unannounced().len(), 2);
    }
}
