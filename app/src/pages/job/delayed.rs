//! The delayed occurrences of a job: their number, and the action that cancels all of them.
//!
//! The count is read apart from the job. A job may enqueue hundreds of occurrences a second, and each read of the job also
//! computes its next due times.

use std::time::Duration;

use leptos::{prelude::*, server_fn::ServerFn, task::spawn_local};
use milvaion_api::{
    events::LiveEvent,
    page::OccurrenceFilter,
    rest::CancelDelayedResult,
    views::{JobView, MAX_COUNTED_OPEN},
};
use milvaion_protocol::id::JobId;

use crate::{
    api::jobs::{CancelDelayed, cancel_delayed, cancel_delayed_notice, delayed_count},
    components::{
        action_error::LastError,
        dialog::ConfirmDialog,
        icon::Icon,
        toast::{ToastKind, toasts},
    },
    format,
    live::{ThrottledRefresh, throttled_refresh, use_live_updates},
    pages::occurrences::filter::address,
};

/// The time between two reads of the count.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// The effect of cancelling the delayed occurrences.
const CONSEQUENCE: &str = "They will not run. Occurrences that wait for a retry are delayed too, and are cancelled with the others. Running occurrences \
     continue, and the schedule of the job stays as it is.";

/// Formats a number of delayed occurrences, which ends at [`MAX_COUNTED_OPEN`]: `1 occurrence`, `10,000+ occurrences`.
fn counted(count: i64) -> String {
    if count > MAX_COUNTED_OPEN {
        format!("{}+ occurrences", format::count(MAX_COUNTED_OPEN))
    } else {
        format::plural(count, "occurrence")
    }
}

/// Keeps the count of a job current. Returns the refresh, so that the action on the page can request it.
pub fn keep_count(id: JobId, view: RwSignal<JobView>) -> ThrottledRefresh {
    let refresh = throttled_refresh(
        COUNT_INTERVAL,
        move || delayed_count(id),
        move |count| {
            if view.with_untracked(|job| job.delayed != count) {
                view.update(|job| job.delayed = count);
            }
        },
    );
    let request = refresh.clone();
    use_live_updates(move |envelope| {
        if let LiveEvent::Occurrences { rows } = &envelope.event {
            let has_delayed = view.with_untracked(|job| job.delayed > 0);
            if rows.iter().any(|run| run.job_id == id && (has_delayed || run.waits_until.is_some())) {
                request.request();
            }
        }
    });
    refresh
}

/// The number of delayed occurrences of a job, which leads to their list.
#[component]
pub fn DelayedCount(
    /// The job.
    view: RwSignal<JobView>,
) -> impl IntoView {
    let id = view.with_untracked(|job| job.row.id);
    let count = Memo::new(move |_| view.with(|job| job.delayed));
    let list = address(&OccurrenceFilter { job_id: Some(id), delayed: true, ..OccurrenceFilter::default() });
    move || match count.get() {
        0 => view! { <span class="muted">"None"</span> }.into_any(),
        count => view! { <a href=list.clone()>{counted(count)}</a> }.into_any(),
    }
}

/// Cancels all delayed occurrences of a job after a confirmation with their number. Shown only while there are some.
/// Without scripts the confirmation is a section of the page, reached by a link.
#[component]
pub fn CancelDelayedButton(
    /// The job.
    view: RwSignal<JobView>,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
    /// The refresh of the count.
    refresh: ThrottledRefresh,
) -> impl IntoView {
    let id = view.with_untracked(|job| job.row.id);
    let has_delayed = Memo::new(move |_| view.with(|job| job.delayed > 0));
    let toasts = toasts();
    let open = RwSignal::new(false);
    let is_busy = RwSignal::new(false);
    let cancel = Callback::new(move |()| {
        if is_busy.get_untracked() {
            return;
        }
        is_busy.set(true);
        error.clear();
        let refresh = refresh.clone();
        spawn_local(async move {
            let outcome = cancel_in_parts(id).await;
            let _ = is_busy.try_set(false);
            match outcome {
                Ok(result) => toasts.show(ToastKind::Success, cancel_delayed_notice(result)),
                Err(found) => error.show(found),
            }
            // Some may be cancelled even after an error.
            refresh.request_own();
        });
    });
    let title = Signal::derive(move || {
        view.with(|job| format!("Cancel {} of {} that are delayed?", counted(job.delayed), job.row.display_name))
    });
    view! {
        <span hidden=move || !has_delayed.get()>
            <button
                type="button"
                class="btn needs-js"
                aria-disabled=move || is_busy.get().then_some("true")
                on:click=move |_| open.set(true)
            >
                <Icon name="ban"/>
                "Cancel all delayed…"
            </button>
            <a class="btn hide-js" href=format!("/jobs/{id}?confirm=cancel-delayed#cancel-delayed")>
                "Cancel all delayed…"
            </a>
        </span>
        <ConfirmDialog
            open
            id="cancel-delayed-title"
            title
            verb="Cancel occurrences"
            otherwise="Keep occurrences"
            on_confirm=cancel
        >
            <p>{CONSEQUENCE}</p>
        </ConfirmDialog>
    }
}

/// Cancels the delayed occurrences of a job in as many requests as it takes. Ends after a request that cancels none.
async fn cancel_in_parts(id: JobId) -> Result<CancelDelayedResult, crate::error::AppError> {
    let mut total = CancelDelayedResult { cancelled: 0, more: true };
    while total.more {
        let part = cancel_delayed(id).await?;
        total = CancelDelayedResult { cancelled: total.cancelled.saturating_add(part.cancelled), more: part.more };
    }
    Ok(total)
}

/// The confirmation as a section of the page, for readers without scripts.
#[component]
pub fn CancelDelayedSection(
    /// The job.
    view: RwSignal<JobView>,
) -> impl IntoView {
    let (id, count) = view.with_untracked(|job| (job.row.id, job.delayed));
    view! {
        <section class="card stack hide-js" id="cancel-delayed" aria-labelledby="cancel-delayed-heading">
            <h2 id="cancel-delayed-heading">{format!("Cancel {} that are delayed?", counted(count))}</h2>
            <p>{CONSEQUENCE}</p>
            <form class="form-actions" method="post" action=CancelDelayed::PATH>
                <input type="hidden" name="id" value=id.to_string()/>
                <a class="btn" href=format!("/jobs/{id}")>"Keep occurrences"</a>
                <button type="submit" class="btn btn-danger">"Cancel occurrences"</button>
            </form>
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_ends_with_a_plus_above_the_limit() {
        let counts = [1, MAX_COUNTED_OPEN, MAX_COUNTED_OPEN + 1].map(counted);
        assert_eq!(counts, ["1 occurrence", "10,000 occurrences", "10,000+ occurrences"]);
    }
}
