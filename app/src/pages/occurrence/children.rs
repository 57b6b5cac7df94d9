//! The occurrences that an occurrence has enqueued.

use leptos::prelude::*;
use milvaion_api::views::OccurrenceView;
use milvaion_protocol::id::OccurrenceId;

use crate::components::{status_badge::StatusBadge, time::Time};

/// Lists the newest occurrences that this one has enqueued, if there are any.
#[component]
pub fn Children(
    /// The id of the occurrence.
    id: OccurrenceId,
    /// The occurrence.
    data: RwSignal<OccurrenceView>,
) -> impl IntoView {
    let children = Memo::new(move |_| data.with(|data| (data.children.clone(), data.has_more_children)));
    move || {
        let (rows, has_more) = children.get();
        if rows.is_empty() {
            return None;
        }
        let count = rows.len();
        let items: Vec<_> = rows
            .into_iter()
            .map(|row| {
                view! {
                    <li class="cluster">
                        <StatusBadge status=Signal::stored(row.status) cancelling=Signal::stored(row.is_cancelling())/>
                        <a href=format!("/occurrences/{}", row.id)>{row.job_name}</a>
                        <Time at=row.scheduled_for/>
                    </li>
                }
            })
            .collect();
        let more = has_more.then(|| {
            view! {
                <p class="muted">
                    {format!("The newest {count} are shown. ")}
                    <a href=format!("/occurrences?parent={id}")>"List all"</a>
                </p>
            }
        });
        Some(view! {
            <section class="card" aria-labelledby="children-title">
                <h2 class="card-title" id="children-title">"Enqueued occurrences"</h2>
                <ul class="stack">{items}</ul>
                {more}
            </section>
        })
    }
}
