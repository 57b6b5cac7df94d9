//! The workers page: the instances of each worker with their heartbeats, and the job types that the worker offers.

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    events::LiveEvent,
    permissions::Permission,
    views::{InstanceView, JobTypeView, WorkerView},
};

use crate::{
    api::{session::query_value, workers::list_workers},
    components::{
        empty_state::EmptyState, icon::Icon, loading::render_page, page_header::PageHeader, session_context::may,
        time::Time,
    },
    format,
    live::{throttled_refresh, use_live_updates},
};

/// The minimum time between two refreshes; each instance sends a heartbeat every few seconds.
const REFRESH_INTERVAL: Duration = Duration::from_millis(700);

/// `/workers`.
#[component]
pub fn WorkersPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| list_workers());
    view! {
        <Title text="Workers"/>
        <PageHeader title="Workers" sub="Worker processes seen in the last 24 hours, and the job types they offer."/>
        {render_page(data, |workers| view! { <WorkersContent workers/> })}
    }
}

#[component]
fn WorkersContent(workers: Vec<WorkerView>) -> impl IntoView {
    let workers = RwSignal::new(workers);
    let refresh = throttled_refresh(REFRESH_INTERVAL, list_workers, move |read| workers.set(read));
    use_live_updates(move |envelope| {
        if matches!(envelope.event, LiveEvent::Workers | LiveEvent::Resync) {
            refresh.request();
        }
    });
    let may_define = may(Permission::DefineJob);
    let cards = move || {
        let workers = workers.get();
        if workers.is_empty() {
            return empty_state().into_any();
        }
        let cards = workers.into_iter().map(|worker| card(worker, may_define)).collect::<Vec<_>>();
        view! { <div class="stack">{cards}</div> }.into_any()
    };
    view! { {cards} }
}

fn empty_state() -> impl IntoView {
    view! {
        <EmptyState
            icon="server"
            title="No workers connected"
            text="A worker is a process that runs jobs. Start one that is connected to the same broker; it appears here automatically. Until then, runs stay queued."
        >
            <a class="btn" href="/help">"Open help"</a>
        </EmptyState>
    }
}

fn card(worker: WorkerView, may_define: bool) -> AnyView {
    let heading = format!("worker-{}", worker.id);
    let alive = worker.instances.iter().filter(|instance| instance.alive).count();
    let summary = format!(
        "{} of {} alive",
        format::count(i64::try_from(alive).unwrap_or(i64::MAX)),
        format::plural(i64::try_from(worker.instances.len()).unwrap_or(i64::MAX), "instance")
    );
    let caption = format!("Instances of worker {}", worker.id);
    let notices = worker.instances.iter().filter_map(notice).collect::<Vec<_>>();
    let rows = worker.instances.into_iter().map(instance_row).collect::<Vec<_>>();
    let types = worker.job_types.into_iter().map(|job_type| type_card(job_type, may_define)).collect::<Vec<_>>();
    view! {
        <section class="card" aria-labelledby=heading>
            <div class="card-head">
                <h2 class="card-title" id=heading.clone()>{worker.id}</h2>
                <span class="muted">{summary}</span>
            </div>
            {(!notices.is_empty()).then(|| view! { <div class="stack">{notices}</div> })}
            <div class="table-wrap">
                <table class="table table-cards">
                    <caption class="sr-only">{caption}</caption>
                    <thead>
                        <tr>
                            <th scope="col">"Instance"</th>
                            <th scope="col">"State"</th>
                            <th scope="col">"Last heartbeat"</th>
                            <th scope="col" class="num">"Running"</th>
                            <th scope="col">"Host"</th>
                            <th scope="col">"Version"</th>
                            <th scope="col">"Started"</th>
                        </tr>
                    </thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
            <h3>"Job types"</h3>
            <div class="cards">{types}</div>
        </section>
    }
    .into_any()
}

/// Returns the warning of an instance. A stopped instance has none: its problem ended with the process.
fn notice(instance: &InstanceView) -> Option<AnyView> {
    let text = instance.notice.clone().filter(|_| !instance.stopped)?;
    let id = instance.id.clone();
    let view = view! {
        <div class="notice" data-kind="warn">
            <Icon name="triangle-alert"/>
            <p><strong class="mono">{id}</strong>": "{text}</p>
        </div>
    };
    Some(view.into_any())
}

fn instance_row(instance: InstanceView) -> impl IntoView {
    let (status, icon, word) = match (instance.alive, instance.stopped) {
        (true, _) => ("active", "heart-pulse", "Alive"),
        (false, true) => ("paused", "circle-pause", "Stopped"),
        (false, false) => ("unknown", "wifi-off", "Lost"),
    };
    let id = instance.id.clone();
    view! {
        <tr data-instance=id>
            <th scope="row" data-label="Instance" class="mono">{instance.id}</th>
            <td data-label="State">
                <span class="badge" data-status=status>
                    <Icon name=icon/>
                    <span>{word}</span>
                </span>
            </td>
            <td data-label="Last heartbeat"><Time at=instance.last_heartbeat_at relative=true/></td>
            <td data-label="Running" class="num">{format!("{} of {}", instance.running, instance.capacity)}</td>
            <td data-label="Host">{instance.host}</td>
            <td data-label="Version">{instance.version}</td>
            <td data-label="Started"><Time at=instance.started_at/></td>
        </tr>
    }
}

fn type_card(job_type: JobTypeView, may_define: bool) -> impl IntoView {
    let info = job_type.info;
    let target = format!("{}/{}", job_type.worker_id, info.job_type);
    let alive = match job_type.alive {
        0 => "No live instance offers this job type.".to_owned(),
        n => format!("Offered by {}.", format::plural(n, "live instance")),
    };
    let timeout = match info.timeout_seconds {
        Some(seconds) => {
            format!("Default timeout: {}.", format::duration(i64::from(seconds) * 1_000))
        }
        None => "No default timeout.".to_owned(),
    };
    let schema = serde_json::to_string_pretty(&info.schema).unwrap_or_default();
    let schema_name = format!("Input schema of {}", info.job_type);
    let new_job = may_define.then(|| {
        view! {
            <a class="btn btn-small" href=format!("/jobs/new?type={}", query_value(&target))>
                <Icon name="plus"/>
                "New job"
                <span class="sr-only">{format!(" of type {}", info.job_type)}</span>
            </a>
        }
    });
    view! {
        <div class="card">
            <div class="card-head">
                <h4 class="card-title mono">{info.job_type.clone()}</h4>
                {new_job}
            </div>
            <p>{info.description}</p>
            <p class="muted">{alive} " " {timeout}</p>
            <details>
                <summary>"Input schema"</summary>
                <pre class="code" tabindex="0" role="region" aria-label=schema_name>{schema}</pre>
            </details>
        </div>
    }
}
