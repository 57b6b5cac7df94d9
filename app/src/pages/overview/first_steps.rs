//! The first steps of a new installation, with a sample job that runs with one click.
//!
//! The button is a plain form that a script takes over, and it works before any job exists. If it cannot work, it stays
//! visible and states the reason, because a missing button teaches nothing.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::views::{ClusterOverview, ClusterStatus, HealthState};

use crate::{
    api::overview::{RunSampleJob, SAMPLE_JOB_NOTICE, run_sample_job},
    components::{
        action::use_action,
        action_error::{ActionError, LastError},
        cluster_state::use_cluster_status,
        icon::{Icon, LiveIcon},
    },
};

/// The id of the text that states why the sample job cannot run.
const SAMPLE_JOB_REASON_ID: &str = "sample-job-reason";

/// The steps a new installation still has to take; shown while there is no job.
#[component]
pub fn FirstSteps(
    /// The data of the page.
    data: RwSignal<ClusterOverview>,
    /// True if the reader has the permission to create jobs.
    may_define: bool,
) -> impl IntoView {
    let status = use_cluster_status();
    let is_healthy = |status: &ClusterStatus| status.health.iter().all(|item| item.state != HealthState::Down);
    let healthy = Memo::new(move |_| status.with(|status| status.as_ref().is_some_and(is_healthy)));
    let has_worker = Memo::new(move |_| data.with(|data| data.workers_alive > 0));
    let mark = |done: Memo<bool>| {
        view! {
            <LiveIcon name=Signal::derive(move || if done.get() { "circle-check" } else { "loader-circle" })/>
            <span class="sr-only">{move || if done.get() { "Done: " } else { "Not yet: " }}</span>
        }
    };
    let open_mark = || {
        view! {
            <Icon name="circle-dot"/>
            <span class="sr-only">"Not yet: "</span>
        }
    };
    let sample = if may_define {
        view! { <SampleJobForm data/> }.into_any()
    } else {
        view! { <span>"Run a sample job"</span> }.into_any()
    };
    let make = if may_define {
        view! {
            <a class="btn" href="/jobs/new">
                <Icon name="plus"/>
                "Create your first job"
            </a>
        }
        .into_any()
    } else {
        view! { <span class="muted">"An Operator or an Admin can create jobs."</span> }.into_any()
    };
    view! {
        <section class="card" aria-labelledby="first-steps">
            <h2 class="card-title" id="first-steps">"First steps"</h2>
            <p class="muted">"There are no jobs yet. The sample job shows progress, a log and a result, and can be deleted."</p>
            <ol class="stack">
                <li class="cluster">{mark(healthy)} "All services are running"</li>
                <li class="cluster">
                    {mark(has_worker)}
                    <span>{move || {
                        if has_worker.get() { "A worker is connected" } else { "Start a worker; it appears here automatically" }
                    }}</span>
                    <a href="/workers">"Workers"</a>
                </li>
                <li class="cluster">{open_mark()} {sample}</li>
                <li class="cluster">{open_mark()} {make}</li>
            </ol>
        </section>
    }
    .into_any()
}

/// The button that creates the sample job, runs it and shows its occurrence.
#[component]
fn SampleJobForm(data: RwSignal<ClusterOverview>) -> impl IntoView {
    // One key for each rendered page: a double click sends it twice and makes one run.
    let key = StoredValue::new(format!("sample-{}", data.with_untracked(|data| data.now.timestamp_millis())));
    let is_offered = Memo::new(move |_| data.with(|data| data.offers_demo));
    let error = LastError::of("Run a sample job");
    let action = use_action(error);
    let navigate = use_navigate();
    let run = move |event: ev::SubmitEvent| {
        event.prevent_default();
        if !is_offered.get_untracked() {
            return;
        }
        let navigate = navigate.clone();
        action.run_once(async move {
            let id = run_sample_job(key.get_value()).await?;
            navigate(&format!("/occurrences/{id}"), NavigateOptions::default());
            Ok(Some(SAMPLE_JOB_NOTICE.to_owned()))
        });
    };
    let is_disabled = move || (action.is_running() || !is_offered.get()).then_some("true");
    let reason = move || {
        if is_offered.get() { "" } else { "No live worker offers the job type demo. Start milvaion-worker." }
    };
    view! {
        <form method="post" action=RunSampleJob::PATH class="cluster" on:submit=run>
            <input type="hidden" name="idempotency_key" value=key.get_value()/>
            <button
                type="submit"
                class="btn btn-primary"
                aria-disabled=is_disabled
                aria-describedby=SAMPLE_JOB_REASON_ID
            >
                <Icon name="play"/>
                "Run a sample job"
            </button>
            <span class="muted" id=SAMPLE_JOB_REASON_ID>{reason}</span>
            <ActionError error/>
        </form>
    }
}
