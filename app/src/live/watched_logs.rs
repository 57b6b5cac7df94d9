//! The occurrences whose log lines the stream carries.
//!
//! A change of this list costs a new connection, so an occurrence stays in it after its page was left. The list is
//! bounded, and the occurrence that was opened least recently is dropped first.

use milvaion_api::events::MAX_WATCHED_LOGS;
use milvaion_protocol::id::OccurrenceId;

/// The watched occurrences, the most recently opened last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchedLogs(Vec<OccurrenceId>);

impl WatchedLogs {
    /// Adds an occurrence. Returns true if it was not in the list.
    pub(crate) fn add(&mut self, id: OccurrenceId) -> bool {
        let before = self.0.len();
        self.0.retain(|other| *other != id);
        let is_new = self.0.len() == before;
        self.0.push(id);
        if self.0.len() > MAX_WATCHED_LOGS {
            self.0.remove(0);
        }
        is_new
    }

    /// Returns the ids, separated by commas.
    pub(crate) fn to_text(&self) -> String {
        let ids: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        ids.join(",")
    }

    /// Parses [`WatchedLogs::to_text`].
    pub(crate) fn parse(text: &str) -> Self {
        let mut logs = Self::default();
        for id in text.split(',').filter_map(|id| id.parse().ok()) {
            logs.add(id);
        }
        logs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> OccurrenceId {
        format!("00000000-0000-7000-8000-{n:012}").parse().expect("a valid id")
    }

    #[test]
    fn only_a_new_occurrence_changes_the_connection() {
        let mut logs = WatchedLogs::default();
        assert!(logs.add(id(1)));
        assert!(logs.add(id(2)));
        assert!(!logs.add(id(1)));
        assert_eq!(logs, WatchedLogs(vec![id(2), id(1)]));
        assert_eq!(WatchedLogs::parse(&logs.to_text()), logs);
        assert_eq!(WatchedLogs::parse(""), WatchedLogs::default());
    }

    #[test]
    fn least_recently_opened_occurrence_is_dropped() {
        let mut logs = WatchedLogs::default();
        for n in 0..MAX_WATCHED_LOGS {
            logs.add(id(n));
        }
        logs.add(id(0));
        assert!(logs.add(id(100)));
        assert_eq!(logs.0.len(), MAX_WATCHED_LOGS);
        assert!(!logs.add(id(0)));
        assert!(logs.add(id(1)));
    }
}
