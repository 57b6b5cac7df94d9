//! The live table of occurrences on the occurrences page and on a job's page.

use std::time::Duration as StdDuration;

use leptos::prelude::*;
use milvaion_api::{
    events::{EventEnvelope, LiveEvent},
    page::{ListPage, OccurrenceFilter},
    views::{OccurrenceRow, TriggerSource},
};
use milvaion_protocol::status::OccurrenceStatus;

use super::{
    icon::Icon,
    live_rows::when_user_left,
    occurrence_list::{OccurrenceEntry, OccurrenceList, ReaderActivity},
    status_badge::StatusBadge,
    table::{Number, Table, Text},
    time::{Duration, MaybeTime, Time},
    waiting_changes::WaitingChangesButton,
};
use crate::{api::occurrences::list_occurrences, browser, format, live::live_page};

/// The table's id, used to detect whether the user works in it.
const OCCURRENCE_TABLE_ID: &str = "occurrences";
/// The scroll position in CSS pixels beyond which the user is assumed to be reading.
const READING_SCROLL_OFFSET: f64 = 400.0;

/// The maximum length of a note in its cell. The full note is the cell's title and is on the occurrence's own page.
const NOTE_MAX_CHARS: usize = 80;

/// Returns the icon of a trigger source.
#[must_use]
pub const fn trigger_icon(trigger: TriggerSource) -> &'static str {
    match trigger {
        TriggerSource::Schedule => "calendar-clock",
        TriggerSource::Manual => "hand",
        TriggerSource::Api => "terminal",
        TriggerSource::Retry => "rotate-cw",
        TriggerSource::Enqueue => "list-plus",
    }
}

/// A live table of occurrences. At most one per page, because its id is fixed.
#[component]
pub fn OccurrenceTable(
    /// The filter of the list, which also selects the events that change it.
    filter: OccurrenceFilter,
    /// The first page of rows.
    page: ListPage<OccurrenceRow>,
    /// The table's caption for screen readers.
    #[prop(into)]
    caption: String,
    /// True if each row names its job. False on a job's own page.
    #[prop(default = true)]
    names_job: bool,
    /// The id of the heading of the list, which must be able to receive the focus.
    #[prop(default = browser::PAGE_TITLE_ID)]
    heading: &'static str,
    /// The view shown instead of an empty table.
    #[prop(into)]
    empty: ViewFn,
    /// Receives the list, for a caller that renders a pager.
    #[prop(optional, into)]
    on_list: Option<Callback<OccurrenceList>>,
) -> impl IntoView {
    let list = OccurrenceList::new(filter.clone(), page);
    if let Some(on_list) = on_list {
        on_list.run(list);
    }
    keep_current(list, filter);

    let waiting = Memo::new(move |_| {
        let waiting = i64::try_from(list.waiting()).unwrap_or(i64::MAX);
        (waiting > 0).then(|| format::plural(waiting, "new occurrence"))
    });
    let is_empty = Memo::new(move |_| list.shown().with(Vec::is_empty));
    view! {
        <WaitingChangesButton changes=waiting heading on_show=move |()| list.show_waiting()/>
        <div id=OCCURRENCE_TABLE_ID hidden=move || is_empty.get()>
            <Table
                caption
                columns=[
                    Text("Status"), Text(if names_job { "Job" } else { "Occurrence" }), Text("Trigger"), Text("Due"),
                    Text("Started"), Number("Duration"), Number("Attempt"), Text("Worker instance"),
                ]
                class="table table-cards table-occurrences"
            >
                <For each=move || list.shown().get() key=|entry| entry.id let:entry>
                    <OccurrenceTableRow entry names_job/>
                </For>
            </Table>
        </div>
        <div hidden=move || !is_empty.get()>{empty.run()}</div>
    }
}

fn reader_activity() -> ReaderActivity {
    ReaderActivity {
        is_in_list: browser::is_busy_in(OCCURRENCE_TABLE_ID),
        is_scrolled: browser::scroll_offset() > READING_SCROLL_OFFSET,
    }
}

fn keep_current(list: OccurrenceList, filter: OccurrenceFilter) {
    let has_window = filter.window.is_some();
    let read = move || {
        let filter = filter.clone();
        let mark = list.begin_read();
        async move { Ok((mark, list_occurrences(filter).await?)) }
    };
    let on_event = move |envelope: &EventEnvelope| {
        if let LiveEvent::Occurrences { rows } = &envelope.event {
            list.apply(rows, envelope.at, reader_activity());
        }
        false
    };
    let refresh = live_page(StdDuration::from_millis(300), read, on_event, move |(mark, page)| {
        list.reread(mark, page, reader_activity());
    });
    if has_window {
        // Rows leave a time window without an event.
        refresh.every(StdDuration::from_secs(60));
    }
    when_user_left(OCCURRENCE_TABLE_ID, move || list.has_leaving_rows(), move || list.remove_leaving_rows());
}

#[component]
fn OccurrenceTableRow(entry: OccurrenceEntry, names_job: bool) -> impl IntoView {
    let OccurrenceEntry { id, row, event_at, is_new, is_leaving, .. } = entry;
    let is_leaving = RwSignal::from(is_leaving);
    let row = RwSignal::from(row);
    let first = row.read_untracked();
    let job_name = first.job_name.clone();
    let job_href = format!("/jobs/{}", first.job_id);
    let trigger = first.trigger;
    let due = first.scheduled_for;
    drop(first);

    let status = Signal::derive(move || row.read().status);
    let cancelling = Signal::derive(move || row.with(OccurrenceRow::is_cancelling));
    let started = Signal::derive(move || row.read().started_at);
    let millis = Signal::derive(move || row.read().duration_ms);
    let running = Signal::derive(move || row.read().status == OccurrenceStatus::Running);
    let note = move || {
        let row = row.read();
        match (&row.progress, &row.note) {
            (Some(progress), _) if row.status == OccurrenceStatus::Running => {
                Some(format!("{} % {}", progress.percent, progress.message).trim_end().to_owned())
            }
            (_, note) => note.clone(),
        }
    };
    let id_text = id.to_string();
    let href = format!("/occurrences/{id_text}");
    let short = format::short_id(&id_text).to_owned();
    let name_cell = if names_job {
        view! {
            <a href=job_href>{job_name.clone()}</a>
            " "
            <a class="row-link mono muted" href=href aria-label=format!("{short}, occurrence of {job_name}")>{short.clone()}</a>
        }
        .into_any()
    } else {
        view! { <a class="row-link mono" href=href>{short}</a> }.into_any()
    };
    view! {
        <tr role="row"
            class:is-new=is_new
            class:is-leaving=move || is_leaving.get()
            data-id=id_text
            data-status=move || status.get().slug()
            data-event-at=move || event_at.get()
        >
            <td role="cell" data-label="Status"><StatusBadge status cancelling/></td>
            <td role="cell" data-label=if names_job { "Job" } else { "Occurrence" }>
                {name_cell}
                <div class="row-note" title=note>{move || note().map(|note| format::clip(&note, NOTE_MAX_CHARS))}</div>
                {move || {
                    is_leaving.get().then(|| view! { <div class="row-note">"No longer in this list"</div> })
                }}
            </td>
            <td role="cell" data-label="Trigger">
                <span class="cluster">
                    <Icon name=trigger_icon(trigger)/>
                    <span>{trigger.as_str()}</span>
                </span>
            </td>
            <td role="cell" data-label="Due"><Time at=due/></td>
            <td role="cell" data-label="Started"><MaybeTime at=started relative=true/></td>
            <td role="cell" data-label="Duration" class="num"><Duration started_at=started millis running/></td>
            <td role="cell" data-label="Attempt" class="num">{move || row.read().attempt}</td>
            <td role="cell" data-label="Worker instance" class="mono">
                {move || row.read().instance_id.clone().unwrap_or_else(|| "–".into())}
            </td>
        </tr>
    }
}
