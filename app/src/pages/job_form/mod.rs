//! The form for a new or an edited job: one page with seven sections, and beside them a summary with the next runs.
//!
//! The page is one plain form whose fields are named as in [`JobForm`]. A browser
//! without scripts posts it and is redirected back here with everything that was typed and each error beside its field.
//! A script posts the same fields to the same server function, and requests a check a moment after each change. Only
//! the server validates, so the browser has no rules of its own that could differ.

pub mod blackouts;
pub mod job_type;
pub mod limits;
pub mod rules;

use std::collections::BTreeMap;

use leptos::{ev, prelude::*, server_fn::ServerFn};
use leptos_meta::Title;
use leptos_router::{
    NavigateOptions,
    hooks::{use_navigate, use_params_map, use_query_map},
};
use milvaion_api::{requests::JobForm, schema_form, views::JobTypeView};
use milvaion_protocol::{id::JobId, message::JobDefaults};
use serde_json::Value;

use self::{
    blackouts::BlackoutSection,
    job_type::JobTypeSection,
    limits::LimitsSection,
    rules::{FailureSection, OverlapSection},
};
use super::job::source::{CodeEditWarning, FileEditWarning};
use crate::{
    api::{
        jobs::{CheckJob, JobCheck, JobFormPage, SaveJob, check_job, load_job_form, refused_run_notice},
        session::FlashView,
    },
    components::{
        action::UserAction,
        action_error::PageNotice,
        form::ErrorSummary,
        form_check::{CheckedPreview, FORM_SUMMARY_ID, debounced_check, focus_error_summary},
        form_draft::{DraftNotice, FormDraft, render_with_draft},
        icon::Icon,
        input_form::{FormState, InputForm, fits_schema, with_defaults},
        leave_guard::GuardedForm,
        loading::render_page,
        page_header::{Breadcrumbs, PageHeader},
        schedule_field::{NextRunsPreview, ScheduleField},
        summary_box::SummaryBox,
        toast::toasts,
    },
};

/// `/jobs/new?type=worker/type`, or `/jobs/new?from=ID` for a copy of a job.
#[component]
pub fn NewJobPage() -> impl IntoView {
    let query = use_query_map();
    let start = Memo::new(move |_| {
        query.with(|query| (query.get("type"), query.get("from").and_then(|id| id.parse::<JobId>().ok())))
    });
    let data = Resource::new_blocking(move || start.get(), |(target, from)| load_job_form(None, target, from));
    render_page(data, |data: JobFormPage| restorable(None, data))
}

/// `/jobs/:id/edit`.
#[component]
pub fn EditJobPage() -> impl IntoView {
    let params = use_params_map();
    let id = Memo::new(move |_| params.with(|params| params.get("id").and_then(|id| id.parse::<JobId>().ok())));
    let data = Resource::new_blocking(
        move || id.get(),
        |id| async move {
            let id = id.ok_or_else(super::job::no_such_job)?;
            load_job_form(Some(id), None, None).await
        },
    );
    render_page(data, move |data: JobFormPage| restorable(id.get_untracked(), data))
}

fn restorable(id: Option<JobId>, data: JobFormPage) -> AnyView {
    render_with_draft(data, restore_draft, move |data, draft| view! { <JobFormContent id data draft/> }.into_any())
}

/// Returns the page with the values of a draft, at the version of the page. The values of a plain post that was just
/// rejected are newer.
fn restore_draft(mut data: JobFormPage, values: Value) -> Option<JobFormPage> {
    let form = serde_json::from_value::<JobForm>(values.clone()).ok()?;
    if form.id != data.form.id || data.flash.as_ref().is_some_and(|flash| !flash.typed.is_null()) {
        return None;
    }
    data.form = JobForm { version: data.form.version, ..form };
    data.flash = Some(FlashView { typed: values, ..FlashView::default() });
    Some(data)
}

#[component]
fn JobFormContent(id: Option<JobId>, data: JobFormPage, draft: FormDraft) -> impl IntoView {
    let JobFormPage { context, form, flash, preview } = data;
    let flash = flash.unwrap_or_default();
    let state = FormState::new(flash.problems());
    let preview = RwSignal::new(preview);
    let target = RwSignal::new(form.target.clone());

    // The schema that a worker announces for the type. For an edited job whose type is no longer announced, the schema
    // that was known when the job was last saved.
    let types = StoredValue::new(context.job_types.clone());
    let own =
        context.job.as_ref().map(|job| (format!("{}/{}", job.row.worker_id, job.row.job_type), job.schema.clone()));
    let own = StoredValue::new(own);
    let schema_of = move |target: &str| -> Option<Value> {
        let announced = types.with_value(|types| {
            types
                .iter()
                .find(|known| known.target() == target)
                .map(|known| known.info.schema.clone())
                .filter(Value::is_object)
        });
        announced
            .or_else(|| own.with_value(|own| own.clone().filter(|(known, _)| known == target).and_then(|(_, s)| s)))
    };
    let schema = Memo::new(move |_| target.with(|target| schema_of(target)));
    // A new job starts with the rules that the code of its type declares. A copy starts with those of its source.
    let is_started_by_code = context.job.is_none();
    let declared_by = move |target: &str| -> JobDefaults {
        let is_target = |known: &&JobTypeView| is_started_by_code && known.target() == target;
        types
            .with_value(|types| types.iter().find(is_target).map(|known| known.info.defaults.clone()))
            .unwrap_or_default()
    };
    let has_declared_rules = Signal::derive(move || target.with(|target| !declared_by(target).is_empty()));
    // Numbered, so that other values draw new elements: a field that was edited ignores a new initial value.
    let first_rules = RwSignal::new((0, form.clone()));

    // After a refusal the page shows the tab that was posted. Otherwise it shows the fields, unless they cannot
    // represent the whole input.
    let first_schema = schema.get_untracked();
    let starts_as_json = if state.errors.with_untracked(Vec::is_empty) && flash.typed.is_null() {
        context.job.as_ref().is_some_and(|job| !fits_schema(first_schema.as_ref(), &job.definition.job_data))
    } else {
        form.input_mode == "json"
    };
    let is_fresh = flash.typed.is_null();
    let values = RwSignal::new(match (&context.job, &first_schema) {
        _ if !is_fresh => form.input.clone(),
        (Some(job), Some(schema)) => schema_form::to_field_texts(schema, &job.definition.job_data),
        _ => with_defaults(first_schema.as_ref(), form.input.clone()),
    });

    let check = debounced_check(
        state,
        move || state.read_job_form(),
        check_job,
        move |check: JobCheck| {
            preview.set(check.preview);
            check.errors
        },
    );
    // What was typed for each type, so that a look at another type loses nothing.
    let typed_by_target = StoredValue::new(BTreeMap::<String, BTreeMap<String, String>>::new());
    let on_target = Callback::new(move |chosen: String| {
        let typed = state.read_job_form().map(|form| form.input).unwrap_or_default();
        let kept = typed_by_target.try_update_value(|kept| {
            kept.insert(target.get_untracked(), typed.clone());
            kept.get(&chosen).cloned()
        });
        // Kept values are complete: a checkbox without a value was cleared by the user.
        values.set(kept.flatten().unwrap_or_else(|| with_defaults(schema_of(&chosen).as_ref(), typed)));
        if let Some(before) = state.read_job_form() {
            let mut form = before.clone();
            form.start_with(&declared_by(&target.get_untracked()), &declared_by(&chosen));
            // The sections are drawn again only for other values, because that closes what the user has opened.
            if form != before {
                first_rules.update(|rules| *rules = (rules.0 + 1, form));
            }
        }
        target.set(chosen);
        check.changed();
    });
    let guarded = GuardedForm::new(state, draft, !is_fresh, Some(check), move || {
        state.read_job_form().and_then(|form| serde_json::to_value(form).ok())
    });
    let action = guarded.save_action();
    let save = saver(id, state, guarded, action);
    focus_error_summary(state);

    let on_input = move |event: ev::Event| {
        if state.touch(&event) {
            guarded.changed();
        }
    };
    let on_focusout = move |event: ev::FocusEvent| {
        if state.touch(&event) {
            check.left_field();
        }
    };
    // A new job may start as a copy of another one.
    let source = context.job.as_ref().map(|job| job.row.id);
    // A copy comes from no file.
    let file_source = context.job.as_ref().filter(|_| id.is_some()).map(|job| job.source.clone());
    let name = context.job.as_ref().filter(|_| id.is_some()).map(|job| job.row.display_name.clone());
    let (title, heading) = match &name {
        Some(name) => (format!("Edit {name} · Jobs"), format!("Edit {name}")),
        None => ("New job · Jobs".to_owned(), "New job".to_owned()),
    };
    let steps = match (&name, id) {
        (Some(name), Some(id)) => {
            vec![("/jobs".into(), "Jobs".into()), (format!("/jobs/{id}"), name.clone())]
        }
        _ => vec![("/jobs".into(), "Jobs".into())],
    };
    let here = if id.is_some() { "Edit" } else { "New" };
    let cancel = id.map_or_else(|| "/jobs".to_owned(), |id| format!("/jobs/{id}"));

    view! {
        <Title text=title/>
        <Breadcrumbs steps here=here.to_owned()/>
        <PageHeader title=heading/>
        {file_source.clone().map(|source| view! { <FileEditWarning source/> })}
        {file_source.map(|source| view! { <CodeEditWarning source/> })}
        <DraftNotice draft noun="job" version=form.version.clone() on_discard=move |()| guarded.forget()/>
        <CheckNotice flash/>
        <form
            id="job-form"
            class="form"
            method="post"
            action=SaveJob::PATH
            node_ref=state.node
            novalidate
            on:submit=move |event| save.run(event)
            on:input=on_input
            on:focusout=on_focusout
        >
            <ErrorSummary id="error-summary" errors=state.listed_errors()/>
            <input type="hidden" name="form[id]" value=form.id.clone()/>
            <input type="hidden" name="form[version]" value=form.version.clone()/>
            <div class="form-grid">
                <div class="form">
                    <JobTypeSection
                        state
                        types=context.job_types
                        own=own.get_value().map(|(target, _)| target)
                        target
                        on_target
                        has_declared_rules
                        form=form.clone()
                    />
                    <InputForm
                        state
                        schema
                        values
                        json=form.input_json.clone()
                        starts_as_json
                        source
                        on_change=move |()| guarded.changed()
                    />
                    <ScheduleField state form=form.clone() zones=context.zones/>
                    <BlackoutSection state form calendars=context.calendars/>
                    <For
                        each=move || [first_rules.get()]
                        key=|(number, _)| *number
                        children=move |(_, form)| {
                            view! {
                                <OverlapSection state form=form.clone()/>
                                <FailureSection state form=form.clone()/>
                                <LimitsSection state form/>
                            }
                        }
                    />
                </div>
                <SummaryBox id=FORM_SUMMARY_ID heading="outcome">
                    <h2 id="outcome">"Summary"</h2>
                    <p>{move || sentence(&target.get())}</p>
                    <CheckedPreview check>
                        <NextRunsPreview preview/>
                    </CheckedPreview>
                </SummaryBox>
            </div>
            <div class="form-actions">
                <button type="submit" class="btn btn-primary" aria-disabled=move || action.disabled()>
                    {if id.is_some() { "Save" } else { "Create" }}
                </button>
                {id
                    .is_none()
                    .then(|| {
                        view! {
                            <button
                                type="submit"
                                class="btn"
                                name="then"
                                value="run"
                                aria-disabled=move || action.disabled()
                            >
                                <Icon name="play"/>
                                "Create and run now"
                            </button>
                        }
                    })}
                <button type="submit" class="btn hide-js" formaction=CheckJob::PATH>"Check"</button>
                <a class="btn btn-quiet" href=cancel>"Cancel"</a>
            </div>
        </form>
    }
}

/// Shows the notice of a plain form's check that found no errors.
#[component]
fn CheckNotice(flash: FlashView) -> impl IntoView {
    flash.notice.map(|notice| {
        view! {
            <div class="notice" data-kind="success" role="status">
                <Icon name="circle-check"/>
                <p>{notice}</p>
            </div>
        }
    })
}

fn sentence(target: &str) -> String {
    match target.split_once('/') {
        Some((worker, job_type)) => format!("Runs {job_type} on worker {worker}."),
        None => "Choose a job type.".into(),
    }
}

/// Returns a callback that saves the form and opens the job's page, or shows the errors.
fn saver(id: Option<JobId>, state: FormState, guarded: GuardedForm, action: UserAction) -> Callback<ev::SubmitEvent> {
    let toasts = toasts();
    let notice = PageNotice::current();
    let navigate = use_navigate();
    Callback::new(move |event: ev::SubmitEvent| {
        event.prevent_default();
        let Some(form) = state.read_job_form() else { return };
        let is_run = event.submitter().is_some_and(|button| button.get_attribute("value").as_deref() == Some("run"));
        let then = if is_run { "run" } else { "" };
        let navigate = navigate.clone();
        action.run(async move {
            let saved = crate::api::jobs::save_job(form, then.into()).await?;
            guarded.forget();
            let page = format!("/jobs/{}", saved.id);
            let mut text = None;
            match (id, saved.run, saved.refusal) {
                (_, _, Some(reason)) => notice.warn_at(&page, refused_run_notice(&reason)),
                (Some(_), ..) => text = Some("The job is saved.".to_owned()),
                (None, Some(run), None) => toasts.show_run("The job is created and queued to run now.", run),
                (None, None, None) => text = Some("The job is created.".to_owned()),
            }
            navigate(&page, NavigateOptions::default());
            Ok(text)
        });
    })
}
