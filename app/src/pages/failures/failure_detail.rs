//! One failure: its details, and forms that retry or resolve it.

use leptos::{ev, html, prelude::*, server_fn::ServerFn, task::spawn_local};
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
        copy_button::CopyButton,
        focus::hand_focus,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{error_of, textarea_html},
        page_header::{Breadcrumbs, PageHeader},
        session_context::may,
        time::Time,
        toast::{ToastKind, toasts},
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
    let toasts = toasts();
    let navigate = use_navigate();
    let typed = flash.typed("input_json");
    let text = if typed.is_empty() { input } else { typed };
    let note = flash.typed("note");
    let wrong = RwSignal::new(flash.fields);
    let input_error = error_of(wrong.into(), "input_json");
    let note_error = error_of(wrong.into(), "note");
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
    // Remains true after success until the next page is open, so that a second click sends nothing.
    let is_busy = RwSignal::new(false);
    let run = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let (Some(field), Some(why)) = (field.get_untracked(), why.get_untracked()) else { return };
        if is_busy.get_untracked() {
            return;
        }
        is_busy.set(true);
        let force = force.get_untracked().is_some_and(|force| force.checked());
        let navigate = navigate.clone();
        spawn_local(async move {
            match retry_failure(id, field.value(), why.value(), force).await {
                Ok(made) => {
                    toasts.show(ToastKind::Success, FAILURE_RETRIED_NOTICE);
                    navigate(&format!("/occurrences/{made}"), NavigateOptions::default());
                }
                Err(error) => {
                    let _ = is_busy.try_set(false);
                    let _ = wrong.try_set(error.problems());
                }
            }
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
                <FormField
                    id="retry-input"
                    label="Input as JSON"
                    hint="The input of the failed run. A change applies to this retry only; the job keeps its own input."
                    error=input_error
                >
                    <textarea
                        id="retry-input"
                        name="input_json"
                        class="input-mono"
                        rows="6"
                        spellcheck="false"
                        autocapitalize="off"
                        aria-describedby=described_by("retry-input")
                        aria-invalid=move || input_error.get().is_some().then_some("true")
                        node_ref=field
                        inner_html=textarea_html(&text)
                    ></textarea>
                </FormField>
                <FormField id="retry-note" label="Reason" hint="Stored with the failure and the new occurrence; at most 500 characters." optional=true error=note_error>
                    <input
                        type="text"
                        id="retry-note"
                        name="note"
                        maxlength="500"
                        value=note
                        autocomplete="off"
                        aria-describedby=described_by("retry-note")
                        aria-invalid=move || note_error.get().is_some().then_some("true")
                        node_ref=why
                    />
                </FormField>
                {again}
                <div class="form-actions">
                    <button type="submit" class="btn btn-primary" aria-disabled=move || is_busy.get().then_some("true")>
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
    let toasts = toasts();
    let typed = flash.typed("note");
    let wrong = RwSignal::new(flash.fields);
    let error = error_of(wrong.into(), "note");
    let note = NodeRef::<html::Input>::new();
    let whole = Signal::derive(move || {
        let whole = wrong.get().into_iter().filter(|error| error.field != "note");
        whole.map(|error| (String::new(), capitalized(&error.message))).collect::<Vec<_>>()
    });
    // Remains true after success until the page has read the new state, so that a second click sends nothing.
    let is_busy = RwSignal::new(false);
    Effect::new(move |_| {
        if is_open.get() {
            is_busy.set(false);
        }
    });
    let resolve = move |event: ev::SubmitEvent| {
        event.prevent_default();
        if is_busy.get_untracked() {
            return;
        }
        is_busy.set(true);
        let note = note.get_untracked().map(|note| note.value()).unwrap_or_default();
        let refresh = refresh.clone();
        spawn_local(async move {
            match resolve_failures(vec![id], false, Default::default(), 1, note, String::new()).await {
                Ok(resolved) => {
                    let _ = wrong.try_set(Vec::new());
                    // The section is hidden once the page has read the new state.
                    hand_focus(RESOLVE_ID, PAGE_TITLE_ID);
                    toasts.show(ToastKind::Success, resolve_notice(&resolved));
                    refresh.request_own();
                }
                Err(error) => {
                    let _ = is_busy.try_set(false);
                    let _ = wrong.try_set(error.problems());
                }
            }
        });
    };
    view! {
        <section class="card" id=RESOLVE_ID aria-labelledby="resolve-title" hidden=move || !is_open.get()>
            <h2 class="card-title" id="resolve-title">"Resolve this failure"</h2>
            <p class="muted">"The failure is marked as resolved and leaves the list of open failures. Nothing is run again."</p>
            <form method="post" action=ResolveFailures::PATH class="stack" on:submit=resolve>
                <ErrorSummary errors=whole/>
                <input type="hidden" name="ids[]" value=id.to_string()/>
                <input type="hidden" name="back" value=format!("/failed/{id}")/>
                <FormField id="resolve-note" label="Note" hint="What was done about the failure; at most 2,000 characters." optional=true error>
                    <input
                        type="text"
                        id="resolve-note"
                        name="note"
                        maxlength="2000"
                        value=typed
                        autocomplete="off"
                        aria-describedby=described_by("resolve-note")
                        aria-invalid=move || error.get().is_some().then_some("true")
                        node_ref=note
                    />
                </FormField>
                <div class="form-actions">
                    <button type="submit" class="btn" aria-disabled=move || is_busy.get().then_some("true")>
                        <Icon name="check"/>
                        "Resolve"
                    </button>
                </div>
            </form>
        </section>
    }
}
