//! The state of the cluster on every page: its pause, the health of its parts, and the number of firing alerts.
//!
//! The layout has it from the document. In an open page it is kept current by events and by a timer. The health must not
//! depend on the page's own data: while PostgreSQL is down, no data can be read, and the page must report exactly that.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::{
    events::LiveEvent,
    views::{ClusterPause, ClusterStatus},
};

use super::time::use_page_clock;
use crate::{
    api::cluster::get_cluster_status,
    live::{ThrottledRefresh, read_state::ReadState, refresh_on_events, throttled_refresh, use_polling},
};

/// The minimum time between two refreshes. A pause is rare and must show at once.
const REFRESH_INTERVAL: Duration = Duration::from_millis(150);
/// The time between refreshes without events while a part is down or a read fails.
pub const TROUBLE_REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// The number of these intervals between refreshes while everything works: 30 s.
const IDLE_INTERVALS: u32 = 6;

/// The last status, and the time of the last one with a working PostgreSQL.
#[derive(Clone, Debug)]
struct KnownStatus {
    status: ClusterStatus,
    data_at: Option<DateTime<Utc>>,
}

impl KnownStatus {
    /// Returns the state after `status`, and true if it differs in more than its time. A status that overtook a newer
    /// one changes nothing.
    fn after(known: Option<&Self>, mut status: ClusterStatus) -> Option<(Self, bool)> {
        if known.is_some_and(|known| known.status.now > status.now) {
            return None;
        }
        if !status.is_pause_known {
            status.pause = known.and_then(|known| known.status.pause.clone());
            status.alerts = known.map(|known| known.status.alerts).unwrap_or_default();
        }
        let data_at = if status.is_database_up() { Some(status.now) } else { known.and_then(|known| known.data_at) };
        let is_same = known.is_some_and(|known| {
            known.status.health == status.health
                && known.status.pause == status.pause
                && known.status.alerts == status.alerts
                && known.status.is_pause_known == status.is_pause_known
        });
        Some((Self { status, data_at }, !is_same))
    }
}

/// The state of the cluster, shared by the whole layout.
#[derive(Clone)]
pub struct ClusterState {
    known: ArcRwSignal<Option<KnownStatus>>,
    refresh: ThrottledRefresh,
}

impl ClusterState {
    /// Provides the state to everything inside the layout. Called once, by the layout, after [`ReadState::provide`].
    pub fn provide(status: Option<ClusterStatus>) -> Self {
        let first = status.and_then(|status| KnownStatus::after(None, status));
        let known = ArcRwSignal::new(first.map(|(known, _)| known));
        let clock = use_page_clock();
        let refresh = throttled_refresh(REFRESH_INTERVAL, get_cluster_status, {
            let known = known.clone();
            move |status: ClusterStatus| {
                clock.sync(status.now);
                known.maybe_update(|known| match KnownStatus::after(known.as_ref(), status) {
                    Some((next, is_changed)) => {
                        *known = Some(next);
                        is_changed
                    }
                    None => false,
                });
            }
        });
        let state = Self { known, refresh: refresh.clone() };
        provide_context(state.clone());
        refresh_on_events(&refresh, |event| matches!(event, LiveEvent::Cluster | LiveEvent::Alerts));
        if let Some(reads) = use_context::<ReadState>() {
            state.follow_reads(reads);
        }
        state
    }

    /// Refreshes the state by a timer and after a failed read, and repeats failed reads.
    fn follow_reads(&self, reads: ReadState) {
        let (known, refresh) = (self.known.clone(), self.refresh.clone());
        let ticks = AtomicU32::new(0);
        let ticks = Arc::new(ticks);
        use_polling(TROUBLE_REFRESH_INTERVAL, move || {
            let is_failing = reads.failure.with_untracked(Option::is_some);
            let has_troubles =
                known.with_untracked(|known| known.as_ref().is_none_or(|known| !known.status.troubles().is_empty()));
            let tick = ticks.fetch_add(1, Ordering::Relaxed) + 1;
            if is_failing || has_troubles || tick.is_multiple_of(IDLE_INTERVALS) {
                refresh.request();
            }
            reads.retry();
        });
        let (known, refresh) = (self.known.clone(), self.refresh.clone());
        Effect::new(move |was_failing: Option<bool>| {
            let is_failing = reads.failure.with(Option::is_some);
            if is_failing && was_failing == Some(false) {
                refresh.request();
            }
            is_failing
        });
        Effect::new(move |was_up: Option<bool>| {
            let is_up = known.with(|known| known.as_ref().is_none_or(|known| known.status.is_database_up()));
            if is_up && was_up == Some(false) {
                reads.retry();
            }
            is_up
        });
    }

    /// Reads the state again because of an action of this user.
    pub fn request_own(&self) {
        self.refresh.request_own();
    }

    /// Returns the last status, if any.
    #[must_use]
    pub fn status(&self) -> Option<ClusterStatus> {
        self.known.with(|known| known.as_ref().map(|known| known.status.clone()))
    }

    /// Returns the time of the last status with a working PostgreSQL, if PostgreSQL is down now.
    #[must_use]
    pub fn outage_data_at(&self) -> Option<DateTime<Utc>> {
        self.known.with(|known| known.as_ref().filter(|known| !known.status.is_database_up())?.data_at)
    }
}

/// Returns the status of the cluster; `None` if it could not be read.
#[must_use]
pub fn use_cluster_status() -> Signal<Option<ClusterStatus>> {
    match use_context::<ClusterState>() {
        Some(state) => Signal::derive(move || state.status()),
        None => Signal::stored(None),
    }
}

/// Returns the cluster pause; `None` while the cluster is not paused.
#[must_use]
pub fn use_cluster_pause() -> Signal<Option<ClusterPause>> {
    let status = use_cluster_status();
    Signal::derive(move || status.with(|status| status.as_ref().and_then(|status| status.pause.clone())))
}

#[cfg(test)]
mod tests {
    use milvaion_api::{
        alerts::FiringAlerts,
        views::{DATABASE_PART, HealthItem, HealthState},
    };

    use super::*;

    fn status(second: i64, database: HealthState, pause: Option<&str>) -> ClusterStatus {
        let now = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(second);
        let item = HealthItem { name: DATABASE_PART.into(), state: database, detail: String::new(), since: None };
        ClusterStatus {
            now,
            health: vec![item],
            is_pause_known: database == HealthState::Ok,
            pause: pause.map(|reason| ClusterPause { since: now, by: "ana".into(), reason: reason.into() }),
            alerts: FiringAlerts::default(),
        }
    }

    fn apply(known: &mut Option<KnownStatus>, status: ClusterStatus) -> Option<bool> {
        let (next, is_changed) = KnownStatus::after(known.as_ref(), status)?;
        *known = Some(next);
        Some(is_changed)
    }

    #[test]
    fn outage_keeps_the_pause_and_the_age_of_the_data() {
        let mut known = None;
        assert_eq!(apply(&mut known, status(1, HealthState::Ok, Some("disk full"))), Some(true));
        assert_eq!(apply(&mut known, status(2, HealthState::Down, None)), Some(true));
        let now = known.as_ref().expect("a status");
        assert_eq!(now.status.pause.as_ref().map(|pause| pause.reason.as_str()), Some("disk full"));
        assert_eq!(now.data_at.map(|at| at.timestamp()), Some(1));
        assert_eq!(apply(&mut known, status(3, HealthState::Ok, None)), Some(true));
        let now = known.as_ref().expect("a status");
        assert_eq!((now.status.pause.is_none(), now.data_at.map(|at| at.timestamp())), (true, Some(3)));
    }

    #[test]
    fn change_of_the_firing_alerts_is_a_change() {
        let firing = |second, database, warning| {
            let alerts = FiringAlerts { critical: 0, warning };
            ClusterStatus { alerts, ..status(second, database, None) }
        };
        let mut known = None;
        assert_eq!(apply(&mut known, firing(1, HealthState::Ok, 1)), Some(true));
        assert_eq!(apply(&mut known, firing(2, HealthState::Ok, 1)), Some(false));
        assert_eq!(apply(&mut known, firing(3, HealthState::Ok, 2)), Some(true));
        // While PostgreSQL is down, the alerts cannot be counted.
        assert_eq!(apply(&mut known, firing(4, HealthState::Down, 0)), Some(true));
        assert_eq!(known.map(|known| known.status.alerts.warning), Some(2));
    }

    #[test]
    fn status_that_was_overtaken_is_dropped() {
        let mut known = None;
        assert_eq!(apply(&mut known, status(5, HealthState::Ok, None)), Some(true));
        assert_eq!(apply(&mut known, status(6, HealthState::Ok, None)), Some(false));
        assert_eq!(apply(&mut known, status(4, HealthState::Down, None)), None);
    }
}
