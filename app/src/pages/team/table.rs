//! The table of users and invitations.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use milvaion_api::team::{PendingInvite, TeamRow};

use super::{Invitations, TeamRows, state_badge::UserStateBadge};
use crate::{
    api::team::{RenewInvite, RevokeInvite},
    components::{
        confirm::{AskButton, Confirmation},
        table::{Table, Text},
        time::{MaybeTime, Time},
    },
    format::plural,
};

/// The id of the table.
pub const TEAM_TABLE_ID: &str = "team";

/// The users and invitations, by name.
#[component]
pub fn TeamTable(
    /// The rows.
    rows: TeamRows,
    /// The actions on invitations.
    invitations: Invitations,
) -> impl IntoView {
    view! {
        <Table
            caption="Users and invitations by name"
            columns=[Text("User"), Text("Role"), Text("State"), Text("Last seen"), Text("Joined")]
            id=TEAM_TABLE_ID
        >
            {rows.rows.view(move |row| view! { <TeamTableRow row invitations/> }.into_any())}
        </Table>
    }
}

#[component]
fn TeamTableRow(row: RwSignal<TeamRow>, invitations: Invitations) -> impl IntoView {
    let id = row.with_untracked(|row| row.id);
    let is_invitation = row.with_untracked(|row| row.invite.is_some());
    // Memos, so that a refresh redraws only what has changed: a dialog of the row may be open.
    let name = Memo::new(move |_| row.with(|row| row.name.clone()));
    let email = Memo::new(move |_| row.with(|row| row.email.clone()));
    let role = Memo::new(move |_| row.with(|row| row.role));
    let state = Memo::new(move |_| row.with(|row| row.state));
    let last_seen = Memo::new(move |_| row.with(|row| row.last_seen_at));
    let sessions = Memo::new(move |_| row.with(|row| row.sessions));
    let created = Memo::new(move |_| row.with(|row| row.created_at));
    let invite = Memo::new(move |_| row.with(|row| row.invite.clone()));
    let heading = if is_invitation {
        view! { <strong>{move || name.get()}</strong> }.into_any()
    } else {
        view! { <a class="row-link" href=format!("/team/{id}")>{move || name.get()}</a> }.into_any()
    };
    let sessions_text = move || plural(i64::from(sessions.get()), "session");
    let actions = is_invitation.then(|| view! { <InvitationActions row invitations/> });
    view! {
        <tr role="row" data-id=id.to_string()>
            <th role="rowheader" scope="row" data-label="User">
                {heading}
                {move || email.get().map(|email| view! { <div class="row-note">{email}</div> })}
            </th>
            <td role="cell" data-label="Role">{move || role.get().label()}</td>
            <td role="cell" data-label="State">
                <div>
                    <UserStateBadge state/>
                    {move || invite.get().map(|invite| expiry(&invite))}
                    {actions}
                </div>
            </td>
            <td role="cell" data-label="Last seen">
                <div>
                    <MaybeTime at=last_seen relative=true/>
                    {(!is_invitation).then(|| view! { <div class="row-note">{sessions_text}</div> })}
                </div>
            </td>
            <td role="cell" data-label=if is_invitation { "Invited" } else { "Joined" }>
                <div>
                    <Time at=created relative=true/>
                    {move || invite.get().map(|invite| view! { <div class="row-note">"Invited by " {invite.invited_by}</div> })}
                </div>
            </td>
        </tr>
    }
}

/// Draws when the link of an invitation expires or has expired.
fn expiry(invite: &PendingInvite) -> AnyView {
    let word = if invite.is_expired { "Expired " } else { "Expires " };
    view! {
        <div class="row-note">
            {word}
            <Time at=invite.expires_at relative=true/>
        </div>
    }
    .into_any()
}

/// The actions on an invitation, below its state: a column of their own would be empty for every user. Without scripts
/// they are plain forms.
#[component]
fn InvitationActions(row: RwSignal<TeamRow>, invitations: Invitations) -> impl IntoView {
    let (id, name) = row.with_untracked(|row| (row.id, row.name.clone()));
    let renew_label = format!("New link for {name}");
    let revoke_label = format!("Revoke the invitation of {name}");
    let title = format!("{revoke_label}?");
    let ask = move |()| {
        const CONSEQUENCE: &str = "The link stops working immediately. You can invite the same user again.";
        let what = Confirmation::new(title.clone(), CONSEQUENCE, "Revoke");
        invitations.question.ask(what, move || invitations.revoke(id));
    };
    let renew = move |event: ev::SubmitEvent| {
        event.prevent_default();
        invitations.renew(id, name.clone());
    };
    view! {
        <div class="invitation-actions">
            <form method="post" action=RenewInvite::PATH on:submit=renew>
                <input type="hidden" name="id" value=id.to_string()/>
                <button
                    type="submit"
                    class="btn btn-small"
                    aria-label=renew_label
                    aria-disabled=move || invitations.action.disabled()
                >
                    "New link"
                </button>
            </form>
            <AskButton
                action=invitations.action
                label="Revoke…"
                class="btn btn-small"
                name=revoke_label.clone()
                href=""
                on_ask=ask
            />
            <form method="post" action=RevokeInvite::PATH class="hide-js">
                <input type="hidden" name="id" value=id.to_string()/>
                <button type="submit" class="btn btn-small" aria-label=revoke_label>"Revoke"</button>
            </form>
        </div>
    }
}
