//! The workers page: the instances of each worker with their heartbeats, and the job types that the worker offers.
//!
//! A heartbeat changes no status and is no event, so an open page reads again every ten seconds. Cards, rows and job
//! types are keyed and patched in place: an opened schema stays open, and a selection stays selected. Instances that no
//! longer run are listed for a day in a closed section below the live ones.

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    events::LiveEvent,
    permissions::Permission,
    views::{InstanceState, InstanceView, JobTypeView, WorkerView},
};

use crate::{
    api::{session::query_value, workers::list_workers},
    components::{
        empty_state::EmptyState,
        icon::{Icon, LiveIcon},
        live_rows::LiveRows,
        loading::render_page,
        page_header::PageHeader,
        session_context::may,
        table::{Extra, Number, Table, Text},
        time::Time,
    },
    format,
    live::live_page,
};

/// The minimum time between two refreshes after events.
const REFRESH_INTERVAL: Duration = Duration::from_millis(700);
/// The time between refreshes without events. An instance that sends no heartbeat is lost after a longer time.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// `/workers`.
#[component]
pub fn WorkersPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| list_workers());
    view! {
        <Title text="Workers"/>
        {render_page(data, |workers| {
            view! {
                <PageHeader title="Workers" sub="Instances seen in the last 24 hours, and the job types they offer."/>
                <WorkersContent workers/>
            }
        })}
    }
}

#[component]
fn WorkersContent(workers: Vec<WorkerView>) -> impl IntoView {
    let workers = LiveRows::of_all(workers, |worker: &WorkerView| worker.id.clone());
    let apply = move |read| workers.apply_all(read);
    live_page(REFRESH_INTERVAL, list_workers, |envelope| matches!(envelope.event, LiveEvent::Workers), apply)
        .every(POLL_INTERVAL);
    let may_define = may(Permission::DefineJob);
    let is_empty = Memo::new(move |_| workers.is_empty());
    view! {
        {move || is_empty.get().then(empty_state)}
        <div class="stack">
            {workers.view(move |worker| view! { <WorkerCard worker may_define/> }.into_any())}
        </div>
    }
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

#[component]
fn WorkerCard(worker: RwSignal<WorkerView>, may_define: bool) -> impl IntoView {
    let id = worker.with_untracked(|worker| worker.id.clone());
    let heading = format!("worker-{id}");
    let part = move |has_process: bool| {
        Memo::new(move |_| {
            worker.with(|worker| {
                worker
                    .instances
                    .iter()
                    .filter(|instance| instance.state.has_process() == has_process)
                    .cloned()
                    .collect::<Vec<_>>()
            })
        })
    };
    let (alive, gone) = (part(true), part(false));
    let summary = move || {
        let all = worker.with(|worker| worker.instances.len());
        // The table also has instances that are unreachable: they are alive, and take no new run.
        let live = alive.with(|alive| alive.iter().filter(|instance| instance.state.is_alive()).count());
        format!("{} of {} live", format::count(length(live)), format::plural(length(all), "instance"))
    };
    let has_none = Memo::new(move |_| alive.with(Vec::is_empty));
    let notices = Memo::new(move |_| {
        worker.with(|worker| worker.instances.iter().flat_map(notice_texts).collect::<Vec<(String, String)>>())
    });
    let types = Memo::new(move |_| worker.with(|worker| worker.job_types.clone()));
    view! {
        <section class="card" aria-labelledby=heading.clone()>
            <div class="card-head">
                <h2 class="card-title" id=heading.clone()>{id.clone()}</h2>
                <span class="muted">{summary}</span>
            </div>
            <div class="stack" hidden=move || notices.with(Vec::is_empty)>
                {move || notices.get().into_iter().map(notice).collect::<Vec<_>>()}
            </div>
            <p class="muted" hidden=move || !has_none.get()>"No instance of this worker is live. Its runs stay queued."</p>
            {instance_table(format!("Live instances of worker {id}"), worker, alive)}
            <details class="gone-instances" hidden=move || gone.with(Vec::is_empty)>
                <summary>{move || gone.with(|gone| gone_summary(gone))}</summary>
                {instance_table(format!("Instances of worker {id} that no longer run"), worker, gone)}
            </details>
            <h3>"Job types"</h3>
            <div class="cards">
                <For each=move || types.get() key=|job_type| job_type.info.job_type.clone() let:job_type>
                    <JobTypeCard first=job_type types may_define/>
                </For>
            </div>
        </section>
    }
}

fn length(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns the numbers of instances that no longer run: `1 lost instance, 2 gone instances`.
fn gone_summary(gone: &[InstanceView]) -> String {
    let parts = [
        (InstanceState::Draining, "draining instance"),
        (InstanceState::Lost, "lost instance"),
        (InstanceState::Gone, "gone instance"),
    ];
    let parts = parts.map(|(state, noun)| (gone.iter().filter(|instance| instance.state == state).count(), noun));
    let parts: Vec<String> =
        parts.into_iter().filter(|(n, _)| *n > 0).map(|(n, noun)| format::plural(length(n), noun)).collect();
    parts.join(", ")
}

/// Draws a table of the instances in `part`, whose current values are in `worker`.
fn instance_table(caption: String, worker: RwSignal<WorkerView>, part: Memo<Vec<InstanceView>>) -> AnyView {
    view! {
        <Table
            caption
            columns=[
                Text("Instance"), Text("State"), Text("Last heartbeat"), Number("Running"), Text("By priority"),
                Extra("Host"), Extra("Version"), Text("Started"),
            ]
            hidden=move || part.with(Vec::is_empty)
        >
            <For each=move || part.get() key=|instance| instance.id.clone() let:instance>
                <InstanceTableRow first=instance worker/>
            </For>
        </Table>
    }
    .into_any()
}

/// Returns the warnings of an instance, each with its id. A stopped instance has none: its problems ended with the process.
fn notice_texts(instance: &InstanceView) -> Vec<(String, String)> {
    if instance.stopped_at.is_some() {
        return Vec::new();
    }
    let refused = instance.problems.iter().map(|problem| format!("Refused part of its registration: {problem}"));
    let unreadable = (instance.unreadable > 0).then(|| {
        let count = format::plural(instance.unreadable, "message");
        let last = instance.unreadable_reason.as_deref().unwrap_or("unknown");
        format!("The server could not read {count} of it, in whole or in part. Last reason: {last}")
    });
    let texts = instance.notice.clone().into_iter().chain(refused).chain(unreadable);
    texts.map(|text| (instance.id.clone(), text)).collect()
}

fn notice((id, text): (String, String)) -> AnyView {
    view! {
        <div class="notice" data-kind="warn">
            <Icon name="triangle-alert"/>
            <p><strong class="mono">{id}</strong>": "{text}</p>
        </div>
    }
    .into_any()
}

/// Returns the status, the icon and the label of an instance's state.
const fn state_of(state: InstanceState) -> (&'static str, &'static str, &'static str) {
    match state {
        InstanceState::Active => ("active", "heart-pulse", "Active"),
        InstanceState::Completing => ("retrying", "timer", "Completing"),
        InstanceState::Unreachable => ("unknown", "wifi-off", "Unreachable"),
        InstanceState::Draining => ("retrying", "rotate-cw", "Draining"),
        InstanceState::Lost => ("unknown", "wifi-off", "Lost"),
        InstanceState::Gone => ("paused", "circle-pause", "Gone"),
    }
}

#[component]
fn InstanceTableRow(
    /// The values when the row was added.
    first: InstanceView,
    /// The worker with the current values.
    worker: RwSignal<WorkerView>,
) -> impl IntoView {
    let id = first.id.clone();
    let id_text = id.clone();
    let started_at = first.started_at;
    let instance = Memo::new(move |before: Option<&InstanceView>| {
        let found = worker.with(|worker| worker.instances.iter().find(|instance| instance.id == first.id).cloned());
        found.or_else(|| before.cloned()).unwrap_or_else(|| first.clone())
    });
    let state = Signal::derive(move || instance.with(|instance| state_of(instance.state)));
    let stopped = move || instance.with(|instance| instance.stopped_at).map(|at| view! { " " <Time at/> }.into_any());
    let heartbeat = Signal::derive(move || instance.with(|instance| instance.last_heartbeat_at));
    view! {
        <tr role="row" data-instance=id>
            <th role="rowheader" scope="row" data-label="Instance" class="mono">{id_text}</th>
            <td role="cell" data-label="State">
                <span class="badge" data-status=move || state.get().0>
                    <LiveIcon name=Signal::derive(move || state.get().1)/>
                    <span>{move || state.get().2}</span>
                </span>
                {stopped}
            </td>
            <td role="cell" data-label="Last heartbeat"><Time at=heartbeat relative=true/></td>
            <td role="cell" data-label="Running" class="num">{move || instance.with(InstanceView::running_text)}</td>
            <td role="cell" data-label="By priority">{move || instance.with(InstanceView::priorities_text)}</td>
            <td role="cell" data-label="Host" class="col-extra breaks">
                {move || instance.with(|instance| instance.host.clone())}
            </td>
            <td role="cell" data-label="Version" class="col-extra">
                {move || instance.with(|instance| instance.version.clone())}
            </td>
            <td role="cell" data-label="Started"><Time at=started_at/></td>
        </tr>
    }
}

#[component]
fn JobTypeCard(
    /// The values when the card was added.
    first: JobTypeView,
    /// The job types with their current values.
    types: Memo<Vec<JobTypeView>>,
    may_define: bool,
) -> impl IntoView {
    let name = first.info.job_type.clone();
    let target = format!("{}/{name}", first.worker_id);
    let wanted = name.clone();
    let job_type = Memo::new(move |before: Option<&JobTypeView>| {
        let found = types.with(|types| types.iter().find(|job_type| job_type.info.job_type == wanted).cloned());
        found.or_else(|| before.cloned()).unwrap_or_else(|| first.clone())
    });
    let alive = move || match job_type.with(|job_type| job_type.alive) {
        0 => "No live instance offers this job type.".to_owned(),
        n => format!("Offered by {}.", format::plural(n, "live instance")),
    };
    let timeout = move || match job_type.with(|job_type| job_type.info.timeout_seconds) {
        Some(seconds) => {
            format!("Default timeout: {}.", format::duration(i64::from(seconds) * 1_000))
        }
        None => "No default timeout.".to_owned(),
    };
    let schema = Memo::new(move |_| {
        job_type.with(|job_type| serde_json::to_string_pretty(&job_type.info.schema).unwrap_or_default())
    });
    let schema_name = format!("Input schema of {name}");
    let new_job = may_define.then(|| {
        view! {
            <a class="btn btn-small" href=format!("/jobs/new?type={}", query_value(&target))>
                <Icon name="plus"/>
                "New job"
                <span class="sr-only">{format!(" of type {name}")}</span>
            </a>
        }
    });
    view! {
        <div class="card">
            <div class="card-head">
                <h4 class="card-title mono">{name.clone()}</h4>
                {new_job}
            </div>
            <p>{move || job_type.with(|job_type| job_type.info.description.clone())}</p>
            <p class="muted">{alive} " " {timeout}</p>
            <details>
                <summary>"Input schema"</summary>
                <pre class="code" tabindex="0" role="region" aria-label=schema_name>{move || schema.get()}</pre>
            </details>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn instance(state: InstanceState) -> InstanceView {
        InstanceView {
            id: "local-1".into(),
            host: "host".into(),
            version: "0.1.0".into(),
            capacity: 6,
            critical_slots: 0,
            state,
            running: 1,
            priorities: Vec::new(),
            started_at: DateTime::UNIX_EPOCH,
            last_heartbeat_at: DateTime::UNIX_EPOCH,
            stopped_at: None,
            notice: None,
            protocol: 1,
            features: Vec::new(),
            problems: Vec::new(),
            unreadable: 0,
            unreadable_at: None,
            unreadable_reason: None,
        }
    }

    #[test]
    fn refused_parts_and_unreadable_messages_are_warnings() {
        let broken = InstanceView {
            problems: vec!["report: its schema is too large".into()],
            unreadable: 3,
            unreadable_reason: Some("durationMs: a text".into()),
            ..instance(InstanceState::Active)
        };
        let texts: Vec<String> = notice_texts(&broken).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            texts,
            [
                "Refused part of its registration: report: its schema is too large",
                "The server could not read 3 messages of it, in whole or in part. Last reason: durationMs: a text",
            ]
        );
        assert!(notice_texts(&InstanceView { stopped_at: Some(DateTime::UNIX_EPOCH), ..broken }).is_empty());
    }

    #[test]
    fn gone_instances_are_counted_by_state() {
        use InstanceState::{Draining, Gone, Lost};
        assert_eq!(gone_summary(&[instance(Lost)]), "1 lost instance");
        let all = [Draining, Lost, Gone, Gone].map(instance);
        assert_eq!(gone_summary(&all), "1 draining instance, 1 lost instance, 2 gone instances");
    }
}
