//! The badge of an occurrence's status: the same word, icon and color everywhere.

use leptos::prelude::*;
use milvaion_protocol::status::OccurrenceStatus;

use super::icon::LiveIcon;

/// Returns the icon of a status.
#[must_use]
pub const fn icon_of(status: OccurrenceStatus) -> &'static str {
    match status {
        OccurrenceStatus::Queued => "list",
        OccurrenceStatus::Running => "loader-circle",
        OccurrenceStatus::Completed => "circle-check",
        OccurrenceStatus::Failed => "octagon-x",
        OccurrenceStatus::Cancelled => "ban",
        OccurrenceStatus::TimedOut => "timer-off",
        OccurrenceStatus::Unknown => "wifi-off",
        OccurrenceStatus::Skipped => "skip-forward",
    }
}

/// Returns the meaning of a status, in one sentence.
#[must_use]
pub const fn meaning_of(status: OccurrenceStatus) -> &'static str {
    match status {
        OccurrenceStatus::Queued => "Recorded and waiting for a worker.",
        OccurrenceStatus::Running => "Claimed and being run by a worker instance.",
        OccurrenceStatus::Completed => "Completed successfully.",
        OccurrenceStatus::Failed => "Ended with an error, and no attempt is left.",
        OccurrenceStatus::Cancelled => "Cancelled by a user or by the job's overlap policy.",
        OccurrenceStatus::TimedOut => "Stopped because it exceeded its timeout.",
        OccurrenceStatus::Unknown => "Its worker no longer reports the run; a late report may still set the result.",
        OccurrenceStatus::Skipped => "Not started: skipped by the job's overlap or misfire policy.",
    }
}

/// A status as an icon with its label.
#[component]
pub fn StatusBadge(
    /// The status to show.
    #[prop(into)]
    status: Signal<OccurrenceStatus>,
    /// True while a cancel request is stored and the run has not ended.
    #[prop(optional, into)]
    cancelling: Signal<bool>,
) -> impl IntoView {
    let icon = Signal::derive(move || if cancelling.get() { "ban" } else { icon_of(status.get()) });
    view! {
        <span class="badge" data-status=move || status.get().slug()>
            <LiveIcon name=icon/>
            <span>{move || if cancelling.get() { "Cancelling…" } else { status.get().label() }}</span>
        </span>
    }
}
