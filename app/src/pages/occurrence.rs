//! One occurrence: its status and the reason for it, its timeline and result, and its log while it is written.

pub mod cancel;
pub mod outcome;

use std::time::Duration as StdDuration;

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::{use_params_map, use_query_map};
use milvaion_api::{
    audit::{AuditObject, AuditRow},
    duplicates,
    events::{EventEnvelope, LiveEvent},
    page::ListPage,
    permissions::Permission,
    report_notes,
    views::{OccurrenceView, StatusChange},
};
use milvaion_protocol::{id::OccurrenceId, message::LogLine, status::OccurrenceStatus};

use self::{
    cancel::{CancelButton, EXPLANATION_ID},
    outcome::{OccurrenceInput, OccurrenceOutcome, is_log_first},
};
use crate::{
    api::{
        occurrences::{get_occurrence, log_before, log_range},
        session::{FlashView, take_flash},
    },
    browser,
    components::{
        action_error::{ActionError, LastError},
        audit_list::{AuditSlice, read_slice},
        copy_button::CopyButton,
        dialog::once_true,
        duplicate_start_warning::DuplicateStartWarning,
        form::ErrorSummary,
        icon::Icon,
        loading::render_page,
        log_lines::LogLines,
        log_view::{LOG_PAGE_LINES, LogView},
        page_header::{Breadcrumbs, PageHeader},
        session_context::{SessionContext, may},
        status_badge::StatusBadge,
        status_explanation::{delayed_until, explain_status, unexplained_note},
        time::{Duration, MaybeTime, Time},
    },
    error::AppError,
    format,
    live::{LiveUpdates, ThrottledRefresh, is_resync, throttled_refresh, use_live_updates},
};

/// The delay before the page is read again after an event. The event is shown at once, but it holds only the row.
const REFRESH_DELAY: StdDuration = StdDuration::from_millis(150);
/// The delay before new lines of the log are read after an event about them, and so the least time between two reads.
const LOG_READ_DELAY: StdDuration = StdDuration::from_millis(400);
/// The most pages of lines that are read at once: as many lines as are kept of an attempt by default.
const MAX_READ_PAGES: usize = 20;

/// The start of a range without log lines, for a read that needs none: a page with earlier lines shows only those.
const LOG_END: i64 = i64::MAX;

/// `/occurrences/:id`. With `log_before` in the address it shows an earlier part of the log.
#[component]
pub fn OccurrencePage() -> impl IntoView {
    let params = use_params_map();
    let query = use_query_map();
    let request = Memo::new(move |_| {
        let id = params.with(|params| params.get_str("id").unwrap_or_default().to_owned());
        let before = query.with(|query| query.get_str("log_before").and_then(|seq| seq.parse::<i64>().ok()));
        (id, before)
    });
    let session = use_context::<SessionContext>();
    let data = Resource::new_blocking(move || request.get(), move |(id, before)| read(id, before, session.clone()));
    render_page(data, |(view, earlier, flash, audit)| view! { <OccurrenceContent view earlier flash audit/> })
}

/// The occurrence, an earlier part of its log, the result of a plain form, and the start of its audit log.
type OccurrenceData = (OccurrenceView, Option<Vec<LogLine>>, FlashView, Option<ListPage<AuditRow>>);

async fn read(id: String, before: Option<i64>, session: Option<SessionContext>) -> Result<OccurrenceData, AppError> {
    let Ok(id) = id.parse::<OccurrenceId>() else {
        let error = AppError::NotFound(
            "This address does not name an occurrence: its last part must be an occurrence id.".into(),
        );
        #[cfg(feature = "ssr")]
        let error = crate::api::with_error_status(error);
        return Err(error);
    };
    let earlier = async {
        match before {
            Some(before) => log_before(id, before).await.map(Some),
            None => Ok(None),
        }
    };
    let (view, flash, earlier, audit) = futures::join!(
        get_occurrence(id, before.map(|_| LOG_END)),
        take_flash("cancel".into()),
        earlier,
        read_slice(session, AuditObject::Occurrence(id))
    );
    Ok((view?, earlier?, flash?.unwrap_or_default(), audit?))
}

#[component]
fn OccurrenceContent(
    mut view: OccurrenceView,
    earlier: Option<Vec<LogLine>>,
    flash: FlashView,
    audit: Option<ListPage<AuditRow>>,
) -> impl IntoView {
    let id = view.row.id;
    let is_earlier_page = earlier.is_some();
    let lines = match earlier {
        // A full page of 500 lines means that there may be earlier ones; the page they are on shows if there are any.
        Some(earlier) => {
            let has_earlier = earlier.len() >= LOG_PAGE_LINES;
            LogLines::new(earlier, has_earlier)
        }
        None => LogLines::new(std::mem::take(&mut view.log), view.log_has_earlier),
    };
    let is_log_first = is_log_first(!view.row.status.is_final(), view.result.as_deref());
    let data = RwSignal::new(view);
    let event_at = RwSignal::new(None::<String>);
    let refresh = keep_current(id, data, event_at, (!is_earlier_page).then_some(lines));

    let name = Signal::derive(move || data.with(|data| data.row.job_name.clone()));
    let status = Signal::derive(move || data.with(|data| data.row.status));
    let open = Signal::derive(move || !status.get().is_final());
    let cancelling = Signal::derive(move || data.with(|data| data.row.is_cancelling()));
    let title = move || {
        let status = if cancelling.get() { "Cancelling…" } else { status.get().label() };
        format!("{status} {} · Occurrence", name.get())
    };
    let exists = data.with_untracked(|data| data.job_exists);
    let job_id = data.with_untracked(|data| data.row.job_id);
    let again = (exists && may(Permission::RunJob)).then(|| {
        view! {
            <a class="btn" href=format!("/jobs/{job_id}?run_again={id}")>
                <Icon name="rotate-cw"/>
                "Run job again…"
            </a>
        }
    });
    // The server records a failure at the moment the occurrence fails, so the link is valid as soon as it is shown.
    let failed = Memo::new(move |_| matches!(status.get(), OccurrenceStatus::Failed | OccurrenceStatus::TimedOut));
    let failure = move || {
        failed.get().then(|| {
            view! {
                <a class="btn" href=format!("/failed/{id}")>
                    <Icon name="octagon-x"/>
                    "View failure"
                </a>
            }
        })
    };
    let whole: Vec<_> = flash.error.iter().map(|text| (String::new(), text.clone())).collect();
    let may_cancel = may(Permission::CancelOccurrence);
    let was_open = once_true(move || may_cancel && open.get());
    // The stream delivers the new status too, but the reader may have paused live updates.
    let on_done = Callback::new(move |()| refresh.request_own());
    let cancel_error = LastError::of("Cancel run");
    let cancel = move || {
        let flash = flash.clone();
        was_open
            .get()
            .then(move || view! { <CancelButton id name status cancelling flash error=cancel_error on_done/> })
    };
    let outcome = view! {
        <OccurrenceOutcome data/>
        <Children id data/>
    };
    let log = view! {
        <section aria-labelledby="log-title">
            <h2 id="log-title">"Log"</h2>
            <LogView id lines open is_earlier_page/>
        </section>
    };
    let mut sections = vec![outcome.into_any(), log.into_any()];
    if is_log_first {
        sections.reverse();
    }
    view! {
        <Title text=title/>
        <Breadcrumbs steps=vec![("/occurrences".into(), "Occurrences".into())] here=name/>
        <PageHeader title=name>
            <span
                class="cluster"
                id="occurrence-status"
                data-id=id.to_string()
                data-status=move || status.get().slug()
                data-event-at=move || event_at.get()
            >
                <StatusBadge status cancelling/>
            </span>
            {failure}
            {again}
            {cancel}
        </PageHeader>
        <ActionError error=cancel_error/>
        <ErrorSummary errors=whole/>
        <div class="stack">
            <p class="page-sub" role="status" id=EXPLANATION_ID>{move || data.with(explain_status)}</p>
            <DuplicateStartWarning data/>
            <ProgressBar data/>
            <div class="cards">
                <OccurrenceFacts data/>
                <Timeline data/>
            </div>
            {sections}
            <OccurrenceInput data/>
            <AuditSlice object=AuditObject::Occurrence(id) page=audit/>
        </div>
    }
}

/// Follows the stream: shows the row of an event at once and reads everything else again after [`REFRESH_DELAY`]. An event
/// about log lines makes the page read those that it lacks, and nothing else.
fn keep_current(
    id: OccurrenceId,
    data: RwSignal<OccurrenceView>,
    event_at: RwSignal<Option<String>>,
    lines: Option<LogLines>,
) -> ThrottledRefresh {
    // After a pause or a lost connection there may be too many lines to read them all: then the page reads the newest of
    // those that it lacks, and the number of the others. An interruption during a read is not made up by it.
    let (interruptions, made_up) = (StoredValue::new(0_u32), StoredValue::new(0_u32));
    let has_missed_events = move || interruptions.get_value() != made_up.get_value();
    let refresh = throttled_refresh(
        REFRESH_DELAY,
        move || {
            let before = interruptions.get_value();
            let start = lines.map_or(LOG_END, LogLines::read_start);
            let reads_all = lines.is_some() && !has_missed_events();
            // The read after the end compares all lines, so that one that another server stored very late leaves a gap.
            let is_ended = data.with_untracked(|data| data.row.status.is_final());
            let first = untrack(|| lines.filter(|_| is_ended).and_then(LogLines::first_seq));
            let compared = first.map_or(LOG_END, |first| first - 1);
            async move {
                if !reads_all {
                    return get_occurrence(id, Some(start)).await.map(|view| (before, start, Vec::new(), start, view));
                }
                let (new, view) = futures::try_join!(lines_after(id, start), get_occurrence(id, Some(compared)))?;
                if new.len() < MAX_READ_PAGES * LOG_PAGE_LINES {
                    return Ok((before, start, new, compared, view));
                }
                let last = new.last().map_or(start, |line| line.seq);
                get_occurrence(id, Some(last)).await.map(|view| (before, start, new, last, view))
            }
        },
        move |(before, start, new, compared, mut read): (u32, i64, Vec<LogLine>, i64, OccurrenceView)| {
            made_up.set_value(before);
            let log = std::mem::take(&mut read.log);
            if let Some(lines) = lines {
                lines.merge_read(&new, start, 0);
                lines.merge_read(&log, compared, read.log_skipped);
            }
            if read.row.version >= data.with_untracked(|data| data.row.version) {
                data.set(read);
            }
        },
    );
    let follow = lines.map(|lines| follow_log(id, lines, has_missed_events));
    let live = use_context::<LiveUpdates>();
    if live.is_some_and(LiveUpdates::received_recently) {
        refresh.request();
    }
    if let Some(follow) = follow.as_ref().filter(|_| live.is_some_and(LiveUpdates::received_log_recently)) {
        follow.request();
    }
    let handle = refresh.clone();
    use_live_updates(move |envelope: &EventEnvelope| match &envelope.event {
        LiveEvent::Occurrences { rows } => {
            let Some(row) = rows.iter().find(|row| row.id == id) else { return };
            if row.version >= data.with_untracked(|data| data.row.version) {
                event_at.set(Some(format::iso(envelope.at)));
                data.update(|data| {
                    // The view was read for another instance. This one has just reported.
                    data.instance_alive |= row.instance_id != data.row.instance_id;
                    data.row = row.clone();
                });
            }
            refresh.request();
        }
        event if event.concerns_log(id) => match &follow {
            // The present read may have begun before these lines were stored.
            Some(_) if has_missed_events() => refresh.request(),
            Some(follow) if !browser::is_hidden() => follow.request(),
            _ => {}
        },
        // The availability of a worker is part of the explanation for a queued and a running occurrence.
        LiveEvent::Workers if data.with_untracked(|data| !data.row.status.is_final()) => refresh.request(),
        _ if is_resync(envelope) => {
            interruptions.update_value(|count| *count += 1);
            refresh.request();
        }
        _ => {}
    });
    handle
}

/// Returns a refresh that reads the lines that the page lacks. A hidden tab reads none until it is visible again.
fn follow_log(
    id: OccurrenceId,
    lines: LogLines,
    has_missed_events: impl Fn() -> bool + Copy + Send + Sync + 'static,
) -> ThrottledRefresh {
    let follow = throttled_refresh(
        LOG_READ_DELAY,
        move || {
            let start = lines.read_start();
            let is_covered = has_missed_events();
            async move {
                let new = if is_covered { Vec::new() } else { lines_after(id, start).await? };
                Ok::<_, AppError>((start, new))
            }
        },
        move |(start, new): (i64, Vec<LogLine>)| lines.merge_read(&new, start, 0),
    );
    let handle = follow.clone();
    Effect::new(move |_| {
        let follow = follow.clone();
        let seen = window_event_listener_untyped("visibilitychange", move |_| {
            if !browser::is_hidden() {
                follow.request();
            }
        });
        on_cleanup(move || seen.remove());
    });
    handle
}

/// Reads the lines after a line in pages, at most [`MAX_READ_PAGES`].
async fn lines_after(id: OccurrenceId, mut after: i64) -> Result<Vec<LogLine>, AppError> {
    let mut lines = Vec::new();
    for _ in 0..MAX_READ_PAGES {
        let page = log_range(id, after, LOG_END).await?;
        let is_last = page.len() < LOG_PAGE_LINES;
        after = page.last().map_or(after, |line| line.seq);
        lines.extend(page);
        if is_last {
            break;
        }
    }
    Ok(lines)
}

#[component]
fn ProgressBar(data: RwSignal<OccurrenceView>) -> impl IntoView {
    let progress = Memo::new(move |_| {
        data.with(|data| data.row.progress.clone().filter(|_| data.row.status == OccurrenceStatus::Running))
    });
    move || {
        progress.get().map(|progress| {
            view! {
                <div class="cluster">
                    <progress class="progress" max="100" value=progress.percent.to_string() aria-label="Progress"></progress>
                    <span>{format!("{} %", progress.percent)}</span>
                    <span class="muted">{progress.message}</span>
                </div>
            }
        })
    }
}

/// Lists the newest occurrences that this one has enqueued, if there are any.
#[component]
fn Children(id: OccurrenceId, data: RwSignal<OccurrenceView>) -> impl IntoView {
    let children = Memo::new(move |_| data.with(|data| (data.children.clone(), data.has_more_children)));
    move || {
        let (rows, has_more) = children.get();
        if rows.is_empty() {
            return None;
        }
        let count = rows.len();
        let items: Vec<_> = rows
            .into_iter()
            .map(|row| {
                view! {
                    <li class="cluster">
                        <StatusBadge status=Signal::stored(row.status) cancelling=Signal::stored(row.is_cancelling())/>
                        <a href=format!("/occurrences/{}", row.id)>{row.job_name}</a>
                        <Time at=row.scheduled_for/>
                    </li>
                }
            })
            .collect();
        let more = has_more.then(|| {
            view! {
                <p class="muted">
                    {format!("The newest {count} are shown. ")}
                    <a href=format!("/occurrences?parent={id}")>"List all"</a>
                </p>
            }
        });
        Some(view! {
            <section class="card" aria-labelledby="children-title">
                <h2 class="card-title" id="children-title">"Enqueued occurrences"</h2>
                <ul class="stack">{items}</ul>
                {more}
            </section>
        })
    }
}

/// Lists the facts of the occurrence.
#[component]
fn OccurrenceFacts(data: RwSignal<OccurrenceView>) -> impl IntoView {
    let first = data.get_untracked();
    let id = first.row.id.to_string();
    let job_id = first.row.job_id.to_string();
    let trace_id = first.trace_id.clone();
    let trace = first.trace_url.clone().map(|url| {
        view! { <a href=url rel="noreferrer">"Open trace"</a> }
    });
    let job = if first.job_exists {
        view! { <a href=format!("/jobs/{job_id}")>{first.row.job_name.clone()}</a> }.into_any()
    } else {
        view! { <span>{first.row.job_name.clone()}</span> <span class="muted">" (deleted)"</span> }.into_any()
    };
    let by = first.triggered_by.as_ref().map(|who| format!(" by {who}"));
    let with = first.trigger_token.as_ref().map(|token| format!(" with the token {token}"));
    let reason = first.trigger_reason.as_ref().filter(|reason| !reason.is_empty()).map(|reason| format!(": {reason}"));
    let repeats = first.repeats.map(|failed| {
        view! {
            <dt>"Retry of"</dt>
            <dd><a class="mono" href=format!("/occurrences/{failed}")>{failed.to_string()}</a></dd>
        }
    });
    let parent = first.parent_id.map(|parent| {
        view! {
            <dt>"Enqueued by"</dt>
            <dd><a class="mono" href=format!("/occurrences/{parent}")>{parent.to_string()}</a></dd>
        }
    });
    let started = Signal::derive(move || data.with(|data| data.row.started_at));
    let ended = Signal::derive(move || data.with(|data| data.row.ended_at));
    let waits_until = Signal::derive(move || data.with(delayed_until));
    let millis = Signal::derive(move || data.with(|data| data.row.duration_ms));
    let running = Signal::derive(move || data.with(|data| data.row.status == OccurrenceStatus::Running));
    let note = Memo::new(move |_| data.with(unexplained_note));
    let note = move || {
        note.get().map(|note| {
            view! {
                <dt>"Note"</dt>
                <dd>{note}</dd>
            }
        })
    };
    let instance = move || data.with(|data| data.row.instance_id.clone().unwrap_or_else(|| "–".into()));
    view! {
        <section class="card" aria-labelledby="facts">
            <h2 class="card-title" id="facts">"Context"</h2>
            <dl class="kv">
                <dt>"Job"</dt>
                <dd>{job} <span class="muted">{format!(" version {}", first.job_version)}</span></dd>
                <dt>"Job type"</dt>
                <dd class="mono">{format!("{}/{}", first.worker_id, first.job_type)}</dd>
                <dt>"Trigger"</dt>
                <dd>{first.row.trigger.as_str()}{by}{with}{reason}</dd>
                {repeats}
                {parent}
                <dt>"Due"</dt>
                <dd><Time at=first.row.scheduled_for/></dd>
                <dt>"Started"</dt>
                <dd><MaybeTime at=started/></dd>
                <dt>"Ended"</dt>
                <dd><MaybeTime at=ended/></dd>
                <dt>"Duration"</dt>
                <dd><Duration started_at=started millis running/></dd>
                <dt>"Attempt"</dt>
                <dd>
                    {move || data.with(|data| data.row.attempt)}
                    <Show when=move || waits_until.get().is_some()>
                        <span class="muted">" delayed until "</span>
                        <MaybeTime at=waits_until/>
                    </Show>
                </dd>
                <dt>"Worker instance"</dt>
                <dd class="mono">{instance}</dd>
                {note}
                <dt>"Occurrence id"</dt>
                <dd class="cluster">
                    <code class="mono">{id.clone()}</code>
                    <CopyButton text=id what="occurrence id"/>
                </dd>
                <dt>"Job id"</dt>
                <dd class="cluster">
                    <code class="mono">{job_id.clone()}</code>
                    <CopyButton text=job_id what="job id"/>
                </dd>
                <dt>"Trace id"</dt>
                <dd class="cluster">
                    <code class="mono">{trace_id.clone()}</code>
                    <CopyButton text=trace_id what="trace id"/>
                    {trace}
                </dd>
            </dl>
        </section>
    }
}

#[component]
fn Timeline(data: RwSignal<OccurrenceView>) -> impl IntoView {
    // The event with the new row arrives before the page is read again with the new step. Until then the row supplies
    // the step, except for a requeued or a lost run: the row does not state when that was.
    let steps = move || {
        data.with(|data| {
            let mut steps: Vec<(usize, StatusChange)> = data.changes.iter().cloned().enumerate().collect();
            let row = &data.row;
            let at = if row.status == OccurrenceStatus::Running { row.started_at } else { row.ended_at };
            // A start after the end is no step of the row.
            let last = steps.iter().rev().find(|(_, step)| !duplicates::is_start_after_end(step));
            if let Some(at) = at
                && last.is_some_and(|(_, last)| last.status != row.status)
            {
                let step = StatusChange {
                    status: row.status,
                    at,
                    attempt: row.attempt,
                    by: row.instance_id.clone(),
                    // The note of a running attempt is that of an earlier one.
                    note: row.note.clone().filter(|_| row.status.is_final()),
                };
                steps.push((steps.len(), step));
            }
            steps
        })
    };
    let step = move |(index, change): (usize, StatusChange)| {
        // A cancel request does not change the status. A reason is stated at the step that brought it, not at each later
        // one that repeats it.
        let (is_request, note) = data.with_untracked(|data| {
            let is_request =
                change.status == OccurrenceStatus::Running && data.row.cancel_requested_at == Some(change.at);
            let previous = index.checked_sub(1).and_then(|index| data.changes.get(index)?.note.clone());
            let note = change.note.clone().filter(|note| previous.is_none_or(|previous| !previous.contains(note)));
            (is_request, note)
        });
        let label = match report_notes::is_report_note(&change) {
            true => "Report not read",
            false if is_request => "Cancel requested",
            false => change.status.label(),
        };
        let attempt = (change.attempt > 1).then(|| format!("attempt {}", change.attempt));
        view! {
            <li data-status=change.status.slug()>
                <strong>{label}</strong>
                <Time at=change.at/>
                {attempt.map(|attempt| view! { <span class="muted">{attempt}</span> })}
                {change.by.map(|by| view! { <span class="muted mono">{by}</span> })}
                {note.map(|note| view! { <p>{note}</p> })}
            </li>
        }
    };
    view! {
        <section class="card" aria-labelledby="timeline">
            <h2 class="card-title" id="timeline">"Timeline"</h2>
            <ol class="timeline">
                <For each=steps key=|(index, change)| (*index, step_key(change)) children=step/>
            </ol>
        </section>
    }
}

/// Returns the key of a step: everything by which a step differs from the one that was shown at its position.
fn step_key(change: &StatusChange) -> (i16, i64, i32, Option<String>, Option<String>) {
    (change.status.code(), change.at.timestamp_millis(), change.attempt, change.by.clone(), change.note.clone())
}
