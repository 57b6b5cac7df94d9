//! The list of calendars: the blackout times of each, its next blackout, and the number of jobs that use it.

pub mod delete;
pub mod form;
pub mod windows;

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    events::{EventEnvelope, LiveEvent},
    permissions::Permission,
    views::CalendarRow,
};

use crate::{
    api::calendars::calendars,
    components::{
        empty_state::EmptyState,
        icon::Icon,
        loading::render_page,
        page_header::PageHeader,
        session_context::may,
        table::{Table, Text},
        time::Time,
    },
    error::AppError,
    format::plural,
    live::{live_page, set_if_changed},
};

/// The delay before a page is read again after a change of a calendar.
const REFRESH_DELAY: Duration = Duration::from_millis(300);

/// `/calendars`.
#[component]
pub fn CalendarsPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| calendars());
    render_page(data, |rows: Vec<CalendarRow>| view! { <CalendarsContent rows/> })
}

/// Returns the error for an address that does not hold a calendar id.
fn no_such_calendar() -> AppError {
    let error = AppError::NotFound("This calendar does not exist or has been deleted.".into());
    #[cfg(feature = "ssr")]
    let error = crate::api::with_error_status(error);
    error
}

/// Describes how far the last change of a calendar is applied to the due times of its jobs.
fn applied_words(pending_jobs: Option<i64>) -> String {
    match pending_jobs {
        None => "The last change is applied to all jobs.".into(),
        Some(0) => "The change is being applied.".into(),
        Some(jobs) => format!("The change is being applied to {}.", plural(jobs, "job")),
    }
}

#[component]
fn CalendarsContent(rows: Vec<CalendarRow>) -> impl IntoView {
    let rows = RwSignal::new(rows);
    // A calendar was changed, or its change was applied to more of its jobs.
    let is_news = |envelope: &EventEnvelope| matches!(envelope.event, LiveEvent::Calendar { .. });
    live_page(REFRESH_DELAY, calendars, is_news, move |read| set_if_changed(rows, read));
    let may_define = may(Permission::DefineCalendar);
    let new = may_define.then(|| {
        view! {
            <a class="btn btn-primary" href="/calendars/new">
                <Icon name="plus"/>
                "New calendar"
            </a>
        }
    });
    let body = move || {
        let rows = rows.get();
        if rows.is_empty() {
            return view! {
            <EmptyState
                icon="calendar-off"
                title="No calendars yet"
                text="A calendar defines days and weekly hours in which the jobs that use it do not start, such as holidays, a maintenance window or the end of a quarter."
            >
                {may_define
                    .then(|| view! { <a class="btn btn-primary" href="/calendars/new">"Create the first calendar"</a> })}
            </EmptyState>
        }
            .into_any();
        }
        let rows: Vec<_> = rows.into_iter().map(|row| view! { <CalendarTableRow row may_define/> }).collect();
        view! {
            <Table
                caption="Calendars by name"
                columns=[Text("Calendar"), Text("Blackout times"), Text("Next blackout"), Text("Used by")]
            >
                {rows}
            </Table>
        }
        .into_any()
    };
    view! {
        <Title text="Calendars"/>
        <PageHeader title="Calendars" sub="Days and weekly hours in which jobs do not start. Each job selects its calendars.">{new}</PageHeader>
        {body}
    }
}

#[component]
fn CalendarTableRow(row: CalendarRow, may_define: bool) -> impl IntoView {
    let name = if may_define {
        view! { <a class="row-link" href=format!("/calendars/{}/edit", row.id)>{row.name}</a> }.into_any()
    } else {
        view! { <strong>{row.name}</strong> }.into_any()
    };
    let next = match row.next {
        Some(next) if next.is_now => view! {
            <span class="badge wrap" data-status="paused">
                <Icon name="calendar-off"/>
                <span>{next.in_zone}</span>
            </span>
        }
        .into_any(),
        Some(next) => view! {
            <div>
                <div><Time at=next.from relative=true/></div>
                <div class="muted">{next.in_zone}</div>
            </div>
        }
        .into_any(),
        None => view! { <span class="muted">"None"</span> }.into_any(),
    };
    let pending = row.pending_jobs.is_some().then(|| {
        view! { <div class="row-note">{applied_words(row.pending_jobs)}</div> }
    });
    let jobs = if row.jobs == 0 {
        view! { <span class="muted">"No job"</span> }.into_any()
    } else {
        plural(row.jobs, "job").into_any()
    };
    view! {
        <tr role="row" data-id=row.id.to_string()>
            <th role="rowheader" scope="row" data-label="Calendar">
                {name}
                <div class="row-note">{row.zone}</div>
            </th>
            <td role="cell" data-label="Blackout times">{row.words}</td>
            <td role="cell" data-label="Next blackout">{next}</td>
            <td role="cell" data-label="Used by">
                {jobs}
                {pending}
            </td>
        </tr>
    }
}
