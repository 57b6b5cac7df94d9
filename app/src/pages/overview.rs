//! The overview: health, what is open now, what ended in a window, the next occurrences and the recent failures.
//!
//! A tile shows a number of occurrences and links to exactly these. What is open is counted now; what ended is counted in
//! the window of the address, by the time of the end, and the link carries the window along.

pub mod cluster_pause;
pub mod first_steps;
pub mod tiles;

use std::time::Duration;

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::params::ParamsMap;
use milvaion_api::{
    events::LiveEvent,
    page::TimeWindow,
    permissions::Permission,
    views::{ClusterOverview, HealthItem, HealthState, OccurrenceRow, UpcomingJob},
};

use self::{
    cluster_pause::PauseAllButton,
    first_steps::FirstSteps,
    tiles::{EndedTiles, OpenTiles},
};
use super::occurrences::window_label;
use crate::{
    api::{
        overview::get_overview,
        session::{FlashView, take_flash},
    },
    components::{
        cluster_state::{ClusterState, use_cluster_pause, use_cluster_status},
        dialog::once_true,
        filter_error::{render_filtered, use_filter},
        form::ErrorSummary,
        health_parts::explanation_address,
        icon::Icon,
        minute_bars::OutcomeBars,
        page_header::PageHeader,
        query_reader::{InvalidFilter, QueryReader},
        session_context::may,
        status_badge::StatusBadge,
        table::{Number, Table, Text},
        time::{Countdown, MaybeTime, Time, use_page_clock},
    },
    error::AppError,
    format,
    live::live_page,
};

/// The minimum time between two refreshes while events arrive.
const REFRESH_INTERVAL: Duration = Duration::from_millis(800);
/// The same for the longest window, whose sums cost the server more.
const WEEK_REFRESH_INTERVAL: Duration = Duration::from_secs(4);
/// The time between refreshes without events: the window changes without one.
const IDLE_REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// `/`. The window is in the address: `window`.
#[component]
pub fn OverviewPage() -> impl IntoView {
    view! {
        <Title text="Overview"/>
        {render_filtered(use_filter(parse), read, |read| match read {
            Ok((overview, flash)) => view! { <OverviewContent overview flash/> }.into_any(),
            Err(notice) => view! {
                <PageHeader title="Overview"/>
                {notice}
            }
            .into_any(),
        })}
    }
}

fn parse(query: &ParamsMap) -> Result<TimeWindow, InvalidFilter> {
    let mut reader = QueryReader::of_links(query);
    let window = reader.read("window", "Use 1h, 24h or 7d.", TimeWindow::from_slug);
    reader.finish("/", window.unwrap_or_default())
}

async fn read(window: TimeWindow) -> Result<(ClusterOverview, FlashView), AppError> {
    let (overview, flash) = futures::try_join!(get_overview(window), take_flash("cluster".into()))?;
    Ok((overview, flash.unwrap_or_default()))
}

#[component]
fn OverviewContent(overview: ClusterOverview, flash: FlashView) -> impl IntoView {
    let clock = use_page_clock();
    clock.sync_page(overview.now);
    let window = overview.window;
    let interval = if window == TimeWindow::Week { WEEK_REFRESH_INTERVAL } else { REFRESH_INTERVAL };
    let data = RwSignal::new(overview);
    live_page(
        interval,
        move || get_overview(window),
        // Log lines change nothing on this page.
        |envelope| !matches!(envelope.event, LiveEvent::Log { .. }),
        move |read: ClusterOverview| {
            clock.sync(read.now);
            data.set(read);
        },
    )
    .every(IDLE_REFRESH_INTERVAL);
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
            view! { <OverviewNumbers data window/> }.into_any()
        }
    };
    let whole: Vec<_> = flash.error.iter().map(|text| (String::new(), text.clone())).collect();
    let may_pause = may(Permission::PauseCluster);
    let pause = use_cluster_pause();
    let is_paused = Memo::new(move |_| pause.with(Option::is_some));
    let is_offered = once_true(move || may_pause && !is_paused.get());
    let pause_all = move || {
        let flash = flash.clone();
        is_offered.get().then(move || view! { <PauseAllButton flash is_paused on_change/> })
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
    let address = explanation_address(&name);
    view! {
        <li data-state=state>
            <Icon name=icon/>
            <a href=address>{name}</a>
            <strong>{word}</strong>
            <span class="muted">{detail}</span>
        </li>
    }
}

#[component]
fn OverviewNumbers(data: RwSignal<ClusterOverview>, window: TimeWindow) -> impl IntoView {
    let bars = move || {
        let (bars, now) = data.with(|data| (data.bars.clone(), data.now));
        view! { <OutcomeBars bars window now/> }
    };
    let chips: Vec<_> = TimeWindow::ALL
        .into_iter()
        .map(|of| {
            let href = if of == TimeWindow::default() { "/".to_owned() } else { format!("/?window={}", of.slug()) };
            view! { <a class="chip" href=href aria-current=(of == window).then_some("true")>{window_label(of)}</a> }
        })
        .collect();
    view! {
        <section class="stack" aria-labelledby="now">
            <h2 id="now">"Now"</h2>
            <OpenTiles data/>
        </section>
        <section class="stack" aria-labelledby="ended">
            <div class="card-head">
                <h2 id="ended">{format!("Ended in the {}", window.label())}</h2>
                <nav class="chips" aria-label="Time window">{chips}</nav>
            </div>
            <EndedTiles data window/>
            <p class="muted">"Each tile counts occurrences by the time of their end and links to them."</p>
            <div class="card">{bars}</div>
        </section>
        <div class="cards">
            <NextRuns data/>
            <RecentFailures data/>
        </div>
    }
    .into_any()
}

#[component]
fn NextRuns(data: RwSignal<ClusterOverview>) -> impl IntoView {
    let none = Memo::new(move |_| data.with(|data| data.next_due.is_empty()));
    let each = move || data.with(|data| data.next_due.clone());
    let pause = use_cluster_pause();
    let is_paused = Memo::new(move |_| pause.with(Option::is_some));
    let row = move |due: UpcomingJob| {
        view! {
            <tr>
                <td><a class="row-link" href=format!("/jobs/{}", due.job_id)>{due.job_name}</a></td>
                <td class="num">{move || next_start(due.at, is_paused.get())}</td>
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
            <Table
                caption="The next 10 occurrences by due time"
                columns=[Text("Job"), Number("Due")]
                class="table"
                hidden=move || none.get()
            >
                <For each=each key=|due| (due.job_id, due.at) children=row/>
            </Table>
        </section>
    }
}

/// Draws the time until a due time. While the cluster is paused, no due time starts a run, so no countdown is shown.
fn next_start(at: DateTime<Utc>, is_paused: bool) -> AnyView {
    if !is_paused {
        return view! { <Countdown at/> }.into_any();
    }
    view! {
        <div>"When the cluster resumes"</div>
        <div class="muted">"Due " <Time at/></div>
    }
    .into_any()
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
            <p class="muted" hidden=move || !none.get()>"No occurrence has failed or timed out in the last 7 days."</p>
            <Table
                caption="The 5 newest occurrences that failed or timed out in the last 7 days"
                columns=[Text("Status"), Text("Occurrence"), Number("Ended")]
                class="table"
                hidden=move || none.get()
            >
                <For each=each key=|row| (row.id, row.version) children=row/>
            </Table>
        </section>
    }
}
