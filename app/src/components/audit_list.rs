//! The rows of the audit log as a table, on the audit page and as slices on the pages of single objects.
//!
//! Every text of a row may come from outside: a stranger chooses the e-mail address of a failed sign-in, and a job's
//! definition holds any text. The table shows it as text only, shortens it, and links only to ids that it could parse.

pub mod actions;
pub mod slice;

mod changes;
mod object;

use leptos::prelude::*;
use milvaion_api::{
    audit::{AuditResult, AuditRow},
    permissions::Permission,
};
use serde_json::Value;

pub use self::slice::{AuditSlice, OwnAudit, read_slice};
use self::{actions::action_words, changes::changes_view, object::object_view};
use crate::{
    api::session::query_value,
    components::{
        icon::Icon,
        session_context::may,
        table::{Table, Text},
        time::Time,
    },
    format::{clip, count},
};

/// The maximum length of a name in a cell, in characters.
const NAME_MAX_CHARS: usize = 200;

/// The columns that a table may leave out, and the links that its reader may follow.
#[derive(Clone, Copy)]
struct RowStyle {
    names_object: bool,
    names_address: bool,
    links_users: bool,
    links_actors: bool,
}

/// A table of audit rows, newest first. The rows are keyed, so that an open change stays open when rows are added.
#[component]
pub fn AuditTable(
    /// The rows.
    #[prop(into)]
    rows: Signal<Vec<AuditRow>>,
    /// The table's caption for screen readers.
    caption: &'static str,
    /// True if each row names its object. False on the page of a job or of an occurrence.
    #[prop(default = true)]
    names_object: bool,
    /// True if each row states its network address.
    #[prop(default = true)]
    names_address: bool,
) -> impl IntoView {
    let style = RowStyle {
        names_object,
        names_address,
        links_users: may(Permission::ReadTeam),
        links_actors: may(Permission::ReadAudit),
    };
    // The count of a refusal grows, so it is part of the key.
    let key = |row: &AuditRow| (row.cursor.at, row.cursor.id, row.repeats);
    let mut columns = vec![Text("Time"), Text("User"), Text("Action")];
    columns.extend(names_object.then_some(Text("Object")));
    columns.extend([Text("Result"), Text("Details")]);
    columns.extend(names_address.then_some(Text("Address")));
    view! {
        <Table caption columns class="table table-cards table-audit">
            <For each=move || rows.get() key=key children=move |row| audit_row(row, style)/>
        </Table>
    }
}

fn audit_row(row: AuditRow, style: RowStyle) -> impl IntoView {
    let at = row.at();
    let who = clip(&row.who, NAME_MAX_CHARS);
    let who = if style.links_actors {
        view! { <a href=format!("/audit?who={}", query_value(&row.who))>{who}</a> }.into_any()
    } else {
        who.into_any()
    };
    let token = row.token.as_deref().map(|token| {
        view! { <div class="row-note">{format!("With token {}", clip(token, NAME_MAX_CHARS))}</div> }
    });
    let object = style.names_object.then(|| {
        let object = object_view(&row.object, row.object_name.as_deref(), style.links_users);
        view! { <td role="cell" data-label="Object" class="breaks">{object}</td> }
    });
    let address = style.names_address.then(|| {
        let others = row.has_other_addresses.then(|| view! { <div class="row-note">"and other addresses"</div> });
        let address = row.address.as_deref().map_or_else(|| "–".to_owned(), |address| clip(address, NAME_MAX_CHARS));
        view! { <td role="cell" data-label="Address" class="breaks">{address}{others}</td> }
    });
    let reason = row.reason.clone().map(|reason| view! { <p class="reason">{reason}</p> });
    let changes = changes_view(row.before.as_ref(), row.after.as_ref());
    let details = (reason.is_some() || changes.is_some()).then_some((reason, changes));
    view! {
        <tr role="row" data-action=row.action.clone() data-result=row.result.slug()>
            <th role="rowheader" scope="row" data-label="Time"><Time at/></th>
            <td role="cell" data-label="User" class="breaks">{who} {token}</td>
            <td role="cell" data-label="Action" class="breaks">{action_view(&row)}</td>
            {object}
            <td role="cell" data-label="Result">{result_view(&row)}</td>
            <td role="cell" data-label="Details" class="details">{details}</td>
            {address}
        </tr>
    }
}

/// Shows the action in words, or its name if there are no words for it.
fn action_view(row: &AuditRow) -> AnyView {
    // A role that did not allow an action: the row holds the action in words.
    let refused = row.after.as_ref().and_then(|after| after.get("action")).and_then(Value::as_str);
    match (row.action.as_str(), refused, action_words(&row.action)) {
        ("refuse", Some(refused), _) => format!("Tried to {}", clip(refused, NAME_MAX_CHARS)).into_any(),
        (_, _, Some(words)) => view! { <span title=row.action.clone()>{words}</span> }.into_any(),
        (action, _, None) => view! { <code class="mono">{clip(action, NAME_MAX_CHARS)}</code> }.into_any(),
    }
}

/// Shows the result as an icon and a word, with the number and the end of several refusals.
fn result_view(row: &AuditRow) -> impl IntoView + use<> {
    let icon = match row.result {
        AuditResult::Done => "circle-check",
        AuditResult::Refused => "ban",
    };
    let repeats = (row.repeats > 1).then(|| {
        let until = row.last_at.map(|at| view! { " until " <Time at/> });
        view! { <div class="row-note">{format!("×{}", count(row.repeats.into()))}{until}</div> }
    });
    view! {
        <span class="badge" data-result=row.result.slug()>
            <Icon name=icon/>
            <span>{row.result.label()}</span>
        </span>
        {repeats}
    }
}
