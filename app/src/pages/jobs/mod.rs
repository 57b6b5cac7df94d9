//! The list of jobs: job type, state, schedule, next run and the last ten occurrences of each.

mod list;

use chrono::{DateTime, Utc};
use leptos::{ev, html, prelude::*};
use leptos_meta::Title;
use leptos_router::{NavigateOptions, hooks::use_navigate, params::ParamsMap};
use milvaion_api::{
    page::{JobFilter, ListPage},
    permissions::Permission,
    views::JobRow,
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

use self::list::{JOB_TABLE_ID, JobList};
use super::job::{
    actions::{ICON_BUTTON_CLASS, PauseOrResume, RunNow},
    definition::ActiveBadge,
};
use crate::{
    api::jobs::jobs,
    components::{
        action_error::{ActionError, LastError},
        cluster_state::use_cluster_pause,
        empty_state::EmptyState,
        filter_controls::{DrawnFilter, control_value},
        filter_error::{render_filtered, use_filter},
        icon::{Icon, LiveIcon},
        page_header::PageHeader,
        query_reader::{InvalidFilter, QueryReader, filter_address, parameter},
        session_context::may,
        status_badge::icon_of,
        table::{Actions, Table, Text},
        tag_list::TagList,
        time::{Countdown, Time, use_page_clock},
        waiting_changes::WaitingChangesButton,
    },
    format::plural,
};

/// The number of jobs on one page.
const JOBS_PER_PAGE: u32 = 50;

/// `/jobs?q=&tag=&state=&after=`. A value that cannot be read yields an error and no rows.
#[component]
pub fn JobsPage() -> impl IntoView {
    let drawn = DrawnFilter::new();
    let read = |filter: JobFilter| async move { Ok((filter.clone(), jobs(filter).await?)) };
    render_filtered(use_filter(read_filter), read, move |found| match found {
        Ok((filter, found)) => view! { <JobsContent filter found drawn/> }.into_any(),
        Err(notice) => view! {
            <Title text="Jobs"/>
            <PageHeader title="Jobs"/>
            {notice}
        }
        .into_any(),
    })
}

/// Reads the filter from the parameters of the address.
fn read_filter(query: &ParamsMap) -> Result<JobFilter, InvalidFilter> {
    let mut reader = QueryReader::of_form(query);
    let filter = JobFilter {
        text: reader.text("q"),
        tag: reader.text("tag"),
        active: reader.read("state", "Use active or paused.", |state| match state {
            "active" => Some(true),
            "paused" => Some(false),
            _ => None,
        }),
        after: reader.read("after", "Start at the first page.", |after| {
            let is_cursor = after.split_once('~').is_some_and(|(id, _)| id.parse::<JobId>().is_ok());
            is_cursor.then(|| after.to_owned())
        }),
        limit: JOBS_PER_PAGE,
    };
    reader.finish("/jobs", filter)
}

#[component]
fn JobsContent(filter: JobFilter, found: ListPage<JobRow>, drawn: DrawnFilter) -> impl IntoView {
    let list = JobList::new(found);
    list.keep_current(filter.clone());
    let may_define = may(Permission::DefineJob);
    let may_run = may(Permission::RunJob);
    let is_filtered = filter.text.is_some() || filter.tag.is_some() || filter.active.is_some();
    let is_first = filter.after.is_none();
    let more = {
        let filter = filter.clone();
        move || list.rows.next().map(|next| address(&filter, Some(&next)))
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
    let is_empty = Memo::new(move |_| list.rows.is_empty());
    let shown = move || plural(i64::try_from(list.rows.count()).unwrap_or(i64::MAX), "job");

    let mut columns = vec![Text("Job"), Text("Schedule"), Text("Next run"), Text("Last 10 runs")];
    columns.extend(may_run.then_some(Actions));
    let waiting = Memo::new(move |_| list.rows.is_held().then(|| "The list has changed".to_owned()));

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
            <JobFilterBar filter=filter.clone() drawn/>
            <div hidden=move || !is_empty.get()>{empty}</div>
            <WaitingChangesButton changes=waiting on_show=move |()| list.rows.show_held()/>
            <Table
                caption="Jobs by name"
                columns
                class="table table-cards table-jobs"
                box_id=JOB_TABLE_ID
                hidden=move || is_empty.get()
            >
                {list.rows.view(move |row| {
                    view! { <JobTableRow list row back=here.get_value() may_run may_define/> }.into_any()
                })}
            </Table>
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
    let (text, tag) = (filter.text.as_ref(), filter.tag.as_ref());
    let parameters =
        [("q", parameter(text)), ("tag", parameter(tag)), ("state", parameter(state)), ("after", parameter(after))];
    filter_address("/jobs", &parameters)
}

#[component]
fn JobFilterBar(filter: JobFilter, drawn: DrawnFilter) -> impl IntoView {
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
    let tag = filter.tag.clone().map(|tag| view! { <input type="hidden" name="tag" value=tag/> });
    let one_tag = filter.tag.clone().map(|tag| {
        let href = address(&JobFilter { tag: None, ..filter.clone() }, None);
        view! {
            <nav class="chips" aria-label="Filter by tag">
                <a class="chip" href=href aria-current="true">
                    <span>"Tag: " {tag}</span>
                    <Icon name="x"/>
                    <span class="sr-only">", show jobs of all tags"</span>
                </a>
            </nav>
        }
    });
    let form = NodeRef::<html::Form>::new();
    drawn.show(form, vec![("q", text.clone())]);
    let navigate = use_navigate();
    let search = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let text = Some(control_value(form, "q").trim().to_owned()).filter(|text| !text.is_empty());
        navigate(&address(&JobFilter { text, ..filter.clone() }, None), NavigateOptions::default());
    };
    view! {
        <div class="filterbar">
            <form method="get" action="/jobs" class="cluster grow" role="search" on:submit=search node_ref=form>
                <div class="field grow">
                    <label class="sr-only" for="q">"Search jobs"</label>
                    <input
                        type="search"
                        id="q"
                        name="q"
                        value=text
                        placeholder="Name, description or tag"
                        autocomplete="off"
                        maxlength="200"
                    />
                </div>
                {tag}
                {state}
                <button type="submit" class="btn">
                    <Icon name="search"/>
                    "Search"
                </button>
            </form>
            <div class="chips" role="group" aria-label="State">{chips}</div>
            {one_tag}
        </div>
    }
}

#[component]
fn JobTableRow(list: JobList, row: RwSignal<JobRow>, back: String, may_run: bool, may_define: bool) -> impl IntoView {
    let id = row.with_untracked(|row| row.id);
    let name = Signal::derive(move || row.with(|row| row.display_name.clone()));
    let is_active = Signal::derive(move || row.with(|row| row.is_active));
    // Memos, so that a new mark in the strip redraws nothing else.
    let tags = Memo::new(move |_| row.with(|row| row.tags.clone()));
    let next_due = Memo::new(move |_| row.with(|row| row.next_fire_at));
    let has_worker = Memo::new(move |_| row.with(|row| row.worker_alive));
    let tags = move || {
        let tags = tags.get();
        (!tags.is_empty()).then(|| view! { <TagList tags/> })
    };
    let no_worker = move || {
        (!has_worker.get()).then(|| {
            view! {
                <span class="badge" data-status="unknown">
                    <Icon name="wifi-off"/>
                    <span>"No live worker"</span>
                </span>
            }
        })
    };
    let (run_error, pause_error) = (LastError::of("Run now"), LastError::of("Pause or resume"));
    let set_active = Callback::new(move |state| list.show_state(id, state));
    view! {
        <tr role="row" data-id=id.to_string()>
            <th role="rowheader" scope="row" data-label="Job">
                <a class="row-link" href=format!("/jobs/{id}")>{move || name.get()}</a>
                <div class="row-note">
                    <span class="mono">{move || row.with(|row| row.job_type.clone())}</span>
                    " on "
                    <span class="mono">{move || row.with(|row| row.worker_id.clone())}</span>
                </div>
                <div class="job-marks">
                    <ActiveBadge is_active/>
                    {no_worker}
                    {tags}
                </div>
                {may_run.then(|| view! { <ActionError error=run_error/> })}
                {may_define.then(|| view! { <ActionError error=pause_error/> })}
            </th>
            <td role="cell" data-label="Schedule" class="schedule-words">
                {move || row.with(|row| row.schedule_words.clone())}
            </td>
            <td role="cell" data-label="Next run" class="next-run"><NextRun at=next_due/></td>
            <td role="cell" data-label="Last 10 runs"><RunStrip row/></td>
            {may_run
                .then(|| {
                    view! {
                        <td role="cell" class="row-actions">
                            <span class="cluster">
                                <RunNow id name error=run_error class=ICON_BUTTON_CLASS/>
                                {may_define
                                    .then(|| {
                                        view! {
                                            <PauseOrResume
                                                id
                                                name
                                                is_active
                                                on_change=set_active
                                                error=pause_error
                                                back=back
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

/// The next due time. While the cluster is paused, no due time starts a run, so no countdown is shown.
#[component]
fn NextRun(at: Memo<Option<DateTime<Utc>>>) -> impl IntoView {
    let pause = use_cluster_pause();
    let is_paused = Memo::new(move |_| pause.with(Option::is_some));
    move || match at.get() {
        None => view! { <span class="muted">"None"</span> }.into_any(),
        Some(at) if is_paused.get() => view! {
            <div>
                <div>"When the cluster resumes"</div>
                <div class="muted">"Due " <Time at=at/></div>
            </div>
        }
        .into_any(),
        Some(at) => view! {
            <div>
                <div><Countdown at=at/></div>
                <div class="muted"><Time at=at/></div>
            </div>
        }
        .into_any(),
    }
}

/// The last ten occurrences. Each mark is kept while it is in the strip, so that it keeps the focus.
#[component]
fn RunStrip(row: RwSignal<JobRow>) -> impl IntoView {
    let recent = Memo::new(move |_| row.with(|row| row.recent.clone()));
    let is_empty = Memo::new(move |_| recent.with(Vec::is_empty));
    let ids = move || recent.with(|recent| recent.iter().rev().map(|(id, _)| *id).collect::<Vec<_>>());
    view! {
        <span class="muted" hidden=move || !is_empty.get()>"No runs yet"</span>
        <span class="strip" role="group" aria-label="Last 10 runs, oldest first" hidden=move || is_empty.get()>
            <For each=ids key=|id| *id let:id>
                <RunMark id recent/>
            </For>
        </span>
    }
}

/// One of the last ten occurrences: an icon with an accessible name that links to the occurrence.
#[component]
fn RunMark(id: OccurrenceId, recent: Memo<Vec<(OccurrenceId, OccurrenceStatus)>>) -> impl IntoView {
    let clock = use_page_clock();
    let status = Memo::new(move |before: Option<&OccurrenceStatus>| {
        let found = recent.with(|recent| recent.iter().find(|(other, _)| *other == id).map(|(_, status)| *status));
        // A mark that leaves the strip keeps its status until it is gone.
        found.or(before.copied()).unwrap_or(OccurrenceStatus::Unknown)
    });
    let words = Signal::derive(move || format!("{}, {}", status.get(), clock.text(id.created_at())));
    view! {
        <a
            href=format!("/occurrences/{id}")
            data-status=move || status.get().slug()
            aria-label=move || words.get()
            title=move || words.get()
        >
            <LiveIcon name=Signal::derive(move || icon_of(status.get()))/>
        </a>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_address_keeps_the_filter() {
        let filter = JobFilter {
            text: Some("a&b".into()),
            tag: Some("c d".into()),
            active: Some(false),
            ..JobFilter::default()
        };
        assert_eq!(address(&filter, Some("x/1")), "/jobs?q=a%26b&tag=c%20d&state=paused&after=x/1");
        assert_eq!(address(&JobFilter::default(), None), "/jobs");
    }

    #[test]
    fn unreadable_filter_never_widens_the_list() {
        let read = |state: &str, after: &str| {
            read_filter(&[("q", "mail"), ("state", state), ("after", after)].into_iter().collect())
        };
        let cursor = "00000000-0000-7000-8000-000000000001~a~b";
        let filter = read("paused", cursor).expect("a valid filter");
        assert_eq!((filter.active, filter.after.as_deref()), (Some(false), Some(cursor)));
        assert_eq!(read("", "").map(|filter| filter.active), Ok(None));
        let invalid = read("Paused", "page-2").expect_err("an error");
        assert_eq!(invalid.errors.iter().map(|error| error.parameter).collect::<Vec<_>>(), ["state", "after"]);
        assert_eq!(invalid.reset, "/jobs?q=mail");
    }
}
