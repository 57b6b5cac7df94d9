//! A failure as a row of a table, and the badge of its state.

use leptos::prelude::*;
use milvaion_api::failures::FailureRow;

use super::{
    bulk_actions::{RowCheckbox, RowSelection},
    display::CauseBadge,
};
use crate::{
    components::{icon::Icon, time::Time},
    format::clip,
};

/// The maximum length of an exception's first line in a row, in characters.
const NOTE_MAX_CHARS: usize = 200;

/// Draws a failure in the list of its cause. With a selection, an open failure gets a checkbox.
pub(super) fn failure_row(row: RwSignal<FailureRow>, chosen: Option<RowSelection>) -> AnyView {
    let first = row.get_untracked();
    let id = first.occurrence_id.to_string();
    let is_open = Memo::new(move |_| row.with(|row| row.resolved_at.is_none()));
    let name = format!("the failure of {} at {}", first.job_name, crate::format::utc(first.failed_at));
    let choose = chosen.map(|chosen| {
        let id = id.clone();
        let choose = move || is_open.get().then(|| view! { <RowCheckbox chosen id=id.clone() name=name.clone()/> });
        view! { <td role="cell" class="col-narrow" data-label=move || is_open.get().then_some("Select")>{choose}</td> }
    });
    let note = first.exception.as_deref().map(|text| clip(text, NOTE_MAX_CHARS));
    let cause = Memo::new(move |_| row.with(|row| row.cause));
    let state = move || view! { <FailureStateBadge row=row.get()/> };
    view! {
        <tr role="row" data-id=id.clone() data-state=move || if is_open.get() { "open" } else { "resolved" }>
            {choose}
            <th role="rowheader" scope="row" data-label="Failure">
                <a class="row-link" href=format!("/failed/{id}")>{first.job_name.clone()}</a>
                <div class="row-note">{note}</div>
            </th>
            <td role="cell" data-label="Failed"><Time at=first.failed_at relative=true/></td>
            <td role="cell" data-label="Cause">{move || view! { <CauseBadge cause=cause.get()/> }}</td>
            <td role="cell" data-label="Attempt" class="num">{first.attempt}</td>
            <td role="cell" data-label="State">{state}</td>
        </tr>
    }
    .into_any()
}

/// Shows the state of a failure: open, retried or resolved.
#[component]
pub fn FailureStateBadge(
    /// The failure.
    row: FailureRow,
) -> impl IntoView {
    let Some(_) = row.resolved_at else {
        return view! { <span class="badge" data-status="failed"><Icon name="circle-dot"/><span>"Open"</span></span> }
            .into_any();
    };
    match row.retried_as {
        Some(made) => view! {
            <span class="cluster">
                <span class="badge" data-status="retrying"><Icon name="rotate-cw"/><span>"Retried"</span></span>
                <a href=format!("/occurrences/{made}")>"as a new run"</a>
            </span>
        }
        .into_any(),
        None => {
            let by = row.resolved_by.map(|who| format!("by {who}"));
            view! {
                <span class="cluster">
                    <span class="badge" data-status="completed"><Icon name="check"/><span>"Resolved"</span></span>
                    " "
                    <span class="muted">{by}</span>
                </span>
            }
            .into_any()
        }
    }
}
