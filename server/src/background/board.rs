//! When each loop last did its work: what health is judged by.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

#[derive(Clone, Debug)]
struct Entry {
    at: Instant,
    due: Instant,
    failure: Option<String>,
    stands_by: bool,
}

/// The state of every loop. Cloning gives the same one.
#[derive(Clone, Debug, Default)]
pub struct Board {
    entries: Arc<Mutex<BTreeMap<&'static str, Entry>>>,
}

/// How one loop is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// It works.
    Beating,
    /// Its last tick failed.
    Failing(String),
    /// Another server does its work; this one is ready to.
    StandingBy,
    /// It has not ticked for three periods, or never.
    Silent,
}

impl Board {
    /// A loop has ticked and means to do so again within `period`.
    pub fn beat(&self, name: &'static str, period: Duration, failure: Option<String>) {
        if let Ok(mut entries) = self.entries.lock() {
            let at = Instant::now();
            entries.insert(name, Entry { at, due: at + 3 * period, failure, stands_by: false });
        }
    }

    /// A loop waits because another server does its work, and will say so again within `period`.
    pub fn stand_by(&self, name: &'static str, period: Duration) {
        if let Ok(mut entries) = self.entries.lock() {
            let at = Instant::now();
            entries.insert(name, Entry { at, due: at + 3 * period, failure: None, stands_by: true });
        }
    }

    /// How a loop is.
    #[must_use]
    pub fn pulse(&self, name: &str) -> Pulse {
        let Ok(entries) = self.entries.lock() else { return Pulse::Silent };
        match entries.get(name) {
            None => Pulse::Silent,
            Some(entry) if Instant::now() > entry.due => Pulse::Silent,
            Some(Entry { failure: Some(failure), .. }) => Pulse::Failing(failure.clone()),
            Some(Entry { stands_by: true, .. }) => Pulse::StandingBy,
            Some(_) => Pulse::Beating,
        }
    }

    /// How long ago a loop ticked.
    #[must_use]
    pub fn age(&self, name: &str) -> Option<Duration> {
        self.entries.lock().ok()?.get(name).map(|entry| entry.at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_misses_three_periods_is_silent() {
        let board = Board::default();
        assert_eq!(board.pulse("x"), Pulse::Silent);
        board.beat("x", Duration::from_secs(1), None);
        tokio::time::advance(Duration::from_millis(2_900)).await;
        assert_eq!(board.pulse("x"), Pulse::Beating);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert_eq!(board.pulse("x"), Pulse::Silent);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_by_is_not_silent_but_must_say_so() {
        let board = Board::default();
        board.stand_by("x", Duration::from_secs(1));
        assert_eq!(board.pulse("x"), Pulse::StandingBy);
        tokio::time::advance(Duration::from_millis(3_100)).await;
        assert_eq!(board.pulse("x"), Pulse::Silent);
    }
}
