//! One occurrence: its status and the reason for it, its timeline and result, and its log while it is written.

pub mod cancel;
pub mod children;
pub mod facts;
mod follow;
pub mod outcome;
pub mod timeline;

use leptos::prelude::*;
use leptos_router::hooks::{use_params_map, use_query_map};
use milvaion_api::{
    audit::{AuditObject, AuditRow},
    page::ListPage,
    permissions::Permission,
    views::OccurrenceView,
};
use milvaion_protocol::{id::OccurrenceId, message::LogLine, status::OccurrenceStatus};

use self::{
    cancel::{CancelButton, EXPLANATION_ID},
    children::Children,
    facts::OccurrenceFacts,
    follow::{LOG_END, keep_current},
    outcome::{OccurrenceInput, OccurrenceOutcome, is_log_first},
    timeline::Timeline,
};
use crate::{
    api::{
        occurrences::{get_occurrence, log_before},
        session::{FlashView, take_flash},
    },
    components::{
        action_error::{ActionError, LastError},
        audit_list::{AuditSlice, read_slice},
        dialog::once_true,
        duplicate_start_warning::DuplicateStartWarning,
        form::ErrorSummary,
        icon::Icon,
        loading::render_page,
        log_lines::LogLines,
        log_view::{LOG_PAGE_LINES, LogView},
        page_header::{Breadcrumbs, LiveTitle, PageHeader},
        session_context::{SessionContext, may},
        status_badge::StatusBadge,
        status_explanation::explain_status,
    },
    error::AppError,
};

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
    let title = Signal::derive(move || {
        let status = if cancelling.get() { "Cancelling…" } else { status.get().label() };
        format!("{status} {} · Occurrence", name.get())
    });
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
        <LiveTitle text=title/>
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
