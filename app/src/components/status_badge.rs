//! One status, one word, one icon, one colour: everywhere the same.

use leptos::prelude::*;
use milvaion_protocol::status::OccurrenceStatus;

/// The icon that stands for a status.
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

/// What a status means, in a sentence.
#[must_use]
pub const fn meaning_of(status: OccurrenceStatus) -> &'static str {
    match status {
        OccurrenceStatus::Queued => "It is recorded and waits for a worker.",
        OccurrenceStatus::Running => "A worker instance has claimed it and runs it.",
        OccurrenceStatus::Completed => "It ended well.",
        OccurrenceStatus::Failed => "It ended with an error, and no attempt is left.",
        OccurrenceStatus::Cancelled => "It ended because somebody asked for it.",
        OccurrenceStatus::TimedOut => "It ended because its time was up.",
        OccurrenceStatus::Unknown => "Its worker's heartbeat was lost; a late report may still settle it.",
        OccurrenceStatus::Skipped => "It never started: the job's overlap or misfire policy said no.",
    }
}

/// A status as icon and word.
#[component]
pub fn StatusBadge(
    /// Which.
    #[prop(into)]
    status: Signal<OccurrenceStatus>,
) -> impl IntoView {
    view! {
        <span class="badge" data-status=move || status.get().slug()>
            <svg class="icon" aria-hidden="true" focusable="false">
                <use href=move || format!("/pkg/icons.svg#{}", icon_of(status.get()))></use>
            </svg>
            <span>{move || status.get().label()}</span>
        </span>
    }
}
