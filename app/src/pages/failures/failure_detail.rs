//! One failure: its details, and forms that retry or resolve it.

use leptos::{ev, html, prelude::*, server_fn::ServerFn};
use leptos_meta::Title;
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::{failures::FailureRow, permissions::Permission, styled_text::shown_text};
use milvaion_protocol::id::OccurrenceId;

use super::{
    IDLE_REFRESH_INTERVAL, REFRESH_INTERVAL,
    display::{CauseBadge, cause_description},
    failure_row::FailureStateBadge,
    is_failure,
};
use crate::{
    api::{
        failures::{
            FAILURE_RETRIED_NOTICE, ResolveFailures, RetryFailure, get_failure, resolve_failures, resolve_notice,
            retry_failure,
        },
        session::FlashView,
    },
    browser::PAGE_TITLE_ID,
    components::{
        action::{ErrorPlace, UserAction},
        copy_button::CopyButton,
        fields::{InputField, TextareaField},
        focus::hand_focus,
        form::ErrorSummary,
        icon::Icon,
        input_form::{error_of, other_errors},
        page_header::{Breadcrumbs, PageHeader},
        session_context::may,
        time::Time,
    },
    format::capitalized,
    live::{ThrottledRefresh, live_page},
};

/// `/failed/:occurrence`.
#[component]
pub fn FailureDetail(
    /// The failure.
    failure: FailureRow,
    /// The message of the previous form post.
    flash: FlashView,
) -> impl IntoView {
    let id = failure.occurrence_id;
    let name = failure.job_name.clone();
    let fingerprint = failure.fingerprint.clone();
    let input = serde_json::to_string_pretty(&failure.job_data).unwrap_or_default();
    let exception = failure.exception.as_deref().map(|text| shown_text(text).into_owned());
    let data = RwSignal::new(failure);
    let refresh = live_page(REFRESH_INTERVAL, move || get_failure(id), is_failure, move |read| data.set(read))
        .every(IDLE_REFRESH_INTERVAL);

    let is_open = Memo::new(move |_| data.with(|data| data.resolved_at.is_none()));
    let is_retried = Memo::new(move |_| data.with(|data| data.retried_as.is_some()));
    let whole: Vec<_> = flash.error.iter().map(|text| (String::new(), text.clone())).collect();
    let steps = vec![
        ("/failed".to_owned(), "Failures".to_owned()),
        (format!("/failed/{fingerprint}"), "Same cause".to_owned()),
    ];
    let below = if may(Permission::SettleFailures) {
        let (retry, resolve) = match flash.typed("form").as_str() {
            "resolve" => (FlashView::default(), flash),
            _ => (flash, FlashView::default()),
        };
        view! {
            <RetryForm id input is_retried flash=retry/>
            <ResolveForm id is_open flash=resolve refresh/>
        }
        .into_any()
    } else {
        text_block("input", "Input", input).into_any()
    };
    view! {
        <Title text=format!("{name} · Failure")/>
        <Breadcrumbs steps here=name.clone()/>
        <PageHeader title=name.clone()>
            <a class="btn" href=format!("/occurrences/{id}")>
                <Icon name="list-checks"/>
                "View occurrence and log"
            </a>
        </PageHeader>
        <ErrorSummary errors=whole/>
        <div class="stack">
            <FailureFacts data/>
            {exception.map(|text| text_block("exception", "Exception", text))}
            {below}
        </div>
    }
}

#[component]
fn FailureFacts(data: RwSignal<FailureRow>) -> impl IntoView {
    let first = data.get_untracked();
    let id = first.occurrence_id.to_string();
    let state = move || view! { <FailureStateBadge row=data.get()/> };
    let resolved = move || {
        data.with(|data| {
            let at = data.resolved_at?;
            let by = data.resolved_by.clone().map(|who| format!(" by {who}"));
            Some(view! {
                <dt>"Resolved"</dt>
                <dd><Time at=at/>{by}</dd>
            })
        })
    };
    let note = move || {
        data.with(|data| data.resolution_note.clone()).map(|note| {
            view! {
                <dt>"Note"</dt>
                <dd>{note}</dd>
            }
        })
    };
    view! {
        <section class="card" aria-labelledby="facts">
            <h2 class="card-title" id="facts">"Details"</h2>
            <dl class="kv">
                <dt>"State"</dt>
                <dd id="failure-state">{state}</dd>
                {resolved}
                {note}
                <dt>"Cause"</dt>
                <dd class="cluster">
                    <CauseBadge cause=first.cause/>
                    <span class="muted">{cause_description(first.cause)}</span>
                </dd>
                <dt>"Failed"</dt>
                <dd><Time at=first.failed_at/></dd>
                <dt>"Attempt"</dt>
                <dd>{first.attempt}</dd>
                <dt>"Job"</dt>
                <dd>
                    <a href=format!("/jobs/{}", first.job_id)>{first.job_name}</a>
                    <span class="muted">{format!(" version {}", first.job_version)}</span>
                </dd>
                <dt>"Job type"</dt>
                <dd class="mono">{format!("{}/{}", first.worker_id, first.job_type)}</dd>
                <dt>"Occurrence"</dt>
                <dd class="cluster">
                    <a class="mono" href=format!("/occurrences/{id}")>{id.clone()}</a>
                    <CopyButton text=id what="occurrence id"/>
                </dd>
            </dl>
        </section>
    }
}

fn text_block(id: &'static str, title: &'static str, text: String) -> impl IntoView {
    let heading = format!("{id}-title");
    view! {
        <section id=id aria-labelledby=heading>
            <div class="cluster">
                <h2 id=heading.clone()>{title}</h2>
                <CopyButton text=text.clone() what=title.to_lowercase()/>
            </div>
            <pre class="code wrap" tabindex="0" role="region" aria-label=format!("Full {}", title.to_lowercase())><span>{text}</span></pre>
        </section>
    }
}

/// Retries the failure, with the same or an edited input.
#[component]
fn RetryForm(
    id: OccurrenceId,
    /// The input of the failed run.
    input: String,
    is_retried: Memo<bool>,
    /// The input and errors that a plain form left behind.
    flash: FlashView,
) -> impl IntoView {
    let navigate = use_navigate();
    let typed = flash.typed("input_json");
    let text = if typed.is_empty() { input } else { typed };
    let note = flash.typed("note");
    let wrong = RwSignal::new(flash.fields);
    let whole = Signal::derive(move || {
        let whole = wrong.get().into_iter().filter(|error| !matches!(error.field.as_str(), "input_json" | "note"));
        let named = |error: milvaion_api::requests::FieldError| match error.field.as_str() {
            "" => capitalized(&error.message),
            field => format!("{}: {}", field.trim_start_matches("input."), error.message),
        };
        whole.map(|error| (String::new(), named(error))).collect::<Vec<_>>()
    });
    let (field, why, force) =
        (NodeRef::<html::Textarea>::new(), NodeRef::<html::Input>::new(), NodeRef::<html::Input>::new());
    let action = UserAction::new(ErrorPlace::Fields(wrong));
    let run = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let (Some(field), Some(why)) = (field.get_untracked(), why.get_untracked()) else { return };
        let force = force.get_untracked().is_some_and(|force| force.checked());
        let navigate = navigate.clone();
        action.run_once(async move {
            let made = retry_failure(id, field.value(), why.value(), force).await?;
            navigate(&format!("/occurrences/{made}"), NavigateOptions::default());
            Ok(Some(FAILURE_RETRIED_NOTICE.to_owned()))
        });
    };
    let again = move || {
        is_retried.get().then(|| {
            view! {
                <label class="check">
                    <input type="checkbox" name="force" value="true" node_ref=force/>
                    <span>"Retry again, although this failure was already retried"</span>
                </label>
            }
        })
    };
    view! {
        <section class="card" aria-labelledby="retry-title">
            <h2 class="card-title" id="retry-title">"Retry this failure"</h2>
            <form method="post" action=RetryFailure::PATH class="stack" data-guarded="true" on:submit=run>
                <ErrorSummary errors=whole/>
                <input type="hidden" name="id" value=id.to_string()/>
                <TextareaField
                    id="retry-input"
                    name="input_json"
                    label="Input as JSON"
                    hint="The input of the failed run. A change applies to this retry only; the job keeps its own input."
                    text
                    error=error_of(wrong.into(), "input_json")
                    rows="6"
                    node=field
                />
                <InputField
                    id="retry-note"
                    name="note"
                    label="Reason"
                    hint="Stored with the failure and the new occurrence; at most 500 characters."
                    optional=true
                    maxlength="500"
                    value=note
                    error=error_of(wrong.into(), "note")
                    node=why
                />
                {again}
                <div class="form-actions">
                    <button type="submit" class="btn btn-primary" aria-disabled=move || action.disabled()>
                        <Icon name="rotate-cw"/>
                        "Retry"
                    </button>
                </div>
            </form>
        </section>
    }
}

/// The id of the section that resolves the failure.
const RESOLVE_ID: &str = "resolve";

/// Marks the failure as resolved without running anything.
#[component]
fn ResolveForm(id: OccurrenceId, is_open: Memo<bool>, flash: FlashView, refresh: ThrottledRefresh) -> impl IntoView {
    let typed = flash.typed("note");
    let wrong = RwSignal::new(flash.fields);
    let note = NodeRef::<html::Input>::new();
    // After a success it runs again only if the failure is open again.
    let action = UserAction::new(ErrorPlace::Fields(wrong));
    Effect::new(move |_| {
        if is_open.get() {
            action.restart();
        }
    });
    let resolve = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let note = note.get_untracked().map(|note| note.value()).unwrap_or_default();
        let refresh = refresh.clone();
        action.run_once(async move {
            let resolved = resolve_failures(vec![id], false, Default::default(), 1, note, String::new()).await?;
            // The section is hidden once the page has read the new state.
            hand_focus(RESOLVE_ID, PAGE_TITLE_ID);
            refresh.request_own();
            Ok(Some(resolve_notice(&resolved)))
        });
    };
    view! {
        <section class="card" id=RESOLVE_ID aria-labelledby="resolve-title" hidden=move || !is_open.get()>
            <h2 class="card-title" id="resolve-title">"Resolve this failure"</h2>
            <p class="muted">"The failure is marked as resolved and leaves the list of open failures. Nothing is run again."</p>
            <form method="post" action=ResolveFailures::PATH class="stack" on:submit=resolve>
                <ErrorSummary errors=other_errors(wrong, &["note"])/>
                <input type="hidden" name="ids[]" value=id.to_string()/>
                <input type="hidden" name="back" value=format!("/failed/{id}")/>
                <InputField
                    id="resolve-note"
                    name="note"
                    label="Note"
                    hint="What was done about the failure; at most 2,000 characters."
                    optional=true
                    maxlength="2000"
                    value=typed
                    error=error_of(wrong.into(), "note")
                    node=note
                />
                <div class="form-actions">
                    <button type="submit" class="btn" aria-disabled=move || action.disabled()>
                        <Icon name="check"/>
                        "Resolve"
                    </button>
                </div>
            </form>
        </section>
    }
}
