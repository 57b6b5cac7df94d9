//! The parts that the pages of alerts share to stay current.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::events::{EventEnvelope, LiveEvent};

use crate::components::{cluster_state::use_cluster_status, time::use_page_clock};

/// The delay before a page is read again after a change.
pub const REFRESH_DELAY: Duration = Duration::from_millis(300);

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
