//! The age of the data on the page, and the reads that failed.
//!
//! An open page keeps its data if a read fails, because it is still the best available. It must not look current,
//! though, so every [`throttled_refresh`](super::throttled_refresh) of the page reports its results here, and the layout
//! labels the page while any of them fails. The label states the oldest time among them, so that it is true for
//! everything on the page.
//!
//! Times are those of the browser's clock until they are shown, because the offset to the server's clock is not known
//! at first.

use std::sync::atomic::{AtomicU64, Ordering};

use leptos::prelude::*;

use super::{LiveState, LiveUpdates, ThrottledRefresh, use_live_updates};
use crate::{browser, error::AppError};

/// The results of one refresh.
struct PageRead {
    id: u64,
    refresh: ThrottledRefresh,
    /// The time of the last success, or of the page's first data.
    succeeded_at: i64,
    error: Option<AppError>,
}

/// The failure shown to the user.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadFailure {
    /// The error of the first read that fails.
    pub error: AppError,
    /// The age of the oldest data that could not be read again, on the browser's clock.
    pub data_at_millis: i64,
}

/// The results of every refresh on the page.
#[derive(Clone, Copy)]
pub struct ReadState {
    /// The current failure; `None` while every read succeeds.
    pub failure: RwSignal<Option<ReadFailure>>,
    /// The age of the data while the stream is not live, on the browser's clock.
    pub not_live_since: RwSignal<Option<i64>>,
    reads: StoredValue<Vec<PageRead>>,
    last_contact: StoredValue<i64>,
    is_hydrated: StoredValue<bool>,
}

impl ReadState {
    /// Creates the state. Called once, by the layout, after [`LiveUpdates::provide`].
    pub fn provide() -> Self {
        let state = Self {
            failure: RwSignal::new(None),
            not_live_since: RwSignal::new(None),
            reads: StoredValue::new(Vec::new()),
            last_contact: StoredValue::new(browser::requested_millis()),
            is_hydrated: StoredValue::new(false),
        };
        provide_context(state);
        let live = use_context::<LiveUpdates>();
        Effect::new(move |before: Option<Option<LiveState>>| {
            state.is_hydrated.set_value(true);
            let stream = live.map(|live| live.state.get());
            state.follow(before.flatten(), stream);
            stream
        });
        use_live_updates(move |_| state.last_contact.set_value(browser::now_millis()));
        state
    }

    /// Records the time up to which the stream was live.
    fn follow(self, before: Option<LiveState>, now: Option<LiveState>) {
        let is_known = self.not_live_since.with_untracked(Option::is_some);
        match now {
            Some(LiveState::Live) | None => self.not_live_since.set(None),
            Some(_) if is_known => {}
            // The user paused a stream that was live.
            Some(LiveState::Paused) if before == Some(LiveState::Live) => {
                self.not_live_since.set(Some(browser::now_millis()));
            }
            Some(_) => self.not_live_since.set(Some(self.last_contact.get_value())),
        }
    }

    /// Reads again whatever failed, even while live updates are paused. Used by the user's *Try again*.
    pub fn try_again(self) {
        for refresh in self.failed_refreshes(|_| true) {
            refresh.request_own();
        }
    }

    /// Reads again what failed for a reason that may pass.
    pub fn retry(self) {
        for refresh in self.failed_refreshes(is_temporary) {
            refresh.request();
        }
    }

    fn failed_refreshes(self, is_wanted: impl Fn(&AppError) -> bool) -> Vec<ThrottledRefresh> {
        let failed = |reads: &Vec<PageRead>| {
            let failed = reads.iter().filter(|read| read.error.as_ref().is_some_and(&is_wanted));
            failed.map(|read| read.refresh.clone()).collect()
        };
        self.reads.try_with_value(failed).unwrap_or_default()
    }

    fn change(self, change: impl FnOnce(&mut Vec<PageRead>)) {
        let failure = self.reads.try_update_value(|reads| {
            change(reads);
            failure_among(reads.iter().map(|read| (read.error.as_ref(), read.succeeded_at)))
        });
        // The layout may be gone.
        if let Some(failure) = failure
            && self.failure.try_with_untracked(|known| *known != failure) == Some(true)
        {
            self.failure.set(failure);
        }
    }
}

/// Returns true if the same read may succeed later.
const fn is_temporary(error: &AppError) -> bool {
    matches!(error, AppError::Unavailable(_) | AppError::Failed(_) | AppError::TooMany(_))
}

/// Returns the failure to show for these results, each with the time of its last success.
fn failure_among<'a>(results: impl Iterator<Item = (Option<&'a AppError>, i64)>) -> Option<ReadFailure> {
    let mut shown: Option<ReadFailure> = None;
    for (error, succeeded_at) in results {
        match (error, &mut shown) {
            (None, _) => {}
            (Some(error), None) => {
                shown = Some(ReadFailure { error: error.clone(), data_at_millis: succeeded_at });
            }
            (Some(_), Some(shown)) => shown.data_at_millis = shown.data_at_millis.min(succeeded_at),
        }
    }
    shown
}

/// The access of one refresh to the [`ReadState`]. Does nothing on the server, which reads each page once, and outside
/// the layout.
#[derive(Clone)]
pub(super) struct ReadReport {
    state: Option<ReadState>,
    id: u64,
}

impl Default for ReadReport {
    fn default() -> Self {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let state = if cfg!(feature = "hydrate") { use_context::<ReadState>() } else { None };
        Self { state, id: LAST_ID.fetch_add(1, Ordering::Relaxed) }
    }
}

impl ReadReport {
    /// Adds the refresh until the current owner ends.
    pub(super) fn register(&self, refresh: ThrottledRefresh) {
        let (Some(state), id) = (self.state, self.id) else { return };
        // The data of the first page is as old as the request for it.
        let is_hydrated = state.is_hydrated.try_get_value() == Some(true);
        let succeeded_at = if is_hydrated { browser::now_millis() } else { browser::requested_millis() };
        state.change(|reads| reads.push(PageRead { id, refresh, succeeded_at, error: None }));
        on_cleanup(move || state.change(|reads| reads.retain(|read| read.id != id)));
    }

    /// Records a successful read.
    pub(super) fn succeeded(&self) {
        let Some(state) = self.state else { return };
        let now = browser::now_millis();
        let _ = state.last_contact.try_set_value(now);
        self.update(|read| {
            read.succeeded_at = now;
            read.error = None;
        });
    }

    /// Records a failed read.
    pub(super) fn failed(&self, error: AppError) {
        self.update(|read| read.error = Some(error));
    }

    fn update(&self, update: impl FnOnce(&mut PageRead)) {
        if let Some(state) = self.state {
            state.change(|reads| {
                if let Some(read) = reads.iter_mut().find(|read| read.id == self.id) {
                    update(read);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_states_the_oldest_data() {
        let (down, lost) = (AppError::Unavailable("down".into()), AppError::NotFound("lost".into()));
        assert_eq!(failure_among([(None, 1), (None, 2)].into_iter()), None);
        let both = failure_among([(None, 1), (Some(&down), 5), (Some(&lost), 3)].into_iter());
        assert_eq!(both, Some(ReadFailure { error: down, data_at_millis: 3 }));
    }

    #[test]
    fn missing_object_is_not_read_again() {
        assert!(is_temporary(&AppError::Unavailable("down".into())));
        assert!(!is_temporary(&AppError::NotFound("lost".into())));
    }
}
