//! The page of a job: its definition, its next runs, its occurrences, its history, and the actions on it.

pub mod actions;
pub mod definition;
pub mod delayed;
pub mod delete;
pub mod history;
pub mod rules;
pub mod run_with_input;
pub mod shown_state;
pub mod skip_due;
pub mod source;

mod field_labels;

use std::time::Duration;

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use leptos_router::hooks::{use_params_map, use_query_map};
use milvaion_api::{
    events::LiveEvent,
    page::{ListPage, OccurrenceFilter},
    permissions::Permission,
    views::{JobView, OccurrenceRow},
};
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde::{Deserialize, Serialize};

use self::{
    actions::{PauseWithReason, RunNow},
    definition::JobDefinitionCard,
    delayed::{CancelDelayedButton, cancel_delayed_question},
    delete::{DeleteJobButton, delete_question},
    history::{HistoryPage, HistoryQuery, JobHistorySection},
    run_with_input::{RunWithInput, RunWithInputSection},
    shown_state::{ShownState, ShownStates},
    skip_due::{SkipDueButton, SkipDueSection},
    source::{CodeNotice, FileNotice},
};
use crate::{
    api::{
        jobs::job,
        occurrences::{list_occurrences, run_input},
        session::{FlashView, take_flash},
    },
    components::{
        action_error::{ActionError, LastError},
        action_menu::ActionMenu,
        cluster_state::use_cluster_pause,
        confirm::ConfirmSection,
        due_refresh::use_due_refresh,
        empty_state::EmptyState,
        form::ErrorSummary,
        icon::Icon,
        loading::render_page,
        occurrence_table::OccurrenceTable,
        page_header::{Breadcrumbs, LiveTitle, PageHeader},
        schedule_field::NextRunsPreview,
        session_context::{SessionContext, may},
        summary_box::SummaryBox,
    },
    error::AppError,
    live::{ThrottledRefresh, live_page, set_if_changed},
};

/// The number of occurrences that the page shows.
const OCCURRENCES_PER_PAGE: u32 = 25;
/// The id of the heading of the occurrences.
const OCCURRENCES_HEADING: &str = "its-occurrences";

/// The tabs of a job's page with the data of the one that is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum JobTab {
    Overview(ListPage<OccurrenceRow>),
    History(HistoryPage),
}

/// `/jobs/:id`. With `tab=history` in the address it shows the versions of the job: those before `before`, and the
/// difference from version `from` to version `to`. With `run_again` it asks to run the job with the input of that
/// occurrence.
#[component]
pub fn JobPage() -> impl IntoView {
    let params = use_params_map();
    let query = use_query_map();
    let id = Memo::new(move |_| params.with(|params| params.get("id").and_then(|id| id.parse::<JobId>().ok())));
    let history = Memo::new(move |_| {
        query.with(|query| {
            let number = |name: &str| query.get_str(name).and_then(|text| text.parse::<i32>().ok());
            let request = HistoryQuery { before: number("before"), pair: number("from").zip(number("to")) };
            (query.get_str("tab") == Some("history")).then_some(request)
        })
    });
    let again = Memo::new(move |_| query.with(|query| query.get_str("run_again")?.parse::<OccurrenceId>().ok()));
    let session = use_context::<SessionContext>();
    let data = Resource::new_blocking(
        move || (id.get(), history.get(), again.get()),
        move |(id, history, again)| {
            let session = session.clone();
            async move {
                let id = id.ok_or_else(no_such_job)?;
                let part = async {
                    Ok(match history {
                        None => JobTab::Overview(list_occurrences(filter(id)).await?),
                        Some(request) => JobTab::History(HistoryPage::read(id, request, session).await?),
                    })
                };
                let flash = async { Ok(take_flash("trigger".into()).await?.unwrap_or_default()) };
                let input = async {
                    let Some(occurrence) = again else { return Ok(None) };
                    let input = run_input(occurrence, id).await?;
                    Ok(Some(input.map(|input| serde_json::to_string_pretty(&input).unwrap_or_default())))
                };
                futures::try_join!(job(id), part, flash, input)
            }
        },
    );
    render_page(data, |(job, part, flash, again): (JobView, JobTab, FlashView, Option<Option<String>>)| {
        view! { <JobContent job part flash again/> }
    })
}

/// Returns the error for an address that does not hold a job id.
pub(super) fn no_such_job() -> AppError {
    let error = AppError::NotFound(
        "This job does not exist or has been deleted. Occurrences of a deleted job are still listed under Occurrences."
            .into(),
    );
    #[cfg(feature = "ssr")]
    let error = crate::api::with_error_status(error);
    error
}

fn filter(id: JobId) -> OccurrenceFilter {
    OccurrenceFilter { job_id: Some(id), limit: OCCURRENCES_PER_PAGE, ..OccurrenceFilter::default() }
}

#[component]
fn JobContent(
    job: JobView,
    part: JobTab,
    flash: FlashView,
    /// The input of the run that the user wants to run again, if there is such a run; it is none if that run is deleted.
    again: Option<Option<String>>,
) -> impl IntoView {
    let id = job.row.id;
    let question = use_query_map().with_untracked(|query| query.get("confirm")).unwrap_or_default();
    let delete = delete_question(id, &job.row.display_name);
    let cancel_delayed = cancel_delayed_question(id, &job.row.display_name, job.delayed);
    let whole: Vec<_> = flash.error.iter().map(|text| (String::new(), text.clone())).collect();
    let view = RwSignal::new(job);
    let is_deleted = RwSignal::new(false);
    let is_history = matches!(part, JobTab::History(_));
    let states = ShownStates::new();
    let refresh = keep_current(id, view, is_deleted, states);
    let own_refresh = refresh.clone();
    let on_change = Callback::new(move |()| own_refresh.request_own());
    let count_refresh = delayed::keep_count(id, view);

    let name = Signal::derive(move || view.with(|job| job.row.display_name.clone()));
    let input =
        Memo::new(move |_| view.with(|job| serde_json::to_string_pretty(&job.definition.job_data).unwrap_or_default()));
    let is_active = Memo::new(move |_| view.with(|job| job.row.is_active));
    // A memo, so that a refresh of the job does not redraw the notice.
    let source = Memo::new(move |_| view.with(|job| job.source.clone()));
    let set_active = Callback::new(move |state: ShownState| {
        states.record(id, state);
        view.update(|job| job.row.is_active = state.is_active);
        if state.is_answered {
            refresh.request_own();
        }
    });
    let title = Signal::derive(move || format!("{}{} · Jobs", name.get(), if is_history { " · History" } else { "" }));
    let may_run = may(Permission::RunJob);
    let may_define = may(Permission::DefineJob);
    let may_delete = may(Permission::DeleteJob);
    let may_cancel = may(Permission::CancelOccurrence);
    // The actions that cannot be undone are the last of the menu.
    let has_danger = Memo::new(move |_| may_delete || (may_cancel && view.with(|job| job.delayed > 0)));
    // Outside the views of the actions, which a success draws again.
    let (run_error, pause_error) = (LastError::of("Run now"), LastError::of("Pause or resume"));
    let (delete_error, attach_error) = (LastError::of("Delete job"), LastError::of("Attach to the code"));
    let (cancel_error, skip_error) = (LastError::of("Cancel all delayed"), LastError::of("Skip next run"));
    let is_run_deleted = may_run && again == Some(None);
    let again = again.flatten();
    // A refused form keeps what was typed.
    let asks_run =
        question == "run" || again.is_some() || !flash.fields.is_empty() || !flash.typed("input_json").is_empty();
    let plain_run = (asks_run && may_run).then(|| {
        let again = again.clone();
        view! { <RunWithInputSection id name current=input flash again/> }
    });

    view! {
        <LiveTitle text=title/>
        <Breadcrumbs steps=vec![("/jobs".into(), "Jobs".into())] here=name/>
        <PageHeader title=name>
            {may_run.then(|| view! { <RunNow id name error=run_error class="btn btn-primary"/> })}
            {may_define.then(|| view! { <PauseWithReason id name is_active on_change=set_active error=pause_error/> })}
            {(may_run || may_define || may_cancel || may_delete)
                .then(|| {
                    view! {
                        <ActionMenu>
                            {may_run.then(|| view! { <RunWithInput id name current=input again/> })}
                            {may_define
                                .then(|| {
                                    view! {
                                        <a class="btn" href=format!("/jobs/{id}/edit")>
                                            <Icon name="pencil"/>
                                            "Edit"
                                        </a>
                                        <a class="btn" href=format!("/jobs/new?from={id}")>
                                            <Icon name="copy"/>
                                            "Duplicate"
                                        </a>
                                        <SkipDueButton view error=skip_error on_change/>
                                    }
                                })}
                            <hr hidden=move || !has_danger.get()/>
                            {may_cancel
                                .then(|| view! { <CancelDelayedButton view error=cancel_error refresh=count_refresh/> })}
                            {may_delete.then(|| view! { <DeleteJobButton id name error=delete_error/> })}
                        </ActionMenu>
                    }
                })}
        </PageHeader>
        <ActionError error=run_error/>
        <ActionError error=pause_error/>
        <ActionError error=delete_error/>
        <ActionError error=cancel_error/>
        <ActionError error=skip_error/>
        <ErrorSummary errors=whole/>
        {is_run_deleted.then(run_deleted)}
        {plain_run}
        {(question == "skip-due" && may_define).then(|| view! { <SkipDueSection view/> })}
        {may_cancel.then(|| view! { <ConfirmSection id="cancel-delayed" what=cancel_delayed/> })}
        {may_delete.then(|| view! { <ConfirmSection id="delete" what=delete/> })}
        {move || is_deleted.get().then(deleted)}
        {move || view.with(|job| (!job.row.is_active).then(|| paused(job.paused_reason.clone())))}
        {move || view.with(|job| (!job.row.worker_alive).then(|| no_worker(&job.row.worker_id, &job.row.job_type)))}
        {move || view.with(|job| job.unreadable.as_deref().map(unreadable))}
        <FileNotice source/>
        <ActionError error=attach_error/>
        <CodeNotice id source may_attach=may_define error=attach_error on_change/>
        <nav class="tabs" aria-label="Job sections">
            <a href=format!("/jobs/{id}") aria-current=(!is_history).then_some("page")>"Overview"</a>
            <a href=format!("/jobs/{id}?tab=history") aria-current=is_history.then_some("page")>"History"</a>
        </nav>
        {match part {
            JobTab::Overview(occurrences) => view! { <JobOverview view occurrences/> }.into_any(),
            JobTab::History(history) => view! { <JobHistorySection view history/> }.into_any(),
        }}
    }
}

/// The first tab: the definition, the next runs and the newest occurrences.
#[component]
fn JobOverview(view: RwSignal<JobView>, occurrences: ListPage<OccurrenceRow>) -> impl IntoView {
    let id = view.with_untracked(|job| job.row.id);
    // A memo, so that a refresh that changes nothing here keeps the table of due times as it is.
    let preview = Memo::new(move |_| view.with(|job| Some(job.preview.clone())));
    let pause = use_cluster_pause();
    let is_held = Memo::new(move |_| pause.with(Option::is_some) && view.with(|job| job.row.next_fire_at.is_some()));
    let held = move || {
        is_held.get().then(|| {
            view! {
                <p class="notice" data-kind="info" id="schedule-held">
                    <Icon name="circle-pause"/>
                    <span>"The cluster is paused: a due time starts no run until the cluster resumes."</span>
                </p>
            }
        })
    };
    view! {
        <div class="form-grid">
            <JobDefinitionCard view/>
            <SummaryBox heading="schedule">
                <h2 id="schedule">"Schedule"</h2>
                {held}
                <NextRunsPreview preview otherwise="No further runs are scheduled."/>
            </SummaryBox>
        </div>
        <section class="stack" aria-labelledby=OCCURRENCES_HEADING>
            <div class="card-head">
                <h2 id=OCCURRENCES_HEADING tabindex="-1">"Occurrences"</h2>
                <a href=format!("/failed?job={id}")>"Open failures"</a>
            </div>
            <OccurrenceTable
                filter=filter(id)
                page=occurrences
                caption="Occurrences of this job, newest first"
                names_job=false
                heading=OCCURRENCES_HEADING
                empty=|| {
                    view! {
                        <EmptyState
                            icon="history"
                            title="No occurrences yet"
                            text="Every run of this job is listed here. The first one appears when the job is due or is run manually."
                        />
                    }
                }
            />
            <nav class="pager" aria-label="Occurrences of this job">
                <a class="btn" href=format!("/occurrences?job={id}")>
                    "All occurrences of this job"
                    <Icon name="chevron-right"/>
                </a>
            </nav>
        </section>
    }
}

fn deleted() -> AnyView {
    view! {
        <div class="notice" data-kind="warn" role="status">
            <Icon name="trash-2"/>
            <p>
                "This job has been deleted. "
                <a href="/jobs">"All jobs"</a>
            </p>
        </div>
    }
    .into_any()
}

fn run_deleted() -> AnyView {
    view! {
        <div class="notice" data-kind="warn" role="status">
            <Icon name="trash-2"/>
            <p>"The run that you want to run again is deleted, and its input with it."</p>
        </div>
    }
    .into_any()
}

fn paused(reason: Option<String>) -> AnyView {
    let reason = reason.filter(|reason| !reason.is_empty()).map(|reason| format!(" Reason: {reason}"));
    view! {
        <div class="notice" data-kind="info">
            <Icon name="circle-pause"/>
            <p>"This job is paused: its schedule starts no runs. To run it now, choose “More”, then “Run with different input…”, and select “Run anyway”." {reason}</p>
        </div>
    }
    .into_any()
}

fn unreadable(part: &str) -> AnyView {
    let text = format!(
        "This server cannot read {part} of this job, which a newer server has saved, so it starts none of the scheduled runs. A newer server does. Upgrade this server.",
    );
    view! {
        <div class="notice" data-kind="warn" id="unreadable-job">
            <Icon name="triangle-alert"/>
            <p>{text}</p>
        </div>
    }
    .into_any()
}

fn no_worker(worker_id: &str, job_type: &str) -> AnyView {
    let text = format!("No live instance of worker {worker_id} offers {job_type}. Runs stay queued until one does.");
    view! {
        <div class="notice" data-kind="warn">
            <Icon name="triangle-alert"/>
            <p>{text}</p>
        </div>
    }
    .into_any()
}

/// Reads the job again after an event that may have changed it, and once a due time on the page has passed. Returns the
/// refresh, so that an action on the page can request it.
fn keep_current(
    id: JobId,
    view: RwSignal<JobView>,
    is_deleted: RwSignal<bool>,
    states: ShownStates,
) -> ThrottledRefresh {
    let refresh = live_page(
        Duration::from_millis(300),
        // Without the event, as after a pause, only the read shows that the job was deleted.
        move || {
            states.begin_read();
            async move {
                match job(id).await {
                    Err(AppError::NotFound(_)) => Ok(None),
                    read => read.map(Some),
                }
            }
        },
        move |envelope| match &envelope.event {
            LiveEvent::Job { id: changed } => *changed == id,
            LiveEvent::JobDeleted { id: deleted_id } => {
                if *deleted_id == id {
                    is_deleted.set(true);
                }
                false
            }
            // A run of the schedule, whose due time is no longer the next one.
            LiveEvent::Occurrences { rows } => rows.iter().any(|run| {
                run.job_id == id && view.with_untracked(|job| latest_due_before(job, run.scheduled_for).is_some())
            }),
            LiveEvent::Workers | LiveEvent::Cluster => true,
            _ => false,
        },
        move |read: Option<JobView>| {
            let Some(mut read) = read else {
                is_deleted.set(true);
                return;
            };
            states.correct(&mut read.row);
            set_if_changed(view, read);
        },
    );
    use_due_refresh(
        move |now| if is_deleted.get() { None } else { view.with(|job| latest_due_before(job, now)) },
        refresh.clone(),
    );
    refresh
}

/// Returns the latest due time on the page that is not after `now`.
fn latest_due_before(job: &JobView, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let preview = job.preview.runs.iter().map(|run| run.at);
    preview.chain(job.row.next_fire_at).filter(|due| *due <= now).max()
}
