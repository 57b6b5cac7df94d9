//! The table of tokens.

use leptos::prelude::*;
use milvaion_api::tokens::{TOKEN_PREFIX, TokenRow};

use super::{TokenActions, confirm::TokenAction, state_badge::TokenStateBadge};
use crate::components::{
    confirm::AskButton,
    icon::Icon,
    live_rows::LiveRows,
    table::{Actions, Table, Text},
    time::Time,
};

/// The id of the table.
pub const TOKEN_TABLE_ID: &str = "tokens";

/// The tokens, newest first.
#[component]
pub fn TokenTable(
    /// The tokens of the page.
    rows: LiveRows<TokenRow>,
    /// The actions on tokens.
    actions: TokenActions,
    /// True for the list of all tokens, which names their owners.
    all: bool,
) -> impl IntoView {
    let mut columns = vec![Text("Token")];
    columns.extend(all.then_some(Text("Owner")));
    columns.extend(["Rights", "State", "Expires", "Last used", "Created"].map(Text));
    columns.push(Actions);
    view! {
        <Table
            caption=if all { "All tokens, newest first" } else { "Your tokens, newest first" }
            columns
            id=TOKEN_TABLE_ID
        >
            {rows.view(move |row| view! { <TokenTableRow row actions all/> }.into_any())}
        </Table>
    }
}

#[component]
fn TokenTableRow(row: RwSignal<TokenRow>, actions: TokenActions, all: bool) -> impl IntoView {
    // What a token may do never changes; a refresh changes its state, its expiry and its last use.
    let TokenRow { id, name, owner, role, read_only, tag, hint, created_at, created_by, .. } = row.get_untracked();
    let state = Memo::new(move |_| row.with(|row| row.state));
    let expires = Memo::new(move |_| row.with(|row| row.expires_at));
    let is_ending = Memo::new(move |_| row.with(|row| row.expires_soon));
    let revoked = Memo::new(move |_| row.with(|row| row.revoked_at));
    let used = Memo::new(move |_| row.with(|row| row.last_used_at));
    let used_by = Memo::new(move |_| {
        row.with(|row| {
            let parts = [row.last_used_address.clone(), row.last_used_route.clone()];
            parts.into_iter().flatten().collect::<Vec<_>>()
        })
    });
    let owner = all.then(|| {
        let owner = match owner {
            Some(email) => view! { <span>{email}</span> }.into_any(),
            None => view! { <span class="muted">"Service token"</span> }.into_any(),
        };
        view! { <td role="cell" data-label="Owner">{owner}</td> }
    });
    let expiry = move || match expires.get() {
        Some(at) => view! { <Time at=at relative=true/> }.into_any(),
        None => view! { <span>"Never"</span> }.into_any(),
    };
    let warning = move || {
        is_ending.get().then(|| {
            view! {
                <div class="row-note">
                    <span class="badge" data-status="retrying"><Icon name="timer-off"/><span>"Expires soon"</span></span>
                </div>
            }
        })
    };
    let last_use = move || match used.get() {
        Some(at) => view! { <Time at=at relative=true/> }.into_any(),
        None => view! { <span class="muted">"Not used yet"</span> }.into_any(),
    };
    let last_use_notes =
        move || used_by.get().into_iter().map(|part| view! { <div class="row-note">{part}</div> }).collect::<Vec<_>>();
    let revocation = move || revoked.get().map(|at| view! { <div class="row-note"><Time at=at relative=true/></div> });
    let creator = all.then(|| view! { <div class="row-note">"By " {created_by}</div> });
    let buttons = {
        let name = name.clone();
        move || {
            let possible = TokenAction::ALL.into_iter().filter(|action| action.is_possible(state.get()));
            let buttons: Vec<_> =
                possible.map(|action| action_button(action, row, name.clone(), actions, all)).collect();
            (!buttons.is_empty()).then(|| view! { <div class="cluster">{buttons}</div> })
        }
    };
    view! {
        <tr role="row" data-id=id.to_string()>
            <th role="rowheader" scope="row" data-label="Token">
                <strong>{name}</strong>
                <div class="row-note">{format!("{TOKEN_PREFIX}…{hint}")}</div>
            </th>
            {owner}
            <td role="cell" data-label="Rights">
                <div>
                    {role.label()} {read_only.then(|| view! { <div class="row-note">"Read only"</div> })}
                    {tag.map(|tag| view! { <div class="row-note">{format!("Only jobs with the tag {tag}")}</div> })}
                </div>
            </td>
            <td role="cell" data-label="State">
                <div>
                    <TokenStateBadge state/>
                    {revocation}
                </div>
            </td>
            <td role="cell" data-label="Expires">
                <div>{expiry} {warning}</div>
            </td>
            <td role="cell" data-label="Last used">
                <div>{last_use} {last_use_notes}</div>
            </td>
            <td role="cell" data-label="Created">
                <div>
                    <Time at=created_at relative=true/>
                    {creator}
                </div>
            </td>
            <td role="cell">{buttons}</td>
        </tr>
    }
}

/// Draws the button of an action, which asks in a dialog, or without scripts the link to the section that asks.
fn action_button(
    action: TokenAction,
    row: RwSignal<TokenRow>,
    name: String,
    actions: TokenActions,
    all: bool,
) -> impl IntoView {
    let id = row.with_untracked(|row| row.id);
    let label = format!("{} {name}", action.verb());
    let ask = move |()| {
        actions.question.ask(action.question(id, &name, all), move || match action {
            TokenAction::Rotate => actions.rotate(id),
            TokenAction::Revoke => actions.revoke(id),
        });
    };
    view! {
        <AskButton
            action=actions.action
            label=action.label()
            class="btn btn-small"
            name=label
            href=action.section_address(id, all)
            on_ask=ask
        />
    }
}
