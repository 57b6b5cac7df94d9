//! The tiles of the overview.
//!
//! Each tile is a link to what it counts. A status that an occurrence leaves again, such as Running, is counted as it is
//! now; adding up how often it was reached would count one occurrence several times.

use leptos::prelude::*;
use milvaion_api::{
    failures::MAX_COUNTED_FAILURES,
    page::{OccurrenceFilter, TimeWindow},
    views::{ClusterOverview, MAX_COUNTED_OPEN},
};
use milvaion_protocol::status::OccurrenceStatus;

use crate::{
    components::{icon::Icon, status_badge::icon_of},
    format,
    pages::occurrences::filter::address,
};

/// The final statuses, in the order of their tiles.
const ENDED_STATUSES: [OccurrenceStatus; 5] = {
    use OccurrenceStatus as S;
    [S::Completed, S::Failed, S::TimedOut, S::Cancelled, S::Skipped]
};

fn count_of(counts: &[(OccurrenceStatus, i64)], status: OccurrenceStatus) -> i64 {
    counts.iter().filter(|(of, _)| *of == status).map(|(_, n)| n).sum()
}

/// Formats a count of open occurrences, which ends at [`MAX_COUNTED_OPEN`].
fn open_count(count: i64) -> String {
    let more = if count > MAX_COUNTED_OPEN { "+" } else { "" };
    format!("{}{more}", format::count(count.min(MAX_COUNTED_OPEN)))
}

fn status_tile(
    status: OccurrenceStatus,
    window: Option<TimeWindow>,
    value: impl Fn() -> String + Send + Sync + 'static,
) -> AnyView {
    let href = address(&OccurrenceFilter { status: Some(status), window, ..OccurrenceFilter::default() });
    let hint = window.map_or_else(|| "now".to_owned(), |window| format!("in the {}", window.label()));
    tile(href, icon_of(status), status.label(), Some(status), value, move || hint.clone())
}

fn tile(
    href: String,
    icon: &'static str,
    label: &'static str,
    status: Option<OccurrenceStatus>,
    value: impl Fn() -> String + Send + Sync + 'static,
    hint: impl Fn() -> String + Send + Sync + 'static,
) -> AnyView {
    view! {
        <a class="tile" data-status=status.map(OccurrenceStatus::slug) href=href>
            <span class="tile-label cluster">
                <Icon name=icon/>
                <span>{label}</span>
            </span>
            <span class="tile-value">{value}</span>
            <span class="tile-hint">{hint}</span>
        </a>
    }
    .into_any()
}

/// The tiles of the present: open occurrences, open failures, live instances and active jobs.
#[component]
pub fn OpenTiles(
    /// The data of the page.
    data: RwSignal<ClusterOverview>,
) -> impl IntoView {
    let open_tile = move |status: OccurrenceStatus| {
        status_tile(status, None, move || open_count(data.with(|data| count_of(&data.open, status))))
    };
    let has_unknown = Memo::new(move |_| data.with(|data| count_of(&data.open, OccurrenceStatus::Unknown) > 0));
    let unknown = move || has_unknown.get().then(|| open_tile(OccurrenceStatus::Unknown));
    let failures = move || {
        let open = data.with(|data| data.open_failures);
        format!("{}{}", format::count(open), if open >= MAX_COUNTED_FAILURES { "+" } else { "" })
    };
    let workers = move || data.with(|data| format::count(data.workers_alive));
    let workers_hint = move || {
        data.with(|data| format!("of {} seen in the last 24 hours", format::plural(data.workers_known, "instance")))
    };
    let jobs = move || data.with(|data| format::count(data.jobs_active));
    let jobs_hint = move || data.with(|data| format!("of {}", format::plural(data.jobs_total, "job")));
    view! {
        <div class="tiles">
            {open_tile(OccurrenceStatus::Queued)}
            {open_tile(OccurrenceStatus::Running)}
            {unknown}
            {tile("/failed".into(), "octagon-x", "Open failures", None, failures, || "not yet retried or resolved".into())}
            {tile("/workers".into(), "server", "Live instances", None, workers, workers_hint)}
            {tile("/jobs?state=active".into(), "briefcase-business", "Active jobs", None, jobs, jobs_hint)}
        </div>
    }
    .into_any()
}

/// The tiles of what ended in the window.
#[component]
pub fn EndedTiles(
    /// The data of the page.
    data: RwSignal<ClusterOverview>,
    /// The window of the counts.
    window: TimeWindow,
) -> impl IntoView {
    let tiles = ENDED_STATUSES
        .into_iter()
        .map(|status| {
            status_tile(status, Some(window), move || format::count(data.with(|data| count_of(&data.ended, status))))
        })
        .collect::<Vec<_>>();
    view! { <div class="tiles">{tiles}</div> }.into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_count_ends_with_a_plus_above_the_limit() {
        assert_eq!(open_count(MAX_COUNTED_OPEN), "10,000");
        assert_eq!(open_count(MAX_COUNTED_OPEN + 1), "10,000+");
    }

    #[test]
    fn ended_tiles_are_the_final_statuses() {
        let all = milvaion_protocol::status::ALL_STATUSES;
        for status in all {
            assert_eq!(ENDED_STATUSES.contains(&status), status.is_final(), "{status}");
        }
    }
}
