//! The jobs that a user has created.

use leptos::prelude::*;
use milvaion_api::team::OwnedJob;

use super::PersonState;
use crate::{components::icon::Icon, format::plural};

/// The list of jobs as a part of the page.
#[component]
pub fn JobsSection(
    /// The page's user.
    person: PersonState,
) -> impl IntoView {
    view! {
        <section class="card stack" aria-labelledby="user-jobs">
            <h2 id="user-jobs">"Jobs"</h2>
            <JobLinks person/>
        </section>
    }
}

/// The number of jobs that the user has created, with a link to each.
#[component]
pub fn JobLinks(
    /// The page's user.
    person: PersonState,
) -> impl IntoView {
    let jobs = Memo::new(move |_| person.view.with(|view| (view.jobs.clone(), view.jobs_total)));
    move || {
        let (jobs, total) = jobs.get();
        if total == 0 {
            return view! { <p class="muted">"This user has created no jobs."</p> }.into_any();
        }
        let (verb, pronoun) = if total == 1 { ("keeps", "It") } else { ("keep", "They") };
        let others = usize::try_from(total).unwrap_or(usize::MAX).saturating_sub(jobs.len());
        let others = (others > 0).then(|| {
            let noun = if others == 1 { "job" } else { "jobs" };
            view! { <p class="muted">{format!("{others} more {noun}.")}</p> }
        });
        let text = format!(
            "This user has created {}. {pronoun} {verb} running even if the user is deactivated or removed.",
            plural(i64::from(total), "job")
        );
        let links: Vec<_> = jobs.into_iter().map(job_link).collect();
        view! {
            <p>{text}</p>
            <ul class="links" data-jobs="owned">{links}</ul>
            {others}
        }
        .into_any()
    }
}

fn job_link(job: OwnedJob) -> AnyView {
    let OwnedJob { id, name, is_active } = job;
    let paused = (!is_active).then(|| {
        view! {
            " "
            <span class="badge" data-status="paused">
                <Icon name="circle-pause"/>
                <span>"Paused"</span>
            </span>
        }
    });
    view! {
        <li>
            <a href=format!("/jobs/{id}")>{name}</a>
            {paused}
        </li>
    }
    .into_any()
}
