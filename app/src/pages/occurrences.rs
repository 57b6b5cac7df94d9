//! The list of occurrences: newest first, one page at a time, with live updates on the first page.

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_query_map;
use milvaion_api::{
    page::{ListPage, OccurrenceFilter},
    views::OccurrenceRow,
};
use milvaion_protocol::status::{ALL_STATUSES, OccurrenceStatus};

use crate::{
    api::occurrences::list_occurrences,
    components::{
        empty_state::EmptyState, icon::Icon, loading::render_page, occurrence_list::OccurrenceList,
        occurrence_table::OccurrenceTable, page_header::PageHeader, status_badge::icon_of,
    },
};

/// `/occurrences`. The filter is in the address: `status`, `job` and `before`.
#[component]
pub fn OccurrencesPage() -> impl IntoView {
    let query = use_query_map();
    let filter = Memo::new(move |_| {
        query.with(|query| OccurrenceFilter {
            status: query.get_str("status").and_then(OccurrenceStatus::from_slug),
            job_id: query.get_str("job").and_then(|id| id.parse().ok()),
            before: query.get_str("before").and_then(|id| id.parse().ok()),
            ..OccurrenceFilter::default()
        })
    });
    let data = Resource::new_blocking(
        move || filter.get(),
        |filter| async move { list_occurrences(filter.clone()).await.map(|page| (filter, page)) },
    );
    view! {
        <Title text="Occurrences"/>
        <PageHeader title="Occurrences" sub="All runs of all jobs, newest first."/>
        <StatusChips filter/>
        {render_page(data, |(filter, page)| view! { <OccurrencesContent filter page/> })}
    }
}

/// Returns the address of the list with this filter.
fn address(filter: &OccurrenceFilter) -> String {
    let parts: Vec<String> = [
        filter.status.map(|status| format!("status={}", status.slug())),
        filter.job_id.map(|id| format!("job={id}")),
        filter.before.map(|id| format!("before={id}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { "/occurrences".into() } else { format!("/occurrences?{}", parts.join("&")) }
}

#[component]
fn StatusChips(filter: Memo<OccurrenceFilter>) -> impl IntoView {
    let chip = move |status: Option<OccurrenceStatus>| {
        let href = move || {
            let now = filter.get();
            address(&OccurrenceFilter { status, before: None, ..now })
        };
        let is_current = move || filter.with(|filter| filter.status == status);
        view! {
            <a class="chip" href=href aria-current=move || is_current().then_some("true")>
                {status.map(|status| view! { <Icon name=icon_of(status)/> })}
                {status.map_or("All", OccurrenceStatus::label)}
            </a>
        }
    };
    let chips = ALL_STATUSES.into_iter().map(|status| chip(Some(status))).collect::<Vec<_>>();
    let one_job = move || {
        filter.get().job_id.map(|_| {
            let href = move || {
                let now = filter.get();
                address(&OccurrenceFilter { job_id: None, before: None, ..now })
            };
            view! {
                <a class="chip" href=href aria-current="true">
                    "One job only"
                    <Icon name="x"/>
                    <span class="sr-only">", show all jobs"</span>
                </a>
            }
        })
    };
    view! {
        <nav class="chips" aria-label="Filter by status">
            {chip(None)}
            {chips}
            {one_job}
        </nav>
    }
}

#[component]
fn OccurrencesContent(filter: OccurrenceFilter, page: ListPage<OccurrenceRow>) -> impl IntoView {
    let list = RwSignal::new(None::<OccurrenceList>);
    let is_filtered = filter.status.is_some() || filter.job_id.is_some() || filter.before.is_some();
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
    let on_list = Callback::new(move |made| list.set(Some(made)));
    let table = view! {
        <OccurrenceTable filter page caption="Occurrences, newest first" empty=move || empty_state(is_filtered) on_list/>
    };
    view! {
        {table}
        <nav class="pager" aria-label="Pages">{newest_link}{older_link}</nav>
    }
}

fn empty_state(is_filtered: bool) -> AnyView {
    if is_filtered {
        view! {
            <EmptyState
                icon="filter"
                title="No occurrence matches this filter"
                text="Matching occurrences appear here automatically. Remove the filter to see all occurrences."
            >
                <a class="btn" href="/occurrences">"Show all"</a>
            </EmptyState>
        }
        .into_any()
    } else {
        view! {
            <EmptyState
                icon="list-checks"
                title="No occurrences yet"
                text="Every run of a job is listed here. The first one appears when a job is due or is run manually."
            >
                <a class="btn btn-primary" href="/jobs">"Go to jobs"</a>
            </EmptyState>
        }
        .into_any()
    }
}
