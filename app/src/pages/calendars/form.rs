//! The form for a calendar: name, time zone, days and weekly windows, and beside them the next blackouts.
//!
//! The page is one plain form whose fields are named as in [`CalendarForm`].
//! Only the server validates it, as it does the job form.

use leptos::{ev, html, prelude::*, server_fn::ServerFn};
use leptos_meta::Title;
use leptos_router::{
    NavigateOptions,
    hooks::{use_navigate, use_params_map},
};
use milvaion_api::{
    calendar_form::CalendarForm,
    events::LiveEvent,
    views::{BlackoutView, CalendarView},
};
use milvaion_protocol::id::{CalendarId, JobId};
use serde_json::Value;

use super::{
    REFRESH_DELAY, applied_words,
    delete::{DeleteCalendarButton, delete_question},
    no_such_calendar,
    windows::WindowsSection,
};
use crate::{
    api::calendars::{
        CalendarCheck, CalendarFormPage, CheckCalendar, SaveCalendar, check_calendar, get_calendar, load_calendar_form,
        save_calendar, saved_notice,
    },
    api::session::FlashView,
    components::{
        action::UserAction,
        action_error::{ActionError, LastError},
        confirm::ConfirmSection,
        fields::TextareaField,
        form::ErrorSummary,
        form_check::{CheckedPreview, FORM_SUMMARY_ID, debounced_check, focus_error_summary},
        form_draft::{DraftNotice, FormDraft, render_with_draft},
        icon::Icon,
        input_form::FormState,
        leave_guard::GuardedForm,
        loading::render_page,
        page_header::{Breadcrumbs, PageHeader},
        schedule_field::TextField,
        summary_box::SummaryBox,
        time::Time,
        zone_field::ZoneField,
    },
    live::live_page,
};

/// `/calendars/new`.
#[component]
pub fn NewCalendarPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| load_calendar_form(None));
    render_page(data, restorable)
}

/// `/calendars/:id/edit`.
#[component]
pub fn EditCalendarPage() -> impl IntoView {
    let params = use_params_map();
    let id = Memo::new(move |_| params.with(|params| params.get("id").and_then(|id| id.parse::<CalendarId>().ok())));
    let data = Resource::new_blocking(
        move || id.get(),
        |id| async move { load_calendar_form(Some(id.ok_or_else(no_such_calendar)?)).await },
    );
    render_page(data, restorable)
}

fn restorable(data: CalendarFormPage) -> AnyView {
    render_with_draft(data, restore_draft, |data, draft| view! { <CalendarFormContent data draft/> }.into_any())
}

/// Returns the page with the values of a draft, at the version of the page. The values of a plain post that was just
/// rejected are newer.
fn restore_draft(mut data: CalendarFormPage, values: Value) -> Option<CalendarFormPage> {
    let mut form = serde_json::from_value::<CalendarForm>(values.clone()).ok()?;
    // The spare rows of a browser without scripts are part of the form, but hidden.
    form.windows.retain(|_, row| row.values().any(|value| !value.is_empty()));
    if form.id != data.form.id || data.flash.as_ref().is_some_and(|flash| !flash.typed.is_null()) {
        return None;
    }
    data.form = CalendarForm { version: data.form.version, ..form };
    data.flash = Some(FlashView { typed: values, ..FlashView::default() });
    Some(data)
}

#[component]
fn CalendarFormContent(data: CalendarFormPage, draft: FormDraft) -> impl IntoView {
    let CalendarFormPage { calendar, zones, form, flash, blackouts } = data;
    let flash = flash.unwrap_or_default();
    let state = FormState::new(flash.problems());
    let blackouts = RwSignal::new(blackouts);
    let check = debounced_check(
        state,
        move || typed(state),
        check_calendar,
        move |check: CalendarCheck| {
            blackouts.set(check.blackouts);
            check.errors
        },
    );
    let guarded = GuardedForm::new(state, draft, !flash.typed.is_null(), Some(check), move || {
        typed(state).and_then(|form| serde_json::to_value(form).ok())
    });
    let action = guarded.save_action();
    let save = saver(state, guarded, action, calendar.is_some());
    focus_error_summary(state);
    let changed = move || guarded.changed();
    let name = calendar.as_ref().map(|view| view.calendar.name.clone());
    let (title, here) = match &name {
        Some(name) => (format!("Edit {name}"), name.clone()),
        None => ("New calendar".to_owned(), "New".to_owned()),
    };
    let delete = calendar.as_ref().map(|view| (view.id, view.calendar.name.clone()));
    let section =
        delete.clone().map(|(id, name)| view! { <ConfirmSection id="delete" what=delete_question(id, &name)/> });
    let applied = calendar.as_ref().map(|view| (view.id, view.pending_jobs));
    let users = calendar.as_ref().map(|view| (view.jobs.clone(), view.jobs_total));
    let changed_by = calendar.map(|view| (view.modified_at, view.modified_by, view.version));
    let verb = if name.is_some() { "Save" } else { "Create" };
    let delete_error = LastError::of("Delete calendar");
    view! {
        <Title text=format!("{title} · Calendars")/>
        <Breadcrumbs steps=vec![("/calendars".into(), "Calendars".into())] here/>
        <PageHeader title>
            {delete.map(|(id, name)| view! { <DeleteCalendarButton id name state error=delete_error/> })}
        </PageHeader>
        <ActionError error=delete_error/>
        <DraftNotice draft noun="calendar" version=form.version.clone() on_discard=move |()| guarded.forget()/>
        {flash.notice.map(|notice| view! {
            <div class="notice" data-kind="success" role="status">
                <Icon name="circle-check"/>
                <p>{notice}</p>
            </div>
        })}
        {section}
        <form
            id="calendar-form"
            class="form"
            method="post"
            action=SaveCalendar::PATH
            node_ref=state.node
            novalidate
            on:submit=move |event| save.run(event)
            on:input=move |event: ev::Event| {
                if state.touch(&event) {
                    changed();
                }
            }
            on:focusout=move |event: ev::FocusEvent| {
                if state.touch(&event) {
                    check.left_field();
                }
            }
        >
            <ErrorSummary id="error-summary" errors=state.listed_errors()/>
            <input type="hidden" name="form[id]" value=form.id.clone()/>
            <input type="hidden" name="form[version]" value=form.version.clone()/>
            <div class="form-grid">
                <div class="form">
                    <fieldset class="form-section">
                        <legend>"Name and time zone"</legend>
                        <div class="field-row">
                            <TextField
                                state
                                field="name"
                                label="Name"
                                hint="Shown in job forms; 1 to 100 characters."
                                value=form.name.clone()
                            />
                            <ZoneField
                                state
                                hint="All days and times of this calendar are in this zone."
                                value=form.zone.clone()
                                zones
                            />
                        </div>
                    </fieldset>
                    <DaysSection state text=form.dates.clone() on_change=Callback::new(move |()| changed())/>
                    <WindowsSection state form=form.clone() on_change=Callback::new(move |()| changed())/>
                </div>
                <SummaryBox id=FORM_SUMMARY_ID heading="outcome">
                    <h2 id="outcome">"Next blackouts"</h2>
                    <CheckedPreview check>
                        <UpcomingBlackouts blackouts/>
                    </CheckedPreview>
                    {users.map(|(jobs, total)| view! { <CalendarJobs jobs total/> })}
                    {applied.map(|(id, pending)| view! { <AppliedState id pending/> })}
                    {changed_by.map(|(at, by, version)| view! {
                        <p class="hint">
                            "Changed "
                            <Time at/>
                            {format!(" by {by}, version {version}")}
                        </p>
                    })}
                </SummaryBox>
            </div>
            <div class="form-actions">
                <button type="submit" class="btn btn-primary" aria-disabled=move || action.disabled()>
                    {verb}
                </button>
                <button type="submit" class="btn hide-js" formaction=CheckCalendar::PATH>"Check"</button>
                <a class="btn btn-quiet" href="/calendars">"Cancel"</a>
            </div>
        </form>
    }
}

/// Reads the form from the page. Returns `None` where there is no form, as on the server.
fn typed(state: FormState) -> Option<CalendarForm> {
    state.read::<SaveCalendar>().map(|save| save.form)
}

/// The whole days as lines of text. With a script, two date fields append a line.
#[component]
fn DaysSection(state: FormState, text: String, on_change: Callback<()>) -> impl IntoView {
    let (area, first, last) =
        (NodeRef::<html::Textarea>::new(), NodeRef::<html::Input>::new(), NodeRef::<html::Input>::new());
    let add = Callback::new(move |()| {
        let (Some(area), Some(first), Some(last)) = (area.get(), first.get(), last.get()) else { return };
        let (from, to) = (first.value(), last.value());
        let line = match (from.as_str(), to.as_str()) {
            ("", "") => return,
            (day, "") | ("", day) => day.to_owned(),
            (from, to) if from == to => from.to_owned(),
            (from, to) => format!("{from} to {to}"),
        };
        let before = area.value();
        let before = before.trim_end();
        area.set_value(&if before.is_empty() { line } else { format!("{before}\n{line}") });
        first.set_value("");
        last.set_value("");
        on_change.run(());
    });
    // Enter adds a line here; it must not post the whole form.
    let on_enter = move |event: ev::KeyboardEvent| {
        if event.key() == "Enter" {
            event.prevent_default();
            add.run(());
        }
    };
    view! {
        <fieldset class="form-section">
            <legend>"Whole days"</legend>
            <TextareaField
                id="f-dates"
                name="form[dates]"
                label="Days"
                hint="One day or range per line, such as 2026-12-24 or 2026-12-24 to 2026-12-26. At most 2,000 days."
                optional=true
                text
                error=state.error("dates")
                rows="6"
                node=area
            />
            <div class="date-adder needs-js" role="group" aria-label="Add days by date">
                <div class="field">
                    <label for="add-first">"First day"</label>
                    <input type="date" id="add-first" node_ref=first on:keydown=on_enter/>
                </div>
                <div class="field">
                    <label for="add-last">"Last day"</label>
                    <input type="date" id="add-last" node_ref=last on:keydown=on_enter/>
                </div>
                <button type="button" class="btn" on:click=move |_| add.run(())>
                    <Icon name="plus"/>
                    "Add to the list"
                </button>
            </div>
        </fieldset>
    }
}

/// Lists the next blackouts as the server computes them.
#[component]
fn UpcomingBlackouts(blackouts: RwSignal<Option<Vec<BlackoutView>>>) -> impl IntoView {
    let list = move || match blackouts.get() {
        None => {
            view! { <p class="hint">"The next blackouts appear here when the calendar is complete."</p> }.into_any()
        }
        Some(next) if next.is_empty() => view! {
            <p class="notice" data-kind="warn">
                <Icon name="triangle-alert"/>
                <span>"No upcoming blackouts: all days of this calendar are in the past."</span>
            </p>
        }
        .into_any(),
        Some(next) => {
            let endless = next.iter().any(|blackout| blackout.to.is_none()).then(|| {
                view! {
                    <p class="notice" data-kind="warn">
                        <Icon name="triangle-alert"/>
                        <span>"This blackout never ends: jobs that use this calendar never start."</span>
                    </p>
                }
            });
            let items: Vec<_> = next.into_iter().map(|blackout| view! { <li>{blackout.in_zone}</li> }).collect();
            view! {
                {endless}
                <ol class="falls">{items}</ol>
            }
            .into_any()
        }
    };
    view! { <div class="stack" id="falls" role="status">{list}</div> }
}

/// Lists the jobs that use the calendar.
#[component]
fn CalendarJobs(jobs: Vec<(JobId, String)>, total: i64) -> impl IntoView {
    let others = total - i64::try_from(jobs.len()).unwrap_or(i64::MAX);
    let items: Vec<_> =
        jobs.into_iter().map(|(id, name)| view! { <li><a href=format!("/jobs/{id}")>{name}</a></li> }).collect();
    view! {
        <h3>"Jobs that use this calendar"</h3>
        {items.is_empty().then(|| view! { <p class="hint">"None yet. Select the calendar in a job's form."</p> })}
        <ul class="falls">{items}</ul>
        {(others > 0).then(|| view! { <p class="hint">{format!("And {others} more.")}</p> })}
    }
}

/// Shows how far the last change is applied to the due times of the jobs. The form beside it is left as it is.
#[component]
fn AppliedState(id: CalendarId, pending: Option<i64>) -> impl IntoView {
    let pending = RwSignal::new(pending);
    live_page(
        REFRESH_DELAY,
        move || get_calendar(id),
        move |envelope| matches!(envelope.event, LiveEvent::Calendar { id: changed } if changed == id),
        move |read: CalendarView| pending.set(read.pending_jobs),
    );
    view! { <p class="hint" id="calendar-applied" role="status">{move || applied_words(pending.get())}</p> }
}

/// Returns a callback that saves the form and opens the list, or shows the errors.
fn saver(state: FormState, guarded: GuardedForm, action: UserAction, is_edit: bool) -> Callback<ev::SubmitEvent> {
    let navigate = use_navigate();
    Callback::new(move |event: ev::SubmitEvent| {
        event.prevent_default();
        let Some(form) = typed(state) else { return };
        let navigate = navigate.clone();
        action.run(async move {
            let id = save_calendar(form).await?;
            let saved = if is_edit { get_calendar(id).await.ok() } else { None };
            guarded.forget();
            navigate("/calendars", NavigateOptions::default());
            Ok(Some(saved_notice(is_edit, saved.and_then(|view| view.pending_jobs))))
        });
    })
}
