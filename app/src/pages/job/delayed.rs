//! The delayed occurrences of a job: their number, and the action that cancels all of them.
//!
//! The count is read apart from the job. A job may enqueue hundreds of occurrences a second, and each read of the job also
//! computes its next due times.

use std::time::Duration;

use leptos::{prelude::*, server_fn::ServerFn};
use milvaion_api::{
    events::LiveEvent,
    page::OccurrenceFilter,
    rest::CancelDelayedResult,
    views::{JobView, MAX_COUNTED_OPEN},
};
use milvaion_protocol::id::JobId;

use crate::{
    api::jobs::{CancelDelayed, cancel_delayed, cancel_delayed_notice, delayed_count},
    browser,
    components::{
        action::use_action,
        action_error::LastError,
        confirm::{AskButton, ConfirmDialog, Confirmation},
    },
    error::AppError,
    format,
    live::{ThrottledRefresh, announcer::PacedAnnouncement, live_page},
    pages::occurrences::filter::address,
};

/// The time between two reads of the count.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// A cancellation that runs in several requests.
///
/// It ends once it has cancelled as many occurrences as were delayed when the user was asked. A job that keeps delaying
/// new ones would otherwise keep it running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cancellation {
    /// The number of occurrences to cancel.
    goal: u32,
    /// True if more were delayed than can be counted.
    is_partial: bool,
    total: CancelDelayedResult,
}

impl Cancellation {
    /// Returns the cancellation of this number of delayed occurrences, or of the oldest of more than can be counted.
    fn of(delayed: i64) -> Self {
        let goal = u32::try_from(delayed.clamp(0, MAX_COUNTED_OPEN)).unwrap_or(u32::MAX);
        Self { goal, is_partial: delayed > MAX_COUNTED_OPEN, total: CancelDelayedResult { cancelled: 0, more: true } }
    }

    /// Returns true if another request is needed.
    const fn needs_request(self) -> bool {
        self.total.more && self.total.cancelled < self.goal
    }

    /// Returns the cancellation after a request with this result.
    const fn after(self, part: CancelDelayedResult) -> Self {
        let cancelled = self.total.cancelled.saturating_add(part.cancelled);
        // After a full request, the server may not know whether these were the last ones.
        let more = part.more && (self.is_partial || cancelled < self.goal);
        Self { total: CancelDelayedResult { cancelled, more }, ..self }
    }

    /// Formats the progress: `200 of 1,200 cancelled`.
    fn progress(self) -> String {
        format!("{} of {} cancelled", format::count(self.total.cancelled.into()), format::count(self.goal.into()))
    }
}

/// Returns the question before the delayed occurrences of a job are cancelled.
pub fn cancel_delayed_question(id: JobId, name: &str, delayed: i64) -> Confirmation {
    const CONSEQUENCE: &str = "They will not run. Occurrences that wait for a retry are delayed too, and are cancelled with the others. Running occurrences \
         continue, and the schedule of the job stays as it is.";
    let title = format!("Cancel {} of {name} that are delayed?", counted(delayed));
    let limit = format::count(MAX_COUNTED_OPEN);
    let partial = match delayed > MAX_COUNTED_OPEN {
        true => format!(" The oldest {limit} are cancelled. Repeat the action for the others."),
        false => String::new(),
    };
    let question = Confirmation::new(title, format!("{CONSEQUENCE}{partial}"), "Cancel occurrences");
    Confirmation { otherwise: "Keep occurrences", ..question }.with_form(
        CancelDelayed::PATH,
        vec![("id", id.to_string())],
        format!("/jobs/{id}"),
    )
}

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
    live_page(
        COUNT_INTERVAL,
        move || delayed_count(id),
        move |envelope| {
            let LiveEvent::Occurrences { rows } = &envelope.event else { return false };
            let has_delayed = view.with_untracked(|job| job.delayed > 0);
            rows.iter().any(|run| run.job_id == id && (has_delayed || run.waits_until.is_some()))
        },
        move |count| {
            if view.with_untracked(|job| job.delayed != count) {
                view.update(|job| job.delayed = count);
            }
        },
    )
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

/// Cancels the delayed occurrences of a job after a confirmation with their number. Shown only while there are some. A
/// cancellation that takes several requests shows its progress and can be stopped. Without scripts the confirmation is a
/// section of the page, reached by a link.
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
    let open = RwSignal::new(false);
    let action = use_action(error);
    // The number of delayed occurrences when the user was asked.
    let asked = RwSignal::new(view.with_untracked(|job| job.delayed));
    let running = RwSignal::new(None::<Cancellation>);
    let is_stopped = RwSignal::new(false);
    let cancel = Callback::new(move |()| {
        let (cancellation, refresh) = (Cancellation::of(asked.get_untracked()), refresh.clone());
        action.run(async move {
            is_stopped.set(false);
            let outcome = cancel_in_parts(id, cancellation, running, is_stopped).await;
            // The button that stops it disappears.
            browser::keep_focus();
            let _ = running.try_set(None);
            // Some may be cancelled even after an error.
            refresh.request_own();
            outcome.map(|result| Some(cancel_delayed_notice(result)))
        });
    });
    let ask = move |()| {
        asked.set(view.with_untracked(|job| job.delayed));
        open.set(true);
    };
    let what = Signal::derive(move || view.with(|job| cancel_delayed_question(id, &job.row.display_name, asked.get())));
    let progress = Memo::new(move |_| running.get().map(Cancellation::progress));
    let is_running = Memo::new(move |_| progress.with(Option::is_some));
    let stop = move || {
        is_running.get().then(|| {
            view! {
                <span class="cluster" id="cancel-progress">
                    <span>{move || progress.get()}</span>
                    <button
                        type="button"
                        class="btn"
                        aria-disabled=move || is_stopped.get().then_some("true")
                        on:click=move |_| is_stopped.set(true)
                    >
                        "Stop"
                    </button>
                </span>
            }
        })
    };
    view! {
        <span hidden=move || !has_delayed.get()>
            <AskButton
                action
                label="Cancel all delayed…"
                icon="ban"
                href=format!("/jobs/{id}?confirm=cancel-delayed#cancel-delayed")
                on_ask=ask
            />
        </span>
        {stop}
        <PacedAnnouncement text=progress/>
        <ConfirmDialog open id="cancel-delayed-title" what on_confirm=cancel/>
    }
}

/// Cancels the delayed occurrences of a job in as many requests as it takes, or until the user stops it.
async fn cancel_in_parts(
    id: JobId,
    mut cancellation: Cancellation,
    running: RwSignal<Option<Cancellation>>,
    is_stopped: RwSignal<bool>,
) -> Result<CancelDelayedResult, AppError> {
    loop {
        cancellation = cancellation.after(cancel_delayed(id).await?);
        if !cancellation.needs_request() || is_stopped.try_get_untracked() == Some(true) {
            return Ok(cancellation.total);
        }
        let _ = running.try_set(Some(cancellation));
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

    #[test]
    fn cancellation_ends_at_the_number_that_was_asked_for() {
        let part = |cancelled, more| CancelDelayedResult { cancelled, more };
        let first = Cancellation::of(1_200).after(part(200, true));
        assert!(first.needs_request());
        assert_eq!(first.progress(), "200 of 1,200 cancelled");
        assert!(!first.after(part(40, false)).needs_request(), "none are left");
        let last = first.after(part(1_100, true));
        assert!(!last.needs_request(), "the job has delayed new ones");
        assert_eq!(last.total, part(1_300, false));
        let most = Cancellation::of(MAX_COUNTED_OPEN + 1).after(part(10_000, true));
        assert!(!most.needs_request() && most.total.more, "the user is asked again for the others");
        assert_eq!(Cancellation::of(MAX_COUNTED_OPEN + 1).goal, 10_000);
    }
}
