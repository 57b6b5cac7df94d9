//! The overview: health, the outcomes of the last hour, the next occurrences and the recent failures, kept current.

pub mod cluster_pause;

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    events::LiveEvent,
    failures::MAX_COUNTED_FAILURES,
    permissions::Permission,
    views::{ClusterOverview, ClusterStatus, HealthItem, HealthState, OccurrenceRow, UpcomingJob},
};
use milvaion_protocol::status::{ALL_STATUSES, OccurrenceStatus};

use self::cluster_pause::PauseAllButton;
use crate::{
    api::{
        overview::get_overview,
        session::{FlashView, take_flash},
    },
    components::{
        cluster_state::{ClusterState, use_cluster_pause, use_cluster_status},
        form::ErrorSummary,
        icon::{Icon, LiveIcon},
        loading::render_page,
        minute_bars::MinuteBars,
        page_header::PageHeader,
        session_context::may,
        status_badge::{StatusBadge, icon_of},
        time::{Countdown, MaybeTime, use_page_clock},
    },
    error::AppError,
    format,
    live::{LiveUpdates, throttled_refresh, use_live_updates, use_polling},
};

/// The minimum time between two refreshes while events arrive.
const REFRESH_INTERVAL: Duration = Duration::from_millis(800);
/// The time between refreshes without events: the window of the last hour changes without one.
const IDLE_REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// `/`.
#[component]
pub fn OverviewPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| read());
    view! {
        <Title text="Overview"/>
        {render_page(data, |(overview, flash)| view! { <OverviewContent overview flash/> })}
    }
}

async fn read() -> Result<(ClusterOverview, FlashView), AppError> {
    let overview = get_overview().await?;
    let flash = take_flash("cluster".into()).await?.unwrap_or_default();
    Ok((overview, flash))
}

#[component]
fn OverviewContent(overview: ClusterOverview, flash: FlashView) -> impl IntoView {
    let clock = use_page_clock();
    clock.sync(overview.now);
    let data = RwSignal::new(overview);
    let refresh = throttled_refresh(REFRESH_INTERVAL, get_overview, move |read: ClusterOverview| {
        clock.sync(read.now);
        data.set(read);
    });
    if use_context::<LiveUpdates>().is_some_and(LiveUpdates::received_recently) {
        refresh.request();
    }
    use_live_updates({
        let refresh = refresh.clone();
        move |envelope| {
            // Log lines change nothing on this page.
            if !matches!(envelope.event, LiveEvent::Log { .. }) {
                refresh.request();
            }
        }
    });
    use_polling(IDLE_REFRESH_INTERVAL, move || refresh.request());
    let cluster = use_context::<ClusterState>();
    let on_change = Callback::new(move |()| {
        if let Some(cluster) = &cluster {
            cluster.request_own();
        }
    });
    let is_new = Memo::new(move |_| data.with(|data| data.jobs_total == 0));
    let may_define = may(Permission::DefineJob);
    let body = move || {
        if is_new.get() {
            view! { <FirstSteps data may_define/> }.into_any()
        } else {
            view! { <OverviewNumbers data/> }.into_any()
        }
    };
    let whole: Vec<_> = flash.error.iter().map(|text| (String::new(), text.clone())).collect();
    let may_pause = may(Permission::PauseCluster);
    let pause = use_cluster_pause();
    let can_pause = Memo::new(move |_| may_pause && pause.with(Option::is_none));
    let pause_all = move || {
        let flash = flash.clone();
        can_pause.get().then(move || view! { <PauseAllButton flash on_change/> })
    };
    view! {
        <PageHeader title="Overview">{pause_all}</PageHeader>
        <ErrorSummary errors=whole/>
        <div class="stack">
            <HealthStrip/>
            {body}
        </div>
    }
}

#[component]
fn HealthStrip() -> impl IntoView {
    let status = use_cluster_status();
    let health = move || status.with(|status| status.as_ref().map(|status| status.health.clone()).unwrap_or_default());
    let health = Memo::new(move |_| health());
    let items = move || health.with(|health| health.iter().map(health_item).collect::<Vec<_>>());
    view! {
        <section aria-label="Health">
            <ul class="health">{items}</ul>
        </section>
    }
}

fn health_item(item: &HealthItem) -> impl IntoView + use<> {
    let (state, icon, word) = match item.state {
        HealthState::Ok => ("ok", "circle-check", "OK"),
        HealthState::Warn => ("warn", "triangle-alert", "Warning"),
        HealthState::Down => ("down", "octagon-x", "Down"),
    };
    let (name, detail) = (item.name.clone(), item.detail.clone());
    view! {
        <li data-state=state>
            <Icon name=icon/>
            <span>{name}</span>
            <strong>{word}</strong>
            <span class="muted">{detail}</span>
        </li>
    }
}

/// The steps a new installation still has to take; shown while there is no job.
#[component]
fn FirstSteps(data: RwSignal<ClusterOverview>, may_define: bool) -> impl IntoView {
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
    let make = if may_define {
        view! {
            <a class="btn btn-primary" href="/jobs/new">
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
            <p class="muted">"There are no jobs yet. Complete these three steps to run the first one."</p>
            <ol class="stack">
                <li class="cluster">{mark(healthy)} "All services are running"</li>
                <li class="cluster">
                    {mark(has_worker)}
                    <span>{move || {
                        if has_worker.get() { "A worker is connected" } else { "Start a worker; it appears here automatically" }
                    }}</span>
                    <a href="/workers">"Workers"</a>
                </li>
                <li class="cluster">
                    <Icon name="circle-dot"/>
                    <span class="sr-only">"Not yet: "</span>
                    {make}
                </li>
            </ol>
        </section>
    }
}

#[component]
fn OverviewNumbers(data: RwSignal<ClusterOverview>) -> impl IntoView {
    let bars = move || {
        let (minutes, now) = data.with(|data| (data.minutes.clone(), data.now));
        view! { <MinuteBars minutes now/> }
    };
    view! {
        <section class="stack" aria-labelledby="last-hour">
            <h2 id="last-hour">"Last hour"</h2>
            <OutcomeTiles data/>
            <div class="card">{bars}</div>
        </section>
        <div class="cards">
            <NextRuns data/>
            <RecentFailures data/>
        </div>
    }
}

#[component]
fn OutcomeTiles(data: RwSignal<ClusterOverview>) -> impl IntoView {
    let tile = move |status: OccurrenceStatus| {
        let count = move || {
            data.with(|data| data.last_hour.iter().filter(|(of, _)| *of == status).map(|(_, n)| n).sum::<i64>())
        };
        view! {
            <a class="tile" data-status=status.slug() href=format!("/occurrences?status={}", status.slug())>
                <span class="tile-label cluster">
                    <Icon name=icon_of(status)/>
                    <span>{status.label()}</span>
                </span>
                <span class="tile-value">{move || format::count(count())}</span>
                <span class="tile-hint">"in the last hour"</span>
            </a>
        }
    };
    let tiles = ALL_STATUSES.into_iter().map(tile).collect::<Vec<_>>();
    let failures = move || {
        let open = data.with(|data| data.open_failures);
        format!("{}{}", format::count(open), if open >= MAX_COUNTED_FAILURES { "+" } else { "" })
    };
    let workers = move || data.with(|data| format::count(data.workers_alive));
    let workers_hint =
        move || data.with(|data| format!("of {} seen in 24 hours", format::plural(data.workers_known, "instance")));
    let jobs = move || data.with(|data| format::count(data.jobs_active));
    let jobs_hint = move || data.with(|data| format!("of {}", format::plural(data.jobs_total, "job")));
    view! {
        <div class="tiles">
            {tiles}
            <a class="tile" href="/failed">
                <span class="tile-label cluster">
                    <Icon name="octagon-x"/>
                    <span>"Open failures"</span>
                </span>
                <span class="tile-value">{failures}</span>
                <span class="tile-hint">"not yet retried or resolved"</span>
            </a>
            <a class="tile" href="/workers">
                <span class="tile-label cluster">
                    <Icon name="server"/>
                    <span>"Live instances"</span>
                </span>
                <span class="tile-value">{workers}</span>
                <span class="tile-hint">{workers_hint}</span>
            </a>
            <a class="tile" href="/jobs">
                <span class="tile-label cluster">
                    <Icon name="briefcase-business"/>
                    <span>"Active jobs"</span>
                </span>
                <span class="tile-value">{jobs}</span>
                <span class="tile-hint">{jobs_hint}</span>
            </a>
        </div>
    }
}

#[component]
fn NextRuns(data: RwSignal<ClusterOverview>) -> impl IntoView {
    let none = Memo::new(move |_| data.with(|data| data.next_due.is_empty()));
    let each = move || data.with(|data| data.next_due.clone());
    let row = |due: UpcomingJob| {
        view! {
            <tr>
                <td><a class="row-link" href=format!("/jobs/{}", due.job_id)>{due.job_name}</a></td>
                <td class="num"><Countdown at=due.at/></td>
            </tr>
        }
    };
    view! {
        <section class="card" aria-labelledby="next-due">
            <div class="card-head">
                <h2 class="card-title" id="next-due">"Next occurrences"</h2>
                <a href="/jobs">"All jobs"</a>
            </div>
            <p class="muted" hidden=move || !none.get()>
                "No upcoming occurrences. They appear here when an active job has a due time."
            </p>
            <div class="table-wrap" hidden=move || none.get()>
                <table class="table">
                    <caption class="sr-only">"The next 10 occurrences by due time"</caption>
                    <thead>
                        <tr>
                            <th scope="col">"Job"</th>
                            <th scope="col" class="num">"Due"</th>
                        </tr>
                    </thead>
                    <tbody>
                        <For each=each key=|due| (due.job_id, due.at) children=row/>
                    </tbody>
                </table>
            </div>
        </section>
    }
}

#[component]
fn RecentFailures(data: RwSignal<ClusterOverview>) -> impl IntoView {
    let none = Memo::new(move |_| data.with(|data| data.failures.is_empty()));
    let each = move || data.with(|data| data.failures.clone());
    let row = |row: OccurrenceRow| {
        view! {
            <tr>
                <td><StatusBadge status=row.status/></td>
                <td>
                    <a class="row-link" href=format!("/occurrences/{}", row.id)>{row.job_name}</a>
                    <span class="muted">" " {row.note.map(|note| format::clip(&note, 120))}</span>
                </td>
                <td class="num"><MaybeTime at=row.ended_at relative=true/></td>
            </tr>
        }
    };
    view! {
        <section class="card" aria-labelledby="failures">
            <div class="card-head">
                <h2 class="card-title" id="failures">"Recent failures"</h2>
                <a href="/failed">"All failures"</a>
            </div>
            <p class="muted" hidden=move || !none.get()>"No occurrence has failed in the last 7 days."</p>
            <div class="table-wrap" hidden=move || none.get()>
                <table class="table">
                    <caption class="sr-only">"The 5 most recent failures"</caption>
                    <thead>
                        <tr>
                            <th scope="col">"Status"</th>
                            <th scope="col">"Occurrence"</th>
                            <th scope="col" class="num">"Ended"</th>
                        </tr>
                    </thead>
                    <tbody>
                        <For each=each key=|row| (row.id, row.version) children=row/>
                    </tbody>
                </table>
            </div>
        </section>
    }
}
