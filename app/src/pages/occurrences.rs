//! The list of occurrences: newest first, one page at a time, with live updates on the first page.
//!
//! The whole filter is in the address: status, job, time window and page. A window holds what is open and what ended in
//! it, so that the tiles of the overview can link to exactly the rows that they count.

pub mod filter;

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    page::{ListPage, OccurrenceFilter, TimeWindow},
    views::OccurrenceRow,
};
use milvaion_protocol::status::{ALL_STATUSES, OccurrenceStatus};

use self::filter::{address, reason_for_none};
use crate::{
    api::occurrences::{get_job_name, list_occurrences},
    components::{
        empty_state::EmptyState,
        filter_error::{render_filtered, use_filter},
        icon::Icon,
        occurrence_list::OccurrenceList,
        occurrence_table::OccurrenceTable,
        page_header::PageHeader,
        status_badge::icon_of,
    },
    error::AppError,
};

/// The filter, its page of rows and the name of its job.
type ListedPage = (OccurrenceFilter, ListPage<OccurrenceRow>, Option<String>);

/// `/occurrences`. The filter is in the address: `status`, `delayed`, `job`, `parent`, `window` and `before`.
#[component]
pub fn OccurrencesPage() -> impl IntoView {
    let parsed = use_filter(filter::parse);
    let is_valid = Memo::new(move |_| parsed.with(Result::is_ok));
    let filter = Memo::new(move |_| parsed.get().unwrap_or_default());
    let chips = move || is_valid.get().then(|| view! { <FilterChips filter/> });
    let content = render_filtered(parsed, read, move |listed| {
        let list = match listed {
            Ok((filter, page, job)) => view! { <OccurrencesContent filter page job/> }.into_any(),
            Err(notice) => notice,
        };
        view! {
            <PageHeader title="Occurrences" sub="Runs of jobs, newest first."/>
            <div class="stack">{chips} {list}</div>
        }
        .into_any()
    });
    view! {
        <Title text="Occurrences"/>
        {content}
    }
}

async fn read(filter: OccurrenceFilter) -> Result<ListedPage, AppError> {
    let Some(job) = filter.job_id else {
        let page = list_occurrences(filter.clone()).await?;
        return Ok((filter, page, None));
    };
    let (page, name) = futures::try_join!(list_occurrences(filter.clone()), get_job_name(job))?;
    // The occurrences of a deleted job carry its name.
    let deleted = || page.rows.first().map(|row| format!("{} (deleted)", row.job_name));
    let name = name.or_else(deleted).unwrap_or_else(|| format!("unknown job {job}"));
    Ok((filter, page, Some(name)))
}

/// The chips of the status and of the time window.
#[component]
fn FilterChips(filter: Memo<OccurrenceFilter>) -> impl IntoView {
    let status_chip = move |status: Option<OccurrenceStatus>| {
        let href = move || address(&OccurrenceFilter { status, delayed: false, before: None, ..filter.get() });
        let is_current = move || filter.with(|filter| filter.status == status && !filter.delayed);
        view! {
            <a class="chip" href=href aria-current=move || is_current().then_some("true")>
                {status.map(|status| view! { <Icon name=icon_of(status)/> })}
                {status.map_or("All", OccurrenceStatus::label)}
            </a>
        }
    };
    let window_chip = move |window: Option<TimeWindow>| {
        let href = move || address(&OccurrenceFilter { window, before: None, ..filter.get() });
        let is_current = move || filter.with(|filter| filter.window == window);
        view! {
            <a class="chip" href=href aria-current=move || is_current().then_some("true")>
                {window.map_or("All times", window_label)}
            </a>
        }
    };
    let delayed = move || address(&OccurrenceFilter { status: None, delayed: true, before: None, ..filter.get() });
    let is_delayed = move || filter.with(|filter| filter.delayed);
    let statuses = ALL_STATUSES.into_iter().map(|status| status_chip(Some(status))).collect::<Vec<_>>();
    let windows = TimeWindow::ALL.into_iter().map(|window| window_chip(Some(window))).collect::<Vec<_>>();
    view! {
        <nav class="chips" aria-label="Filter by status">
            {status_chip(None)}
            {statuses}
            <a class="chip" href=delayed aria-current=move || is_delayed().then_some("true")>
                <Icon name="timer"/>
                "Delayed"
            </a>
        </nav>
        <nav class="chips" aria-label="Filter by time">
            {window_chip(None)}
            {windows}
        </nav>
    }
    .into_any()
}

/// Returns the label of a window as the whole text of a link.
#[must_use]
pub const fn window_label(window: TimeWindow) -> &'static str {
    match window {
        TimeWindow::Hour => "Last hour",
        TimeWindow::Day => "Last 24 hours",
        TimeWindow::Week => "Last 7 days",
    }
}

#[component]
fn OccurrencesContent(
    filter: OccurrenceFilter,
    page: ListPage<OccurrenceRow>,
    /// The name of the filter's job.
    job: Option<String>,
) -> impl IntoView {
    let list = RwSignal::new(None::<OccurrenceList>);
    let is_later = filter.before.is_some();
    let newest = address(&OccurrenceFilter { before: None, ..filter.clone() });
    let without_page = filter.clone();
    let older = move || {
        let next = list.get()?.next()?;
        let before = next.parse().ok()?;
        Some(address(&OccurrenceFilter { before: Some(before), ..without_page.clone() }))
    };
    let older_link = move || {
        older().map(|href| {
            view! {
                <a class="btn" href=href rel="next">
                    "Older"
                    <Icon name="chevron-right"/>
                </a>
            }
        })
    };
    let newest_link = is_later.then(|| {
        view! {
            <a class="btn" href=newest rel="prev">
                <Icon name="chevron-left"/>
                "Newest"
            </a>
        }
    });
    let one_job = job.clone().map(|name| {
        let href = address(&OccurrenceFilter { job_id: None, before: None, ..filter.clone() });
        view! {
            <nav class="chips" aria-label="Filter by job">
                <a class="chip" href=href aria-current="true">
                    <span>"Job: " {name}</span>
                    <Icon name="x"/>
                    <span class="sr-only">", show all jobs"</span>
                </a>
            </nav>
        }
    });
    let one_parent = filter.parent_id.map(|id| {
        let href = address(&OccurrenceFilter { parent_id: None, before: None, ..filter.clone() });
        view! {
            <nav class="chips" aria-label="Filter by parent">
                <a class="chip" href=href aria-current="true">
                    <span>"Enqueued by " {id.to_string()}</span>
                    <Icon name="x"/>
                    <span class="sr-only">", show occurrences of all origins"</span>
                </a>
            </nav>
        }
    });
    let meaning = filter.window.map(|window| {
        view! { <p class="muted">{format!("Occurrences that are open or ended in the {}.", window.label())}</p> }
    });
    let on_list = Callback::new(move |made| list.set(Some(made)));
    let of_empty = filter.clone();
    let table = view! {
        <OccurrenceTable
            filter
            page
            caption="Occurrences, newest first"
            empty=move || empty_state(&of_empty, job.as_deref())
            on_list
        />
    };
    view! {
        {one_job}
        {one_parent}
        {meaning}
        <div>{table}</div>
        <nav class="pager" aria-label="Pages">{newest_link}{older_link}</nav>
    }
}

fn empty_state(filter: &OccurrenceFilter, job: Option<&str>) -> AnyView {
    let without_page = OccurrenceFilter { before: None, ..filter.clone() };
    let removals = [
        (filter.before.is_some(), "Show the newest", without_page.clone()),
        (filter.status.is_some(), "Show all statuses", OccurrenceFilter { status: None, ..without_page.clone() }),
        (filter.delayed, "Show all", OccurrenceFilter { delayed: false, ..without_page.clone() }),
        (filter.parent_id.is_some(), "Show all origins", OccurrenceFilter { parent_id: None, ..without_page.clone() }),
        (filter.window.is_some(), "Show all times", OccurrenceFilter { window: None, ..without_page.clone() }),
        (filter.job_id.is_some(), "Show all jobs", OccurrenceFilter { job_id: None, ..without_page }),
    ];
    let links: Vec<_> = removals
        .into_iter()
        .filter(|(is_set, ..)| *is_set)
        .map(|(_, label, wider)| view! { <a class="btn" href=address(&wider)>{label}</a> })
        .collect();
    if links.is_empty() {
        return view! {
            <EmptyState
                icon="list-checks"
                title="No occurrences yet"
                text="Every run of a job is listed here. The first one appears when a job is due or is run manually."
            >
                <a class="btn btn-primary" href="/jobs">"Go to jobs"</a>
            </EmptyState>
        }
        .into_any();
    }
    let reason = reason_for_none(filter, job);
    let text = if filter.before.is_some() { reason } else { format!("{reason} New ones appear here automatically.") };
    view! {
        <EmptyState icon="filter" title="No occurrence matches this filter" text=text>
            {links}
        </EmptyState>
    }
    .into_any()
}
