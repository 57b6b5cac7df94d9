//! All failures of one cause: some or all of them are run again or resolved at once.

use std::collections::BTreeSet;

use leptos::{ev, prelude::*, server_fn::ServerFn};
use leptos_meta::Title;
use milvaion_api::{
    access::Action,
    failure::{FailureFilter, FailureGroup, FailureRow, MAX_AT_ONCE},
    page::Page,
};

use super::{
    PAUSE, address, keep_current, read_kind,
    row::failure_row,
    settle::{AskButton, AskWithNote, ChooseAll, Chosen},
    state_chips,
    words::{CauseBadge, cause_meaning},
};
use crate::{
    api::{
        failures::{ResolveFailures, RetryFailures, resolve_failures, resolve_notice, retry_failures, retry_notice},
        session::Left,
    },
    components::{
        empty::Empty,
        form::{ErrorSummary, Field, described_by},
        icon::Icon,
        input_form::{error_of, said},
        me::may,
        page_head::{Crumbs, PageHead},
        time::Time,
    },
    format::{clip, count, plural},
    live::{Refresher, refresher},
};

/// How much of an exception's first line stands as the page's heading.
const HEADING_LENGTH: usize = 120;

/// The page.
#[component]
pub fn Kind(group: FailureGroup, filter: FailureFilter, page: Page<FailureRow>, left: Left) -> impl IntoView {
    let heading = if group.note.is_empty() { "No message".to_owned() } else { clip(&group.note, HEADING_LENGTH) };
    let path = format!("/failed/{}", group.fingerprint);
    let group = RwSignal::new(group);
    let shown = RwSignal::new(page);
    let asked = filter.clone();
    let refresh = refresher(
        PAUSE,
        move || read_kind(asked.clone()),
        move |(read_group, read)| {
            group.set(read_group);
            shown.set(read);
        },
    );
    keep_current(&refresh);

    let here = StoredValue::new(address::of(&path, &filter));
    let at = {
        let (path, filter) = (path.clone(), filter.clone());
        move |after: Option<String>| address::of(&path, &FailureFilter { after, ..filter.clone() })
    };
    let chips = {
        let filter = filter.clone();
        state_chips(filter.resolved, move |resolved| {
            address::of(&path, &FailureFilter { resolved, after: None, ..filter.clone() })
        })
    };
    let first = filter.after.is_some().then(|| at(None));
    let next = move || shown.with(|page| page.next.clone()).map(|next| at(Some(next)));
    let whole: Vec<_> = left
        .error
        .iter()
        .cloned()
        .chain(left.fields.iter().filter(|error| error.field != "note").map(|error| said(&error.message)))
        .map(|text| (String::new(), text))
        .collect();
    view! {
        <Title text=format!("{heading} · Failures")/>
        <Crumbs steps=vec![("/failed".into(), "Failures".into())] here="One cause"/>
        <PageHead title=heading/>
        <ErrorSummary errors=whole/>
        <div class="stack">
            <Summary group/>
            <div class="filterbar">{chips}</div>
            <List group filter shown here left refresh/>
            <nav class="pager" aria-label="Pages">
                {first.map(|href| view! { <a class="btn btn-small" href=href>"First page"</a> })}
                {move || next().map(|href| view! { <a class="btn btn-small" rel="next" href=href>"Next page"</a> })}
            </nav>
        </div>
    }
}

/// How many there are, since when, and of which jobs.
#[component]
fn Summary(group: RwSignal<FailureGroup>) -> impl IntoView {
    let cause = group.with_untracked(|group| group.cause);
    let (job_id, job_name) = group.with_untracked(|group| (group.job_id, group.job_name.clone()));
    let others = move || {
        let jobs = group.with(|group| group.jobs);
        (jobs > 1).then(|| format!(" and {}", plural(jobs - 1, "other job")))
    };
    let numbers =
        move || group.with(|group| format!("{} open of {}", count(group.open), plural(group.count, "failure")));
    view! {
        <section class="card" aria-label="What they have in common">
            <dl class="kv">
                <dt>"How many"</dt>
                <dd id="failure-count">{numbers}</dd>
                <dt>"Job"</dt>
                <dd>
                    <a href=format!("/jobs/{job_id}")>{job_name}</a>
                    {others}
                </dd>
                <dt>"Cause"</dt>
                <dd class="cluster">
                    <CauseBadge cause/>
                    <span class="muted">{cause_meaning(cause)}</span>
                </dd>
                <dt>"First"</dt>
                <dd><Time at=Signal::derive(move || group.with(|group| group.first_at))/></dd>
                <dt>"Last"</dt>
                <dd><Time at=Signal::derive(move || group.with(|group| group.last_at))/></dd>
            </dl>
        </section>
    }
}

/// The failures, with a box before each that is open.
#[component]
fn List(
    group: RwSignal<FailureGroup>,
    filter: FailureFilter,
    shown: RwSignal<Page<FailureRow>>,
    /// The address of this page.
    here: StoredValue<String>,
    left: Left,
    refresh: Refresher,
) -> impl IntoView {
    let may_settle = may(Action::SettleFailures);
    let chosen = Chosen::new();
    let open_ids = Memo::new(move |_| {
        let open = |page: &Page<FailureRow>| {
            let rows = page.rows.iter().filter(|row| row.resolved_at.is_none());
            rows.map(|row| row.occurrence_id.to_string()).collect::<BTreeSet<_>>()
        };
        shown.with(open)
    });
    Effect::new(move |_| open_ids.with(|ids| chosen.keep(ids)));
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
                                        <span class="sr-only hide-js">"Choose"</span>
                                        <ChooseAll chosen ids=open_ids is_bare=true/>
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
    let nothing = view! {
        <div hidden=move || !is_empty.get()>
            <Empty
                icon="circle-check"
                title="None here"
                text="No failure of this cause is in this state. A new one appears here by itself."
            />
        </div>
    };
    if !may_settle {
        return view! { {nothing} {table} }.into_any();
    }
    view! {
        {nothing}
        <Settle chosen open filter here=here.get_value() left refresh>{table}</Settle>
    }
    .into_any()
}

/// The form around the list, and the buttons that settle what is chosen in it.
#[component]
fn Settle(
    chosen: Chosen,
    /// How many of this cause are open.
    open: Memo<i64>,
    filter: FailureFilter,
    here: String,
    left: Left,
    refresh: Refresher,
    children: Children,
) -> impl IntoView {
    let all = FailureFilter { fingerprint: filter.fingerprint, job_id: filter.job_id, ..FailureFilter::default() };
    let most = i64::try_from(MAX_AT_ONCE).unwrap_or(i64::MAX);
    // What is meant: the chosen ones, or, while none is chosen, every open one.
    let meant = move || match chosen.count() {
        0 => open.get().min(most),
        n => i64::try_from(n).unwrap_or(i64::MAX),
    };
    let words = move |verb: &'static str| {
        Signal::derive(move || match (chosen.count(), open.get()) {
            (0, 0) => format!("{verb}…"),
            (0, n) if n > most => format!("{verb} the newest {}…", count(most)),
            (0, 1) => format!("{verb} the open one…"),
            (0, n) => format!("{verb} all {}…", count(n)),
            (n, _) => format!("{verb} {} chosen…", count(i64::try_from(n).unwrap_or(i64::MAX))),
        })
    };
    let title = move |verb: &'static str| {
        Signal::derive(move || {
            let scope = match (chosen.count(), open.get()) {
                (0, n) if n > most => "the newest ",
                (0, 2..) => "all of these ",
                _ => "",
            };
            format!("{verb} {scope}{}?", plural(meant(), "failure"))
        })
    };
    let is_idle = Signal::derive(move || meant() == 0);
    let (retries, resolves) = (RwSignal::new(false), RwSignal::new(false));
    let asked = StoredValue::new(all.clone());
    let done = {
        move |refresh: &Refresher| {
            chosen.clear();
            refresh.ask();
        }
    };
    let seen = move || usize::try_from(open.get_untracked()).unwrap_or_default();
    let retry = {
        let refresh = refresh.clone();
        move |note: String| {
            let refresh = refresh.clone();
            let ids = chosen.ids();
            async move {
                let call = retry_failures(ids.clone(), ids.is_empty(), asked.get_value(), seen(), note, String::new());
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
            let call = resolve_failures(ids.clone(), ids.is_empty(), asked.get_value(), seen(), note, String::new());
            let answer = call.await;
            done(&refresh);
            answer.map(|resolved| resolve_notice(&resolved))
        }
    };
    let stay = |event: ev::SubmitEvent| event.prevent_default();
    view! {
        <form method="post" action=RetryFailures::PATH class="stack" on:submit=stay>
            <div class="cluster needs-js">
                <AskButton open=retries icon="rotate-cw" words=words("Retry") is_idle/>
                <AskButton open=resolves icon="check" words=words("Resolve") is_idle/>
            </div>
            {children()}
            <PlainSettle all open here left/>
        </form>
        <AskWithNote
            open=retries
            prefix="retry"
            title=title("Retry")
            consequence="Each runs once more, as a new occurrence of its job, with the input it failed with and by the job's present definition. One that was retried before is left alone."
            label="Reason"
            most="500"
            verb="Retry"
            run=retry
        />
        <AskWithNote
            open=resolves
            prefix="resolve"
            title=title("Resolve")
            consequence="They count as settled and leave the list of open ones. Nothing runs again."
            label="Note"
            most="2000"
            verb="Resolve"
            run=resolve
        />
    }
}

/// The end of the form, for readers without a script: which ones are meant, a few words, and what is to be done.
#[component]
fn PlainSettle(all: FailureFilter, open: Memo<i64>, here: String, left: Left) -> impl IntoView {
    let typed = left.typed("note");
    let error = error_of(Signal::stored(left.fields), "note");
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
                <legend>"Settle failures"</legend>
                {hidden}
                <div class="radio-cards">
                    <label class="radio-card">
                        <input type="radio" name="all" value="false" checked/>
                        <span>"Those chosen above"</span>
                    </label>
                    <label class="radio-card">
                        <input type="radio" name="all" value="true"/>
                        <span>{format!("All {} of this cause", plural(seen, "open failure"))}</span>
                    </label>
                </div>
                <Field id="plain-note" label="Note" hint="Kept with the failure. For a retry at most 500 characters." optional=true error>
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
                </Field>
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
