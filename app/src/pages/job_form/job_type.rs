//! The name of a job and its type, one of those that workers have announced.

use leptos::prelude::*;
use milvaion_api::{requests::JobForm, views::JobTypeView};

use crate::{
    api::session::query_value,
    components::{
        empty_state::EmptyState,
        form::{FieldErrorText, adopt_early_choice},
        icon::Icon,
        input_form::FormState,
        schedule_field::TextField,
    },
    format::plural,
};

/// The first section of the form: name and job type.
#[component]
pub fn JobTypeSection(
    /// The state of the form.
    state: FormState,
    /// The job types to choose from.
    types: Vec<JobTypeView>,
    /// The type of the edited job, which may no longer be announced.
    own: Option<String>,
    /// The chosen type as `worker/type`; empty before a choice.
    target: RwSignal<String>,
    /// Called with the newly chosen type.
    #[prop(into)]
    on_target: Callback<String>,
    /// True if the form starts with rules that the code of the chosen type declares.
    has_declared_rules: Signal<bool>,
    /// The initial values of the fields.
    form: JobForm,
) -> impl IntoView {
    let error = state.error("target");
    adopt_early_choice("form[target]", move |chosen| {
        if target.with_untracked(|target| *target != chosen) {
            on_target.run(chosen);
        }
    });
    let is_new = form.id.is_empty();
    let no_types = (types.is_empty() && own.is_none()).then(|| {
        view! {
            <EmptyState
                icon="server"
                title="No job types available"
                text="Job types come from workers. Start a worker that is connected to the same broker, then reload this page."
            >
                <a class="btn" href="/workers">"Go to workers"</a>
            </EmptyState>
        }
    });
    let unannounced = own
        .filter(|own| types.iter().all(|known| known.target() != *own))
        .map(|own| view! { <UnannouncedTypeCard own target on_target/> });
    let links = is_new.then(|| plain_links(&types));
    let alive: Vec<(String, i64)> = types.iter().map(|known| (known.target(), known.alive)).collect();
    let no_worker_notice = move || {
        let chosen = target.get();
        let is_alive =
            alive.iter().find(|(known, _)| *known == chosen).map_or(chosen.is_empty(), |(_, alive)| *alive > 0);
        (!is_alive).then(|| {
            view! {
                <div class="notice" data-kind="warn">
                    <Icon name="triangle-alert"/>
                    <p>"No live worker offers this job type. You can save the job; its runs stay queued until a worker offers the type."</p>
                </div>
            }
        })
    };
    let cards: Vec<_> = types.into_iter().map(|known| view! { <TypeCard known target on_target/> }).collect();
    view! {
        <fieldset class="form-section">
            <legend>"Name and job type"</legend>
            <TextField state field="display_name" label="Name" hint="Shown in lists and alerts; 1 to 200 characters." value=form.display_name/>
            {no_types}
            <fieldset class="type-cards" id="f-target" tabindex="-1" aria-describedby="f-target-error">
                <legend>"Job type"</legend>
                {unannounced}
                {cards}
            </fieldset>
            <FieldErrorText id="f-target-error" error/>
            {links}
            <div role="status">
                {no_worker_notice}
                {move || {
                    has_declared_rules
                        .get()
                        .then(|| {
                            view! {
                                <p class="hint">
                                    "The code of this job type declares rules for its jobs. The fields for overlap, retries, priority and tags start with them."
                                </p>
                            }
                        })
                }}
            </div>
        </fieldset>
    }
}

#[component]
fn TypeCard(known: JobTypeView, target: RwSignal<String>, on_target: Callback<String>) -> impl IntoView {
    let value = known.target();
    let chosen = value.clone();
    let checked = target.with_untracked(|target| *target == value);
    let JobTypeView { worker_id, info, alive } = known;
    let live = if alive > 0 {
        view! {
            <span class="badge" data-status="active">
                <Icon name="circle-check"/>
                <span>{plural(alive, "live instance")}</span>
            </span>
        }
        .into_any()
    } else {
        view! {
            <span class="badge" data-status="unknown">
                <Icon name="wifi-off"/>
                <span>"No live instance"</span>
            </span>
        }
        .into_any()
    };
    view! {
        <label class="type-card">
            <input
                type="radio"
                name="form[target]"
                value=value
                checked=checked
                on:change=move |_| on_target.run(chosen.clone())
            />
            <span>
                <strong>{info.job_type}</strong>
                <span class="muted">{format!("on {worker_id}")}</span>
                <span>{info.description}</span>
                <span>{live}</span>
            </span>
        </label>
    }
}

/// The card of an edited job's type that no worker announces any more.
#[component]
fn UnannouncedTypeCard(own: String, target: RwSignal<String>, on_target: Callback<String>) -> impl IntoView {
    let (worker, job_type) = own.split_once('/').unwrap_or(("", &own));
    let words = (job_type.to_owned(), format!("on {worker}"));
    let checked = target.with_untracked(|target| *target == own);
    let chosen = own.clone();
    view! {
        <label class="type-card">
            <input type="radio" name="form[target]" value=own checked=checked on:change=move |_| on_target.run(chosen.clone())/>
            <span>
                <strong>{words.0}</strong>
                <span class="muted">{words.1}</span>
                <span>"No worker offers this job type any more."</span>
            </span>
        </label>
    }
}

/// Links that request the page again with a job type. Without scripts only the server can draw the fields of a type.
fn plain_links(types: &[JobTypeView]) -> impl IntoView + use<> {
    let links: Vec<_> = types
        .iter()
        .map(|known| {
            let href = format!("/jobs/new?type={}", query_value(&known.target()));
            view! { <li><a href=href>{format!("{} on {}", known.info.job_type, known.worker_id)}</a></li> }
        })
        .collect();
    (!links.is_empty()).then(|| {
        view! {
            <div class="hide-js">
                <p class="hint">"Choose a job type here first; the page then shows its input fields."</p>
                <ul>{links}</ul>
            </div>
        }
    })
}
