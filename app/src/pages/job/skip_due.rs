//! Skips the next due time of a job.

use chrono::SecondsFormat;
use leptos::{prelude::*, server_fn::ServerFn};
use milvaion_api::views::JobView;

use crate::{
    api::jobs::{SKIPPED_NOTICE, SkipDue, skip_due},
    components::{
        action::use_action,
        action_error::LastError,
        confirm::{AskButton, ConfirmDialog, Confirmation},
        time::{MaybeTime, Time},
    },
};

/// The effect of the action.
const CONSEQUENCE: &str = "The schedule starts no run then, and an occurrence is recorded as skipped. Later due times \
                           stay. To undo it before then, pause the job and resume it: the next due time is then \
                           computed again.";

/// Skips the next due time of a job after a confirmation that names it. Shown only while the job has one. Without
/// scripts the confirmation is a section of the page, reached by a link.
#[component]
pub fn SkipDueButton(
    /// The job.
    view: RwSignal<JobView>,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
    /// Reads the job again.
    on_change: Callback<()>,
) -> impl IntoView {
    let id = view.with_untracked(|job| job.row.id);
    let next = Memo::new(move |_| view.with(|job| job.row.next_fire_at));
    let open = RwSignal::new(false);
    let action = use_action(error);
    // The due time when the user was asked.
    let asked = RwSignal::new(next.get_untracked());
    let skip = move |()| {
        let Some(due) = asked.get_untracked() else { return };
        action.run(async move {
            let outcome = skip_due(id, due).await;
            let _ = on_change.try_run(());
            outcome.map(|()| Some(SKIPPED_NOTICE.to_owned()))
        });
    };
    let ask = move |()| {
        asked.set(next.get_untracked());
        open.set(true);
    };
    let what = Signal::derive(move || {
        let title = view.with(|job| format!("Skip the next run of {}?", job.row.display_name));
        Confirmation::new(title, "", "Skip run")
    });
    let impossible = Signal::derive(move || {
        (next.get() != asked.get()).then(|| "This is not the next due time of the job any more.".to_owned())
    });
    view! {
        <span hidden=move || next.get().is_none()>
            <AskButton
                action
                label="Skip next run…"
                icon="skip-forward"
                href=format!("/jobs/{id}?confirm=skip-due#skip-due")
                on_ask=ask
            />
        </span>
        <ConfirmDialog open id="skip-due-title" what on_confirm=skip impossible>
            <p>"Due at " <MaybeTime at=asked/> ". " {CONSEQUENCE}</p>
        </ConfirmDialog>
    }
}

/// The confirmation as a section of the page, for readers without scripts.
#[component]
pub fn SkipDueSection(
    /// The job.
    view: RwSignal<JobView>,
) -> impl IntoView {
    let (id, due) = view.with_untracked(|job| (job.row.id, job.row.next_fire_at));
    due.map(|due| {
        view! {
            <section class="card stack hide-js" id="skip-due" aria-labelledby="skip-due-heading">
                <h2 id="skip-due-heading">"Skip the next run?"</h2>
                <p>"Due at " <Time at=due/> ". " {CONSEQUENCE}</p>
                <form class="form-actions" method="post" action=SkipDue::PATH>
                    <input type="hidden" name="id" value=id.to_string()/>
                    <input type="hidden" name="due" value=due.to_rfc3339_opts(SecondsFormat::AutoSi, true)/>
                    <a class="btn" href=format!("/jobs/{id}")>"Cancel"</a>
                    <button type="submit" class="btn btn-danger">"Skip run"</button>
                </form>
            </section>
        }
    })
}
