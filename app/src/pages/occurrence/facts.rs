//! The facts of an occurrence: its job, its times, its attempt and its ids.

use leptos::prelude::*;
use milvaion_api::views::OccurrenceView;
use milvaion_protocol::status::OccurrenceStatus;

use crate::components::{
    copy_button::CopyButton,
    status_explanation::{delayed_until, unexplained_note},
    time::{Duration, MaybeTime, Time},
};

/// Lists the facts of the occurrence.
#[component]
pub fn OccurrenceFacts(
    /// The occurrence.
    data: RwSignal<OccurrenceView>,
) -> impl IntoView {
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
