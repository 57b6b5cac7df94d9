//! The timeline of an occurrence.

use leptos::prelude::*;
use milvaion_api::{
    duplicates, report_notes,
    views::{OccurrenceView, StatusChange},
};
use milvaion_protocol::status::OccurrenceStatus;

use crate::components::time::Time;

/// Lists the changes of the status.
#[component]
pub fn Timeline(
    /// The occurrence.
    data: RwSignal<OccurrenceView>,
) -> impl IntoView {
    // The event with the new row arrives before the page is read again with the new step. Until then the row supplies
    // the step, except for a requeued or a lost run: the row does not state when that was.
    let steps = move || {
        data.with(|data| {
            let mut steps: Vec<(usize, StatusChange)> = data.changes.iter().cloned().enumerate().collect();
            let row = &data.row;
            let at = if row.status == OccurrenceStatus::Running { row.started_at } else { row.ended_at };
            // A start after the end is no step of the row.
            let last = steps.iter().rev().find(|(_, step)| !duplicates::is_start_after_end(step));
            if let Some(at) = at
                && last.is_some_and(|(_, last)| last.status != row.status)
            {
                let step = StatusChange {
                    status: row.status,
                    at,
                    attempt: row.attempt,
                    by: row.instance_id.clone(),
                    // The note of a running attempt is that of an earlier one.
                    note: row.note.clone().filter(|_| row.status.is_final()),
                };
                steps.push((steps.len(), step));
            }
            steps
        })
    };
    let step = move |(index, change): (usize, StatusChange)| {
        // A cancel request does not change the status. A reason is stated at the step that brought it, not at each later
        // one that repeats it.
        let (is_request, note) = data.with_untracked(|data| {
            let is_request =
                change.status == OccurrenceStatus::Running && data.row.cancel_requested_at == Some(change.at);
            let previous = index.checked_sub(1).and_then(|index| data.changes.get(index)?.note.clone());
            let note = change.note.clone().filter(|note| previous.is_none_or(|previous| !previous.contains(note)));
            (is_request, note)
        });
        let label = match report_notes::is_report_note(&change) {
            true => "Report not read",
            false if is_request => "Cancel requested",
            false => change.status.label(),
        };
        let attempt = (change.attempt > 1).then(|| format!("attempt {}", change.attempt));
        view! {
            <li data-status=change.status.slug()>
                <strong>{label}</strong>
                <Time at=change.at/>
                {attempt.map(|attempt| view! { <span class="muted">{attempt}</span> })}
                {change.by.map(|by| view! { <span class="muted mono">{by}</span> })}
                {note.map(|note| view! { <p>{note}</p> })}
            </li>
        }
    };
    view! {
        <section class="card" aria-labelledby="timeline">
            <h2 class="card-title" id="timeline">"Timeline"</h2>
            <ol class="timeline">
                <For each=steps key=|(index, change)| (*index, step_key(change)) children=step/>
            </ol>
        </section>
    }
}

/// Returns the key of a step: everything by which a step differs from the one that was shown at its position.
fn step_key(change: &StatusChange) -> (i16, i64, i32, Option<String>, Option<String>) {
    (change.status.code(), change.at.timestamp_millis(), change.attempt, change.by.clone(), change.note.clone())
}
