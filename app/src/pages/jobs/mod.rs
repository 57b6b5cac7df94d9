//! The list of jobs: job type, schedule, next run and the last ten occurrences of each.

mod list;

use leptos::{ev, html, prelude::*};
use leptos_meta::Title;
use leptos_router::{
    NavigateOptions,
    hooks::{use_navigate, use_query_map},
};
use milvaion_api::{
    page::{JobFilter, ListPage},
    permissions::Permission,
    views::JobRow,
};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};

use self::list::JobList;
use super::job::{
    actions::{ICON_BUTTON_CLASS, PauseOrResume, RunNow},
    definition::ActiveBadge,
};
use crate::{
    api::{jobs::jobs, session::query_value},
    components::{
        empty_state::EmptyState, icon::Icon, loading::render_page, page_header::PageHeader, session_context::may,
        status_badge::icon_of, time::Time,
    },
    format::plural,
};

/// The number of jobs on one page.
const JOBS_PER_PAGE: u32 = 50;

/// `/jobs?q=&state=&after=`.
#[component]
pub fn JobsPage() -> impl IntoView {
    let query = use_query_map();
    let request = Memo::new(move |_| {
        query.with(|query| {
            let part = |name: &str| query.get(name).filter(|text| !text.is_empty());
            JobFilter {
                text: part("q"),
                active: part("state").and_then(|state| match state.as_str() {
                    "active" => Some(true),
                    "paused" => Some(false),
                    _ => None,
                }),
                after: part("after"),
                limit: JOBS_PER_PAGE,
            }
        })
    });
    let data = Resource::new_blocking(
        move || request.get(),
        |filter| async move { Ok((filter.clone(), jobs(filter).await?)) },
    );
    render_page(data, |(filter, found): (JobFilter, ListPage<JobRow>)| view! { <JobsContent filter found/> })
}

#[component]
fn JobsContent(filter: JobFilter, found: ListPage<JobRow>) -> impl IntoView {
    let list = JobList::new(found);
    list.keep_current(filter.clone());
    let may_define = may(Permission::DefineJob);
    let may_run = may(Permission::RunJob);
    let is_filtered = filter.text.is_some() || filter.active.is_some();
    let is_first = filter.after.is_none();
    let more = {
        let filter = filter.clone();
        move || list.next.get().map(|next| address(&filter, Some(&next)))
    };
    let first = (!is_first).then(|| address(&filter, None));
    let empty = if let Some(href) = first.clone() {
        view! {
            <EmptyState icon="briefcase-business" title="Nothing on this page" text="The jobs of this page were deleted or renamed.">
                <a class="btn" href=href>"Go to the first page"</a>
            </EmptyState>
        }
        .into_any()
    } else if is_filtered {
        view! {
            <EmptyState icon="search" title="No job matches" text="The search covers names, descriptions and tags.">
                <a class="btn" href="/jobs">"Show all jobs"</a>
            </EmptyState>
        }
        .into_any()
    } else {
        let text = if may_define {
            "A job defines what a worker runs, its input and its schedule."
        } else {
            "A job defines what a worker runs, its input and its schedule. An Operator or an Admin can create jobs."
        };
        view! {
            <EmptyState icon="briefcase-business" title="No jobs yet" text>
                {may_define.then(|| view! { <a class="btn btn-primary" href="/jobs/new">"Create the first job"</a> })}
            </EmptyState>
        }
        .into_any()
    };
    let here = StoredValue::new(address(&filter, filter.after.as_deref()));
    let is_empty = Memo::new(move |_| list.rows.with(Vec::is_empty));
    let shown = move || plural(list.rows.with(|rows| i64::try_from(rows.len()).unwrap_or(i64::MAX)), "job");

    view! {
        <Title text="Jobs"/>
        <PageHeader title="Jobs">
            {may_define
                .then(|| {
                    view! {
                        <a class="btn btn-primary" href="/jobs/new">
                            <Icon name="plus"/>
                            "New job"
                        </a>
                    }
                })}
        </PageHeader>
        <div class="stack">
            <JobFilterBar filter=filter.clone()/>
            <div hidden=move || !is_empty.get()>{empty}</div>
            <div class="table-wrap" hidden=move || is_empty.get()>
                <table class="table table-cards">
                    <caption class="sr-only">"Jobs by name"</caption>
                    <thead>
                        <tr>
                            <th scope="col">"Job"</th>
                            <th scope="col">"Job type"</th>
                            <th scope="col">"Schedule"</th>
                            <th scope="col">"Next run"</th>
                            <th scope="col">"Last 10 runs"</th>
                            <th scope="col">"State"</th>
                            {may_run
                                .then(|| {
                                    view! {
                                        <th scope="col">
                                            <span class="sr-only">"Actions"</span>
                                        </th>
                                    }
                                })}
                        </tr>
                    </thead>
                    <tbody>
                        <For each=move || list.rows.get() key=|(id, _)| *id let:entry>
                            <JobTableRow row=entry.1 back=here.get_value() may_run may_define/>
                        </For>
                    </tbody>
                </table>
            </div>
            <nav class="pager" aria-label="Pages">
                <span>{shown}</span>
                {first.map(|href| view! { <a class="btn btn-small" href=href>"First page"</a> })}
                {move || more().map(|href| view! { <a class="btn btn-small" rel="next" href=href>"Next page"</a> })}
            </nav>
        </div>
    }
}

/// Returns the address of the list with this filter, starting after the cursor `after`.
fn address(filter: &JobFilter, after: Option<&str>) -> String {
    let state = filter.active.map(|active| if active { "active" } else { "paused" });
    let parts = [("q", filter.text.as_deref()), ("state", state), ("after", after)];
    let query: Vec<String> =
        parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", query_value(value?)))).collect();
    if query.is_empty() { "/jobs".into() } else { format!("/jobs?{}", query.join("&")) }
}

#[component]
fn JobFilterBar(filter: JobFilter) -> impl IntoView {
    let text = filter.text.clone().unwrap_or_default();
    let chips: Vec<_> = [("All", None), ("Active", Some(true)), ("Paused", Some(false))]
        .into_iter()
        .map(|(word, active)| {
            let href = address(&JobFilter { active, ..filter.clone() }, None);
            let current = (filter.active == active).then_some("true");
            view! { <a class="chip" href=href aria-current=current>{word}</a> }
        })
        .collect();
    let state = filter.active.map(|active| {
        view! { <input type="hidden" name="state" value=if active { "active" } else { "paused" }/> }
    });
    let field = NodeRef::<html::Input>::new();
    let navigate = use_navigate();
    let search = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let text = field.get_untracked().map(|field| field.value().trim().to_owned()).filter(|text| !text.is_empty());
        navigate(&address(&JobFilter { text, ..filter.clone() }, None), NavigateOptions::default());
    };
    view! {
        <div class="filterbar">
            <form method="get" action="/jobs" class="cluster grow" role="search" on:submit=search>
                <div class="field grow">
                    <label class="sr-only" for="q">"Search jobs"</label>
                    <input
                        type="search"
                        id="q"
                        name="q"
                        value=text.clone()
                        prop:value=text
                        placeholder="Name, description or tag"
                        autocomplete="off"
                        maxlength="200"
                        node_ref=field
                    />
                </div>
                {state}
                <button type="submit" class="btn">
                    <Icon name="search"/>
                    "Search"
                </button>
            </form>
            <div class="chips" role="group" aria-label="State">{chips}</div>
        </div>
    }
}

#[component]
fn JobTableRow(row: ArcRwSignal<JobRow>, back: String, may_run: bool, may_define: bool) -> impl IntoView {
    let row = RwSignal::from(row);
    let id = row.with_untracked(|row| row.id);
    let name = Signal::derive(move || row.with(|row| row.display_name.clone()));
    let is_active = Signal::derive(move || row.with(|row| row.is_active));
    let tags = move || {
        let tags = row.with(|row| row.tags.clone());
        let chips: Vec<_> = tags.into_iter().map(|tag| view! { <li class="chip">{tag}</li> }).collect();
        (!chips.is_empty()).then(|| view! { <ul class="chips" aria-label="Tags">{chips}</ul> })
    };
    let no_worker = move || {
        (!row.with(|row| row.worker_alive)).then(|| {
            view! {
                <span class="badge" data-status="unknown">
                    <Icon name="wifi-off"/>
                    <span>"No live worker"</span>
                </span>
            }
        })
    };
    let next = move || match row.with(|row| row.next_fire_at) {
        Some(at) => view! {
            <div>
                <div><Time at=at relative=true/></div>
                <div class="muted"><Time at=at/></div>
            </div>
        }
        .into_any(),
        None => view! { <span class="muted">"None"</span> }.into_any(),
    };
    let strip = move || {
        let recent = row.with(|row| row.recent.clone());
        if recent.is_empty() {
            return view! { <span class="muted">"No runs yet"</span> }.into_any();
        }
        let marks: Vec<_> = recent.into_iter().rev().map(mark).collect();
        view! { <span class="strip" role="group" aria-label="Last 10 runs, oldest first">{marks}</span> }.into_any()
    };
    let set_active = Callback::new(move |active| {
        let _ = row.try_update(|row| row.is_active = active);
    });
    view! {
        <tr data-id=id.to_string()>
            <th scope="row" data-label="Job">
                <a class="row-link" href=format!("/jobs/{id}")>{move || name.get()}</a>
                {tags}
            </th>
            <td data-label="Job type">
                <span class="mono">{move || row.with(|row| row.job_type.clone())}</span>
                " on "
                <span class="mono">{move || row.with(|row| row.worker_id.clone())}</span>
                " "
                {no_worker}
            </td>
            <td data-label="Schedule">{move || row.with(|row| row.schedule_words.clone())}</td>
            <td data-label="Next run">{next}</td>
            <td data-label="Last 10 runs">{strip}</td>
            <td data-label="State">
                <ActiveBadge is_active/>
            </td>
            {may_run
                .then(|| {
                    view! {
                        <td class="row-actions">
                            <span class="cluster">
                                <RunNow id name class=ICON_BUTTON_CLASS/>
                                {may_define
                                    .then(|| {
                                        view! {
                                            <PauseOrResume
                                                id
                                                name
                                                is_active
                                                on_change=set_active
                                                back=back
                                                class=ICON_BUTTON_CLASS
                                            />
                                        }
                                    })}
                            </span>
                        </td>
                    }
                })}
        </tr>
    }
}

/// Draws one of the last ten occurrences: an icon with an accessible name that links to the occurrence.
fn mark((id, status): (OccurrenceId, OccurrenceStatus)) -> impl IntoView {
    let created = crate::format::utc(id.created_at());
    let words = format!("{status}, {created}");
    view! {
        <a href=format!("/occurrences/{id}") data-status=status.slug() aria-label=words.clone() title=words>
            <Icon name=icon_of(status)/>
        </a>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_address_keeps_the_filter() {
        let filter = JobFilter { text: Some("a&b".into()), active: Some(false), ..JobFilter::default() };
        assert_eq!(address(&filter, Some("x/1")), "/jobs?q=a%26b&state=paused&after=x/1");
        assert_eq!(address(&JobFilter::default(), None), "/jobs");
    }
}
