//! All failures of one cause, with bulk actions that retry or resolve some or all of them.

use std::collections::BTreeSet;

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    failures::{FailureFilter, FailureGroup, FailureRow},
    page::ListPage,
    permissions::Permission,
};

use super::{
    IDLE_REFRESH_INTERVAL, REFRESH_INTERVAL,
    bulk_actions::{RowSelection, SelectAllCheckbox},
    display::{CauseBadge, cause_description},
    failure_row::failure_row,
    is_failure, load_group,
    settle_form::BulkSettleForm,
    state_chips, url,
};
use crate::{
    api::{failures::list_failures, session::FlashView},
    components::{
        empty_state::EmptyState,
        form::ErrorSummary,
        live_rows::{LiveRows, is_in_use},
        page_header::{Breadcrumbs, PageHeader},
        session_context::may,
        table::{Number, Table, Text},
        time::Time,
    },
    error::AppError,
    format::{capitalized, clip, count, plural},
    live::{ThrottledRefresh, live_page},
};

/// The id of the table, used to detect whether the user works in it.
const FAILURE_TABLE_ID: &str = "failures";
/// The maximum length of the exception's first line in the heading, in characters.
const HEADING_MAX_CHARS: usize = 120;

/// `/failed/:fingerprint`.
#[component]
pub fn FailureGroupDetail(
    /// The group.
    group: FailureGroup,
    /// The filter of the list.
    filter: FailureFilter,
    /// The failures of this page.
    page: ListPage<FailureRow>,
    /// The message of the previous form post.
    flash: FlashView,
) -> impl IntoView {
    let heading = if group.note.is_empty() { "No message".to_owned() } else { clip(&group.note, HEADING_MAX_CHARS) };
    let path = format!("/failed/{}", group.fingerprint);
    let group = RwSignal::new(group);
    let rows = LiveRows::new(page, |row: &FailureRow| row.occurrence_id.to_string());
    let chosen = RowSelection::new();
    let request = filter.clone();
    let refresh = live_page(
        REFRESH_INTERVAL,
        move || read_again(request.clone(), rows),
        is_failure,
        move |(read_group, read, settled): (_, _, Vec<_>)| {
            group.set(read_group);
            // Before the patch, which ends the selection of a failure that another user settled.
            let hold = chosen.count() > 0 || is_in_use(FAILURE_TABLE_ID);
            rows.patch(settled);
            rows.apply(read, hold);
        },
    )
    .every(IDLE_REFRESH_INTERVAL);

    let here = StoredValue::new(url::failures_url(&path, &filter));
    let at = {
        let (path, filter) = (path.clone(), filter.clone());
        move |after: Option<String>| url::failures_url(&path, &FailureFilter { after, ..filter.clone() })
    };
    let chips = {
        let filter = filter.clone();
        state_chips(filter.resolved, move |resolved| {
            url::failures_url(&path, &FailureFilter { resolved, after: None, ..filter.clone() })
        })
    };
    let first = filter.after.is_some().then(|| at(None));
    let next = move || rows.next().map(|next| at(Some(next)));
    let whole: Vec<_> = flash
        .error
        .iter()
        .cloned()
        .chain(flash.fields.iter().filter(|error| error.field != "note").map(|error| capitalized(&error.message)))
        .map(|text| (String::new(), text))
        .collect();
    view! {
        <Title text=format!("{heading} · Failures")/>
        <Breadcrumbs steps=vec![("/failed".into(), "Failures".into())] here="One cause"/>
        <PageHeader title=heading/>
        <ErrorSummary errors=whole/>
        <div class="stack">
            <FailureGroupSummary group/>
            <div class="filterbar">{chips}</div>
            <FailureTable group filter rows chosen here flash refresh/>
            <nav class="pager" aria-label="Pages">
                {first.map(|href| view! { <a class="btn btn-small" href=href>"First page"</a> })}
                {move || next().map(|href| view! { <a class="btn btn-small" rel="next" href=href>"Next page"</a> })}
            </nav>
        </div>
    }
}

/// Reads the group and its page again. The last part has the failures that another user settled, which the list of open
/// failures no longer has: while the list is in use they stay, and must not look open.
async fn read_again(
    filter: FailureFilter,
    rows: LiveRows<FailureRow>,
) -> Result<(FailureGroup, ListPage<FailureRow>, Vec<FailureRow>), AppError> {
    let (group, page) = load_group(filter.clone()).await?;
    let settled = if filter.resolved == Some(false) && rows.has_row_outside(&page.rows) {
        list_failures(FailureFilter { resolved: None, ..filter }).await?.rows
    } else {
        Vec::new()
    };
    Ok((group, page, settled))
}

/// Shows the count of failures, the time range and the jobs of the group.
#[component]
fn FailureGroupSummary(group: RwSignal<FailureGroup>) -> impl IntoView {
    let cause = group.with_untracked(|group| group.cause);
    let (job_id, job_name) = group.with_untracked(|group| (group.job_id, group.job_name.clone()));
    let others = move || {
        let jobs = group.with(|group| group.jobs);
        (jobs > 1).then(|| format!(" and {}", plural(jobs - 1, "other job")))
    };
    let numbers =
        move || group.with(|group| format!("{} open of {}", count(group.open), plural(group.count, "failure")));
    view! {
        <section class="card" aria-label="Common details">
            <dl class="kv">
                <dt>"Count"</dt>
                <dd id="failure-count">{numbers}</dd>
                <dt>"Job"</dt>
                <dd>
                    <a href=format!("/jobs/{job_id}")>{job_name}</a>
                    {others}
                </dd>
                <dt>"Cause"</dt>
                <dd class="cluster">
                    <CauseBadge cause/>
                    <span class="muted">{cause_description(cause)}</span>
                </dd>
                <dt>"First seen"</dt>
                <dd><Time at=Signal::derive(move || group.with(|group| group.first_at))/></dd>
                <dt>"Last seen"</dt>
                <dd><Time at=Signal::derive(move || group.with(|group| group.last_at))/></dd>
            </dl>
        </section>
    }
}

/// The table of failures, with a checkbox for each open one.
#[component]
fn FailureTable(
    group: RwSignal<FailureGroup>,
    filter: FailureFilter,
    rows: LiveRows<FailureRow>,
    chosen: RowSelection,
    /// The address of this page, to which a plain form returns.
    here: StoredValue<String>,
    flash: FlashView,
    refresh: ThrottledRefresh,
) -> impl IntoView {
    let may_settle = may(Permission::SettleFailures);
    let open_ids = Memo::new(move |_| rows.keys_with::<BTreeSet<_>>(|row| row.resolved_at.is_none()));
    Effect::new(move |_| open_ids.with(|ids| chosen.retain(ids)));
    let is_empty = Memo::new(move |_| rows.is_empty());
    let body = rows.view(move |row| failure_row(row, may_settle.then_some(chosen)));
    let choose_all = may_settle.then(|| {
        view! {
            <th role="columnheader" scope="col" class="col-narrow">
                <span class="sr-only hide-js">"Select"</span>
                <SelectAllCheckbox chosen ids=open_ids is_bare=true/>
            </th>
        }
        .into_any()
    });
    let table = view! {
        {rows.held_button("new failure")}
        <Table
            caption="Failures of this cause, newest first"
            columns=[Text("Failure"), Text("Failed"), Text("Cause"), Number("Attempt"), Text("State")]
            first=choose_all
            id=FAILURE_TABLE_ID
            hidden=move || is_empty.get()
        >
            {body}
        </Table>
    };
    let empty = view! {
        <div hidden=move || !is_empty.get()>
            <EmptyState
                icon="circle-check"
                title="No failures here"
                text="No failure of this cause is in this state. New ones appear here automatically."
            />
        </div>
    };
    if !may_settle {
        return view! { {empty} {table} }.into_any();
    }
    let on_change = move |()| {
        rows.show_next_read();
        refresh.request_own();
    };
    view! {
        {empty}
        <BulkSettleForm chosen group filter here=here.get_value() flash on_change>{table}</BulkSettleForm>
    }
    .into_any()
}
