//! The audit log: every change, sign-in and refusal, newest first, one page at a time.
//!
//! The whole filter is in the address, and the exports take the same parameters, so that a file holds exactly the rows
//! that its page shows. No event reports audit rows: the page is a record to search, and a button reads it again.

pub mod filter;
pub mod filter_form;

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    audit::{AuditFilter, AuditRow},
    page::ListPage,
    permissions::Permission,
};

use self::{
    filter::{address, export_address, is_narrowed},
    filter_form::AuditFilterForm,
};
use crate::{
    api::audit::audit,
    components::{
        action::use_action,
        action_error::{ActionError, LastError},
        audit_list::AuditTable,
        empty_state::EmptyState,
        filter_controls::DrawnFilter,
        filter_error::{render_filtered, use_filter},
        icon::Icon,
        page_header::PageHeader,
        session_context::may,
    },
    format::count,
};

/// The line below the heading.
const PAGE_SUB: &str = "Changes, sign-ins and refused actions, newest first.";

/// `/audit`. The filter is in the address: `who`, `action`, `object`, `result`, `since`, `until` and `before`.
#[component]
pub fn AuditPage() -> impl IntoView {
    let drawn = DrawnFilter::new();
    let read = |filter: AuditFilter| async move { Ok((filter.clone(), audit(filter).await?)) };
    let content = render_filtered(use_filter(filter::parse), read, move |found| match found {
        Ok((filter, page)) => view! { <AuditContent filter page drawn/> }.into_any(),
        Err(notice) => view! {
            <PageHeader title="Audit log" sub=PAGE_SUB/>
            {notice}
        }
        .into_any(),
    });
    view! {
        <Title text="Audit log"/>
        {content}
    }
}

#[component]
fn AuditContent(filter: AuditFilter, page: ListPage<AuditRow>, drawn: DrawnFilter) -> impl IntoView {
    let rows = RwSignal::new(page.rows);
    let next = RwSignal::new(page.next);
    let outcome = RwSignal::new(String::new());
    let error = LastError::of("Refresh");
    let action = use_action(error);
    let request = filter.clone();
    let refresh = move |_| {
        let request = request.clone();
        action.run(async move {
            let page = audit(request).await?;
            let shown = i64::try_from(page.rows.len()).unwrap_or(i64::MAX);
            let _ = outcome.try_set(format!("The list is current: {}.", entries(shown)));
            let _ = rows.try_set(page.rows);
            let _ = next.try_set(page.next);
            Ok(None)
        });
    };
    let exports = may(Permission::Export).then(|| {
        let link = |format: &'static str, label: &'static str| {
            view! { <a class="btn" href=export_address(&filter, format) rel="external" download="">{label}</a> }
        };
        (link("csv", "Download CSV"), link("ndjson", "Download NDJSON"))
    });
    let older = {
        let filter = filter.clone();
        move || {
            let before = next.get()?.parse().ok()?;
            let href = address(&AuditFilter { before: Some(before), ..filter.clone() });
            Some(view! {
                <a class="btn" href=href rel="next">
                    "Older"
                    <Icon name="chevron-right"/>
                </a>
            })
        }
    };
    let newest = filter.before.is_some().then(|| {
        let href = address(&AuditFilter { before: None, ..filter.clone() });
        view! {
            <a class="btn" href=href rel="prev">
                <Icon name="chevron-left"/>
                "Newest"
            </a>
        }
    });
    let shown = move || entries(rows.with(|rows| i64::try_from(rows.len()).unwrap_or(i64::MAX)));
    let is_empty = Memo::new(move |_| rows.with(Vec::is_empty));
    let empty = empty_state(&filter);
    view! {
        <PageHeader title="Audit log" sub=PAGE_SUB>
            <button
                type="button"
                class="btn needs-js"
                aria-busy=move || action.disabled()
                on:click=refresh
            >
                <Icon name="refresh-cw"/>
                "Refresh"
            </button>
            {exports}
        </PageHeader>
        <p class="sr-only" role="status">{move || outcome.get()}</p>
        <ActionError error/>
        <div class="stack">
            <AuditFilterForm filter drawn/>
            <div hidden=move || !is_empty.get()>{empty}</div>
            <div id="audit" hidden=move || is_empty.get()>
                <AuditTable rows caption="Audit log, newest first"/>
            </div>
            <nav class="pager" aria-label="Pages">
                {newest}
                <span>{shown}</span>
                {older}
            </nav>
        </div>
    }
}

/// Formats a number of entries.
fn entries(shown: i64) -> String {
    if shown == 1 { "1 entry".to_owned() } else { format!("{} entries", count(shown)) }
}

fn empty_state(filter: &AuditFilter) -> AnyView {
    if filter.before.is_some() {
        let href = address(&AuditFilter { before: None, ..filter.clone() });
        return view! {
            <EmptyState icon="history" title="No older entries" text="The previous page was the last one.">
                <a class="btn" href=href>"Show the newest"</a>
            </EmptyState>
        }
        .into_any();
    }
    if is_narrowed(filter) {
        return view! {
            <EmptyState
                icon="filter"
                title="No entry matches this filter"
                text="The user and the object must match exactly, and the days are those of UTC."
            >
                <a class="btn" href="/audit">"Show all entries"</a>
            </EmptyState>
        }
        .into_any();
    }
    view! {
        <EmptyState
            icon="history"
            title="No entries yet"
            text="Every change, sign-in and refused action is listed here, with its author, time and result. The first one appears with the next action."
        >
            <a class="btn btn-primary" href="/jobs">"Go to jobs"</a>
        </EmptyState>
    }
    .into_any()
}
