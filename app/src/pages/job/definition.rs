//! The definition of a job in words.

use leptos::prelude::*;
use milvaion_api::views::JobView;

use super::{delayed::DelayedCount, rules::RuleEntries};
use crate::components::{icon::Icon, tag_list::TagList, time::Time};

/// The labels of the five priorities, lowest first.
pub const PRIORITY_LABELS: [&str; 5] = ["1, idle", "2, low", "3, normal", "4, high", "5, critical"];

/// A card with the job's type, schedule, rules and input, and the authors of its first and latest version.
#[component]
pub fn JobDefinitionCard(
    /// The job.
    view: RwSignal<JobView>,
) -> impl IntoView {
    let of = move |read: fn(&JobView) -> String| Signal::derive(move || view.with(read));
    let description = of(|job| job.definition.description.clone());
    let job_type = of(|job| job.definition.job_type.clone());
    let worker = of(|job| job.definition.worker_id.clone());
    let input = of(|job| serde_json::to_string_pretty(&job.definition.job_data).unwrap_or_default());
    let schedule = of(|job| job.row.schedule_words.clone());
    let timeout = of(|job| match job.definition.timeout_seconds {
        Some(seconds) => crate::format::plural(seconds.into(), "second"),
        None => "Default of the job type".into(),
    });
    let priority = of(|job| {
        PRIORITY_LABELS
            .get(usize::from(job.definition.priority).wrapping_sub(1))
            .copied()
            .unwrap_or_default()
            .to_owned()
    });
    let created_by = of(|job| job.created_by.clone());
    let modified_by = of(|job| job.modified_by.clone());
    // Memos, so that a refresh of the job, which may come every minute, does not redraw unchanged rules.
    let rules = Memo::new(move |_| view.with(|job| job.definition.rules.clone()));
    let calendars = Memo::new(move |_| view.with(|job| job.calendars.clone()));
    let version = Signal::derive(move || view.with(|job| job.version));
    let is_active = Signal::derive(move || view.with(|job| job.row.is_active));
    let tags = move || {
        let tags = view.with(|job| job.definition.tags.clone());
        if tags.is_empty() {
            return view! { <span class="muted">"None"</span> }.into_any();
        }
        view! { <TagList tags/> }.into_any()
    };
    view! {
        <section class="card" aria-labelledby="definition">
            <h2 id="definition">"Definition"</h2>
            <p hidden=move || description.with(String::is_empty)>{move || description.get()}</p>
            <dl class="kv">
                <dt>"State"</dt>
                <dd>
                    <ActiveBadge is_active/>
                </dd>
                <dt>"Job type"</dt>
                <dd>
                    <span class="mono">{move || job_type.get()}</span>
                    " on worker "
                    <span class="mono">{move || worker.get()}</span>
                </dd>
                <dt>"Schedule"</dt>
                <dd>{move || schedule.get()}</dd>
                <RuleEntries rules calendars/>
                <dt>"Timeout"</dt>
                <dd>{move || timeout.get()}</dd>
                <dt>"Priority"</dt>
                <dd>{move || priority.get()}</dd>
                <dt>"Tags"</dt>
                <dd>{tags}</dd>
                <dt>"Delayed"</dt>
                <dd>
                    <DelayedCount view/>
                </dd>
                <dt>"Created"</dt>
                <dd>
                    <Time at=Signal::derive(move || view.with(|job| job.created_at))/>
                    " by "
                    {move || created_by.get()}
                </dd>
                <dt>"Changed"</dt>
                <dd>
                    <Time at=Signal::derive(move || view.with(|job| job.modified_at))/>
                    " by "
                    {move || modified_by.get()}
                    {move || format!(", version {}", version.get())}
                </dd>
            </dl>
            <h3 id="input">"Input"</h3>
            <pre class="code" tabindex="0" role="region" aria-labelledby="input">
                <code>{move || input.get()}</code>
            </pre>
        </section>
    }
}

/// Shows by icon and word if a job is active or paused.
#[component]
pub fn ActiveBadge(
    /// True if the job is active.
    #[prop(into)]
    is_active: Signal<bool>,
) -> impl IntoView {
    move || {
        if is_active.get() {
            view! {
                <span class="badge" data-status="active">
                    <Icon name="circle-check"/>
                    <span>"Active"</span>
                </span>
            }
            .into_any()
        } else {
            view! {
                <span class="badge" data-status="paused">
                    <Icon name="circle-pause"/>
                    <span>"Paused"</span>
                </span>
            }
            .into_any()
        }
    }
}
