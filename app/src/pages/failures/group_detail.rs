//! All failures of one cause, with bulk actions that retry or resolve some or all of them.

use std::collections::BTreeSet;

use leptos::{ev, prelude::*, server_fn::ServerFn};
use leptos_meta::Title;
use milvaion_api::{
    failures::{FailureFilter, FailureGroup, FailureRow, MAX_FAILURE_SELECTION},
    page::ListPage,
    permissions::Permission,
};

use super::{
    REFRESH_INTERVAL,
    bulk_actions::{NoteDialog, OpenDialogButton, RowSelection, SelectAllCheckbox},
    display::{CauseBadge, cause_description},
    failure_row::failure_row,
    keep_current, load_group, state_chips, url,
};
use crate::{
    api::{
        failures::{ResolveFailures, RetryFailures, resolve_failures, resolve_notice, retry_failures, retry_notice},
        session::FlashView,
    },
    components::{
        empty_state::EmptyState,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{capitalized, error_of},
        page_header::{Breadcrumbs, PageHeader},
        session_context::may,
        time::Time,
    },
    format::{clip, count, plural},
    live::{ThrottledRefresh, throttled_refresh},
};

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
    let shown = RwSignal::new(page);
    let request = filter.clone();
    let refresh = throttled_refresh(
        REFRESH_INTERVAL,
        move || load_group(request.clone()),
        move |(read_group, read)| {
            group.set(read_group);
            shown.set(read);
        },
    );
    keep_current(&refresh);

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
    let next = move || shown.with(|page| page.next.clone()).map(|next| at(Some(next)));
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
            <FailureTable group filter shown here flash refresh/>
            <nav class="pager" aria-label="Pages">
                {first.map(|href| view! { <a class="btn btn-small" href=href>"First page"</a> })}
                {move || next().map(|href| view! { <a class="btn btn-small" rel="next" href=href>"Next page"</a> })}
            </nav>
        </div>
    }
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
    shown: RwSignal<ListPage<FailureRow>>,
    /// The address of this page, to which a plain form returns.
    here: StoredValue<String>,
    flash: FlashView,
    refresh: ThrottledRefresh,
) -> impl IntoView {
    let may_settle = may(Permission::SettleFailures);
    let chosen = RowSelection::new();
    let open_ids = Memo::new(move |_| {
        let open = |page: &ListPage<FailureRow>| {
            let rows = page.rows.iter().filter(|row| row.resolved_at.is_none());
            rows.map(|row| row.occurrence_id.to_string()).collect::<BTreeSet<_>>()
        };
        shown.with(open)
    });
    Effect::new(move |_| open_ids.with(|ids| chosen.retain(ids)));
    let open = Memo::new(move |_| group.with(|group| group.open));
    let is_empty = Memo::new(move |_| shown.with(|page| page.rows.is_empty()));
    let rows = move || shown.with(|page| page.rows.clone());
    let row = move |row: FailureRow| failure_row(row, may_settle.then_some(chosen));
    let table = view! {
        <div class="table-wrap" hidden=move || is_empty.get()>
            <table class="table table-cards" id="failures">
                <caption class="sr-only">"Failures of this cause, newest first"</caption>
                <thead>
                    <tr>
                        {may_settle
                            .then(|| {
                                view! {
                                    <th scope="col" class="col-narrow">
                                        <span class="sr-only hide-js">"Select"</span>
                                        <SelectAllCheckbox chosen ids=open_ids is_bare=true/>
                                    </th>
                                }
                            })}
                        <th scope="col">"Failure"</th>
                        <th scope="col">"Failed"</th>
                        <th scope="col">"Cause"</th>
                        <th scope="col" class="num">"Attempt"</th>
                        <th scope="col">"State"</th>
                    </tr>
                </thead>
                <tbody>
                    <For
                        each=rows
                        key=|row| (row.occurrence_id, row.resolved_at, row.retried_as, row.cause)
                        children=row
                    />
                </tbody>
            </table>
        </div>
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
    view! {
        {empty}
        <BulkSettleForm chosen open filter here=here.get_value() flash refresh>{table}</BulkSettleForm>
    }
    .into_any()
}

/// The form around the table, with the buttons that retry or resolve failures.
#[component]
fn BulkSettleForm(
    chosen: RowSelection,
    /// The number of open failures of this cause.
    open: Memo<i64>,
    filter: FailureFilter,
    here: String,
    flash: FlashView,
    refresh: ThrottledRefresh,
    children: Children,
) -> impl IntoView {
    let all = FailureFilter { fingerprint: filter.fingerprint, job_id: filter.job_id, ..FailureFilter::default() };
    let most = i64::try_from(MAX_FAILURE_SELECTION).unwrap_or(i64::MAX);
    // The number of failures an action affects: the selected ones, or all open ones while none is selected.
    let affected = move || match chosen.count() {
        0 => open.get().min(most),
        n => i64::try_from(n).unwrap_or(i64::MAX),
    };
    let words = move |verb: &'static str| {
        Signal::derive(move || match (chosen.count(), open.get()) {
            (0, 0) => format!("{verb}…"),
            (0, n) if n > most => format!("{verb} the newest {}…", count(most)),
            (0, 1) => format!("{verb} the open failure…"),
            (0, n) => format!("{verb} all {}…", count(n)),
            (n, _) => format!("{verb} {} selected…", count(i64::try_from(n).unwrap_or(i64::MAX))),
        })
    };
    let title = move |verb: &'static str| {
        Signal::derive(move || {
            let scope = match (chosen.count(), open.get()) {
                (0, n) if n > most => "the newest ",
                (0, 2..) => "all ",
                _ => "",
            };
            format!("{verb} {scope}{}?", plural(affected(), "failure"))
        })
    };
    let is_idle = Signal::derive(move || affected() == 0);
    let (retries, resolves) = (RwSignal::new(false), RwSignal::new(false));
    let all_open = StoredValue::new(all.clone());
    let done = {
        move |refresh: &ThrottledRefresh| {
            chosen.clear();
            refresh.request_own();
        }
    };
    let seen = move || usize::try_from(open.get_untracked()).unwrap_or_default();
    let retry = {
        let refresh = refresh.clone();
        move |note: String| {
            let refresh = refresh.clone();
            let ids = chosen.ids();
            async move {
                let call =
                    retry_failures(ids.clone(), ids.is_empty(), all_open.get_value(), seen(), note, String::new());
                let answer = call.await;
                done(&refresh);
                answer.map(|retried| retry_notice(&retried))
            }
        }
    };
    let resolve = move |note: String| {
        let refresh = refresh.clone();
        let ids = chosen.ids();
        async move {
            let call = resolve_failures(ids.clone(), ids.is_empty(), all_open.get_value(), seen(), note, String::new());
            let answer = call.await;
            done(&refresh);
            answer.map(|resolved| resolve_notice(&resolved))
        }
    };
    let stay = |event: ev::SubmitEvent| event.prevent_default();
    view! {
        <form method="post" action=RetryFailures::PATH class="stack" on:submit=stay>
            <div class="cluster needs-js">
                <OpenDialogButton open=retries icon="rotate-cw" words=words("Retry") is_idle/>
                <OpenDialogButton open=resolves icon="check" words=words("Resolve") is_idle/>
            </div>
            {children()}
            <PlainSettleFields all open here flash/>
        </form>
        <NoteDialog
            open=retries
            prefix="retry"
            title=title("Retry")
            consequence="Each failure is run again as a new occurrence, with its original input and the job's current definition. A failure that was already retried is skipped."
            label="Reason"
            most="500"
            verb="Retry"
            run=retry
        />
        <NoteDialog
            open=resolves
            prefix="resolve"
            title=title("Resolve")
            consequence="The failures are marked as resolved and leave the list of open failures. Nothing is run again."
            label="Note"
            most="2000"
            verb="Resolve"
            run=resolve
        />
    }
}

/// The last part of the form, for readers without scripts: the scope, a note and the buttons.
#[component]
fn PlainSettleFields(all: FailureFilter, open: Memo<i64>, here: String, flash: FlashView) -> impl IntoView {
    let typed = flash.typed("note");
    let error = error_of(Signal::stored(flash.fields), "note");
    let seen = open.get_untracked();
    let hidden = [
        ("back", Some(here)),
        ("seen", Some(seen.to_string())),
        ("filter[fingerprint]", all.fingerprint),
        ("filter[jobId]", all.job_id.map(|id| id.to_string())),
    ];
    let hidden: Vec<_> = hidden
        .into_iter()
        .filter_map(|(name, value)| Some(view! { <input type="hidden" name=name value=value?/> }))
        .collect();
    (seen > 0).then(|| {
        view! {
            <fieldset class="form-section hide-js">
                <legend>"Retry or resolve failures"</legend>
                {hidden}
                <div class="radio-cards">
                    <label class="radio-card">
                        <input type="radio" name="all" value="false" checked/>
                        <span>"Selected failures"</span>
                    </label>
                    <label class="radio-card">
                        <input type="radio" name="all" value="true"/>
                        <span>{format!("All {} of this cause", plural(seen, "open failure"))}</span>
                    </label>
                </div>
                <FormField id="plain-note" label="Note" hint="Stored with the failure; at most 2,000 characters, for a retry at most 500." optional=true error>
                    <input
                        type="text"
                        id="plain-note"
                        name="note"
                        maxlength="2000"
                        value=typed
                        autocomplete="off"
                        aria-describedby=described_by("plain-note")
                        aria-invalid=move || error.get().is_some().then_some("true")
                    />
                </FormField>
                <div class="form-actions">
                    <button type="submit" class="btn">
                        <Icon name="rotate-cw"/>
                        "Retry"
                    </button>
                    <button type="submit" class="btn" formaction=ResolveFailures::PATH>
                        <Icon name="check"/>
                        "Resolve"
                    </button>
                </div>
            </fieldset>
        }
    })
}
