//! The list of failures by cause. Failures of the same cause need one repair.

use leptos::{ev, html, prelude::*};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::{
    failures::{FailureCause, FailureFilter, FailureGroup},
    page::ListPage,
};

use super::{
    IDLE_REFRESH_INTERVAL, REFRESH_INTERVAL,
    display::{CauseBadge, cause_label},
    is_failure, state_chips, url,
};
use crate::{
    api::failures::failure_groups,
    components::{
        empty_state::EmptyState,
        filter_controls::{DrawnFilter, control_value},
        icon::Icon,
        live_rows::{LiveRows, is_in_use},
        table::{Number, Table, Text},
        time::Time,
    },
    format::{clip, count, plural},
    live::live_page,
};

/// The id of the table, used to detect whether the user works in it.
const GROUP_TABLE_ID: &str = "failure-groups";
/// The maximum length of an exception's first line in a row, in characters.
const NOTE_MAX_CHARS: usize = 160;
/// The maximum number of failures that the server counts.
const COUNTED_FAILURES_LIMIT: i64 = 20_000;

/// The list of causes with its filters.
#[component]
pub fn FailureGroupList(
    /// The filter of the list.
    filter: FailureFilter,
    /// The groups of this page.
    page: ListPage<FailureGroup>,
    /// The values that the form was last drawn with.
    drawn: DrawnFilter,
) -> impl IntoView {
    let rows = LiveRows::new(page, |group: &FailureGroup| group.fingerprint.clone());
    let request = filter.clone();
    live_page(
        REFRESH_INTERVAL,
        move || failure_groups(request.clone()),
        is_failure,
        move |read| rows.apply(read, is_in_use(GROUP_TABLE_ID)),
    )
    .every(IDLE_REFRESH_INTERVAL);

    let is_empty = Memo::new(move |_| rows.is_empty());
    // A link to a group keeps the filter except for cause and search text, which the group already determines.
    let below = FailureFilter { cause: None, text: None, after: None, ..filter.clone() };
    let body = rows.view(move |group| group_row(group, &below));
    let next = {
        let filter = filter.clone();
        move || {
            let after = rows.next()?;
            Some(url::failures_url("/failed", &FailureFilter { after: Some(after), ..filter.clone() }))
        }
    };
    let first =
        filter.after.is_some().then(|| url::failures_url("/failed", &FailureFilter { after: None, ..filter.clone() }));
    let is_bounded = move || {
        let counts = rows.shown().into_iter().map(|row| row.with(|group| group.count));
        counts.sum::<i64>() >= COUNTED_FAILURES_LIMIT
    };
    let total = move || {
        let causes = i64::try_from(rows.count()).unwrap_or(i64::MAX);
        let more = if is_bounded() { ", counted over the newest 20,000 failures" } else { "" };
        format!("{}{more}", plural(causes, "cause"))
    };
    let empty = empty_state(&filter);
    view! {
        <div class="stack">
            <FailureFilterBar filter drawn/>
            {rows.held_button("new group")}
            <div hidden=move || !is_empty.get()>{empty}</div>
            <Table
                caption="Failures by cause, highest count first"
                columns=[
                    Text("Failure"), Text("Job"), Text("Cause"), Number("Count"), Text("First seen"), Text("Last seen"),
                ]
                id=GROUP_TABLE_ID
                hidden=move || is_empty.get()
            >
                {body}
            </Table>
            <nav class="pager" aria-label="Pages">
                <span>{total}</span>
                {first.map(|href| view! { <a class="btn btn-small" href=href>"First page"</a> })}
                {move || next().map(|href| view! { <a class="btn btn-small" rel="next" href=href>"Next page"</a> })}
            </nav>
        </div>
    }
}

fn group_row(group: RwSignal<FailureGroup>, below: &FailureFilter) -> AnyView {
    let fingerprint = group.with_untracked(|group| group.fingerprint.clone());
    let href = url::failures_url(&format!("/failed/{fingerprint}"), below);
    // The newest failure decides these, so they change as seldom as the numbers change often.
    let newest = Memo::new(move |_| group.with(|group| (group.job_id, group.job_name.clone(), group.jobs)));
    let note = Memo::new(move |_| {
        group.with(
            |group| {
                if group.note.is_empty() { "No message".to_owned() } else { clip(&group.note, NOTE_MAX_CHARS) }
            },
        )
    });
    let cause = Memo::new(move |_| group.with(|group| group.cause));
    let jobs = move || {
        let (job_id, job_name, jobs) = newest.get();
        let others = (jobs > 1).then(|| format!(" and {}", plural(jobs - 1, "other job")));
        view! {
            <a href=format!("/jobs/{job_id}")>{job_name}</a>
            {others}
        }
    };
    view! {
        <tr role="row" data-fingerprint=fingerprint>
            <th role="rowheader" scope="row" data-label="Failure">
                <a class="row-link" href=href>{move || note.get()}</a>
            </th>
            <td role="cell" data-label="Job">{jobs}</td>
            <td role="cell" data-label="Cause">{move || view! { <CauseBadge cause=cause.get()/> }}</td>
            <td role="cell" data-label="Count" class="num">{move || count(group.with(|group| group.count))}</td>
            <td role="cell" data-label="First seen">
                <Time at=Signal::derive(move || group.with(|group| group.first_at)) relative=true/>
            </td>
            <td role="cell" data-label="Last seen">
                <Time at=Signal::derive(move || group.with(|group| group.last_at)) relative=true/>
            </td>
        </tr>
    }
    .into_any()
}

/// The filters: search text, cause, state and job.
#[component]
fn FailureFilterBar(filter: FailureFilter, drawn: DrawnFilter) -> impl IntoView {
    let text = filter.text.clone().unwrap_or_default();
    let options: Vec<_> = FailureCause::ALL
        .into_iter()
        .map(|cause| view! { <option value=cause.as_str() selected=filter.cause == Some(cause)>{cause_label(cause)}</option> })
        .collect();
    let hidden = [
        (
            "state",
            url::STATE_FILTERS
                .into_iter()
                .find(|(_, _, state)| *state == filter.resolved)
                .map(|(word, _, _)| word.to_owned()),
        ),
        ("job", filter.job_id.map(|id| id.to_string())),
    ];
    let hidden: Vec<_> = hidden
        .into_iter()
        .filter_map(|(name, value)| Some(view! { <input type="hidden" name=name value=value?/> }))
        .collect();
    let chips = {
        let filter = filter.clone();
        state_chips(filter.resolved, move |resolved| {
            url::failures_url("/failed", &FailureFilter { resolved, after: None, ..filter.clone() })
        })
    };
    let one_job = filter.job_id.map(|_| {
        let href = url::failures_url("/failed", &FailureFilter { job_id: None, after: None, ..filter.clone() });
        view! {
            <a class="chip" href=href aria-current="true">
                "One job only"
                <Icon name="x"/>
                <span class="sr-only">", show all jobs"</span>
            </a>
        }
    });
    let form = NodeRef::<html::Form>::new();
    let cause = filter.cause.map(FailureCause::as_str).unwrap_or_default().to_owned();
    drawn.show(form, vec![("q", text.clone()), ("cause", cause)]);
    let navigate = use_navigate();
    let search = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let text = Some(control_value(form, "q").trim().to_owned()).filter(|text| !text.is_empty());
        let cause = FailureCause::parse(&control_value(form, "cause"));
        let wanted = FailureFilter { text, cause, after: None, ..filter.clone() };
        navigate(&url::failures_url("/failed", &wanted), NavigateOptions::default());
    };
    view! {
        <div class="filterbar">
            <form method="get" action="/failed" class="filterbar grow" role="search" on:submit=search node_ref=form>
                <div class="field grow">
                    <label class="sr-only" for="q">"Search failures"</label>
                    <input
                        type="search"
                        id="q"
                        name="q"
                        value=text
                        placeholder="Job or exception"
                        autocomplete="off"
                        maxlength="200"
                    />
                </div>
                <div class="field">
                    <label class="sr-only" for="cause">"Cause"</label>
                    <select id="cause" name="cause">
                        <option value="">"Any cause"</option>
                        {options}
                    </select>
                </div>
                {hidden}
                <button type="submit" class="btn">
                    <Icon name="search"/>
                    "Search"
                </button>
            </form>
            {chips}
            {one_job}
        </div>
    }
}

fn empty_state(filter: &FailureFilter) -> AnyView {
    let is_narrow =
        filter.job_id.is_some() || filter.cause.is_some() || filter.text.is_some() || filter.after.is_some();
    if is_narrow || filter.resolved == Some(true) {
        let text = if filter.resolved == Some(false) {
            "Only open failures are searched. Choose Resolved or All to search the others."
        } else {
            "The search covers job names and exceptions."
        };
        view! {
            <EmptyState icon="search" title="No failure matches" text>
                <a class="btn" href="/failed">"Show all open failures"</a>
            </EmptyState>
        }
        .into_any()
    } else {
        view! {
            <EmptyState
                icon="circle-check"
                title="No open failures"
                text="An occurrence that fails its last attempt is kept here until it is retried or resolved."
            >
                <a class="btn" href="/failed?state=all">"Show all failures"</a>
            </EmptyState>
        }
        .into_any()
    }
}
