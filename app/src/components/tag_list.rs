//! The tags of a job.

use leptos::prelude::*;

use crate::api::session::query_value;

/// The tags of a job. Each links to the jobs that have it.
#[component]
pub fn TagList(
    /// The tags; at least one, because an empty list is no list for a screen reader.
    tags: Vec<String>,
) -> impl IntoView {
    let chips: Vec<_> = tags
        .into_iter()
        .map(|tag| {
            let href = format!("/jobs?tag={}", query_value(&tag));
            view! { <li><a class="chip" href=href>{tag}</a></li> }
        })
        .collect();
    view! { <ul class="chips tags" aria-label="Tags">{chips}</ul> }
}
