//! Server functions of the team: users, invitations, roles, sessions and links for a new passphrase.
//!
//! A one-time link is returned as a path, once; the page prepends its own origin. The answer to a plain form post is a
//! redirect, so there the link is part of the notice on the next page.

use leptos::prelude::*;
use milvaion_api::{
    permissions::Role,
    team::{PersonView, TeamFilter, TeamView},
};
use milvaion_protocol::id::{SessionId, UserId};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Returns the users and invitations that match a filter.
///
/// # Errors
///
/// `Denied` below Admin.
#[server(input = GetUrl, output = JsonText, endpoint = "team")]
pub async fn team(#[server(default)] filter: TeamFilter) -> Result<TeamView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ReadTeam).await?;
    backend.team(&me, filter).await.map_err(super::with_error_status)
}

/// Returns one user with sessions and jobs.
///
/// # Errors
///
/// `NotFound` if there is no such user; `Denied` below Admin.
#[server(input = GetUrl, output = JsonText, endpoint = "person")]
pub async fn person(id: UserId) -> Result<PersonView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ReadTeam).await?;
    backend.person(&me, id).await.map_err(super::with_error_status)
}

/// Invites a user and returns the path of the one-time link.
///
/// # Errors
///
/// `Fields` for `name`; `Denied` below Admin.
#[server(output = JsonText, endpoint = "invite_user")]
pub async fn invite_user(#[server(default)] name: String, role: Role) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.invite_user(&me, &name, role).await;
    let text = format!("{} can now join as {}.", name.trim(), role.label());
    let notice = link_notice(&text, &result);
    let typed = serde_json::json!({ "name": name, "role": role.slug() });
    super::respond(TEAM_FORM, result, |_| "/team".into(), &notice, "/team", typed).await
}

/// Replaces the link of an invitation by a new one and returns its path.
///
/// # Errors
///
/// `NotFound` if the invitation was used or revoked; `Denied` below Admin.
#[server(output = JsonText, endpoint = "renew_invite")]
pub async fn renew_invite(id: UserId) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.renew_invite(&me, id).await;
    let notice = link_notice(INVITE_RENEWED_NOTICE, &result);
    super::respond(TEAM_FORM, result, |_| "/team".into(), &notice, "/team", ()).await
}

/// Revokes an invitation; its link stops working.
///
/// # Errors
///
/// `NotFound` if it was used meanwhile; `Denied` below Admin.
#[server(output = JsonText, endpoint = "revoke_invite")]
pub async fn revoke_invite(id: UserId) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.revoke_invite(&me, id).await;
    super::respond(TEAM_FORM, result, |()| "/team".into(), INVITE_REVOKED_NOTICE, "/team", ()).await
}

/// Changes the role of a user. `confirm_self` confirms a change of the own role.
///
/// # Errors
///
/// `Conflict` for the last Admin, and for the own role without a confirmation; `Denied` below Admin.
#[server(output = JsonText, endpoint = "change_role")]
pub async fn change_role(id: UserId, role: Role, #[server(default)] confirm_self: bool) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.change_role(&me, id, role, confirm_self).await;
    let notice = format!("The role is now {}.", role.label());
    let page = person_address(id);
    // A user who has given up the own role may not open the page again.
    let is_own = me.id == id && !role.allows(milvaion_api::permissions::Permission::ReadTeam);
    let then = if is_own { "/".to_owned() } else { page.clone() };
    let typed = serde_json::json!({ "role": role.slug() });
    super::respond(PERSON_FORM, result, |()| then, &notice, &page, typed).await
}

/// Activates or deactivates a user.
///
/// # Errors
///
/// `Conflict` for the last Admin and for the own account; `Denied` below Admin.
#[server(output = JsonText, endpoint = "set_user_active")]
pub async fn set_user_active(id: UserId, active: bool) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.set_user_active(&me, id, active).await;
    let notice = if active { "The user is reactivated." } else { "The user is deactivated." };
    respond_on_person(id, result, notice).await
}

/// Deletes a deactivated user.
///
/// # Errors
///
/// `Conflict` for an active user; `NotFound` if the user is already deleted; `Denied` below Admin.
#[server(output = JsonText, endpoint = "remove_user")]
pub async fn remove_user(id: UserId) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.remove_user(&me, id).await;
    let page = person_address(id);
    super::respond(PERSON_FORM, result, |()| "/team".into(), "The user is removed.", &page, ()).await
}

/// Creates the link with which a user chooses a new passphrase and returns its path.
///
/// # Errors
///
/// `Conflict` for a deactivated user; `Denied` below Admin.
#[server(output = JsonText, endpoint = "create_reset_link")]
pub async fn create_reset_link(id: UserId) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.create_reset_link(&me, id).await;
    let notice = link_notice("The reset link is created.", &result);
    respond_on_person(id, result, &notice).await
}

/// Revokes the open link for a new passphrase.
///
/// # Errors
///
/// `NotFound` if there is no open link; `Denied` below Admin.
#[server(output = JsonText, endpoint = "revoke_reset_link")]
pub async fn revoke_reset_link(id: UserId) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.revoke_reset_link(&me, id).await;
    respond_on_person(id, result, RESET_REVOKED_NOTICE).await
}

/// Lifts the refusal of sign-ins from unknown devices.
///
/// # Errors
///
/// `NotFound` if there is no such user; `Denied` below Admin.
#[server(output = JsonText, endpoint = "unlock_user")]
pub async fn unlock_user(id: UserId) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.unlock_user(&me, id).await;
    respond_on_person(id, result, "The user is unlocked.").await
}

/// Ends one session of a user, or all of them without `session`. Returns the number of ended sessions.
///
/// # Errors
///
/// `NotFound` if there is no such user or session; `Denied` below Admin.
#[server(output = JsonText, endpoint = "end_user_sessions")]
pub async fn end_user_sessions(id: UserId, #[server(default)] session: Option<SessionId>) -> Result<u32, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.end_user_sessions(&me, id, session).await;
    let notice = result.as_ref().map(|ended| sessions_ended_notice(*ended)).unwrap_or_default();
    respond_on_person(id, result, &notice).await
}

/// The notice after the link of an invitation was replaced.
pub const INVITE_RENEWED_NOTICE: &str = "The invitation has a new link. The old link no longer works.";
/// The notice after a revoked invitation.
pub const INVITE_REVOKED_NOTICE: &str = "The invitation is revoked.";
/// The notice after a revoked link for a new passphrase.
pub const RESET_REVOKED_NOTICE: &str = "The reset link is revoked.";

/// Returns the notice after this number of sessions has ended.
#[must_use]
pub fn sessions_ended_notice(ended: u32) -> String {
    match ended {
        1 => "1 session was ended.".to_owned(),
        n => format!("{n} sessions were ended."),
    }
}

/// The name of the forms of the team page in flash messages.
#[cfg(feature = "ssr")]
const TEAM_FORM: &str = "team";
/// The name of the forms of a user's page in flash messages.
#[cfg(feature = "ssr")]
const PERSON_FORM: &str = "person";

/// Returns the address of the page of a user.
#[cfg(feature = "ssr")]
fn person_address(id: UserId) -> String {
    format!("/team/{id}")
}

/// Ends a call from a user's page, which a plain form post returns to.
#[cfg(feature = "ssr")]
async fn respond_on_person<T: Default>(id: UserId, result: Result<T, AppError>, notice: &str) -> Result<T, AppError> {
    let page = person_address(id);
    super::respond(PERSON_FORM, result, |_| page.clone(), notice, &page, ()).await
}

/// Returns the notice with a new one-time link; empty after an error.
#[cfg(feature = "ssr")]
fn link_notice(text: &str, link: &Result<String, AppError>) -> String {
    match link {
        Ok(path) => format!("{text} Pass this link on; it works once and is shown only now: {}{path}", own_origin()),
        Err(_) => String::new(),
    }
}

/// Returns the scheme and host from the request's `Origin` header, which [`super::authorize`] has compared with ours.
#[cfg(feature = "ssr")]
pub(super) fn own_origin() -> String {
    super::request()
        .ok()
        .and_then(|parts| parts.headers.get(http::header::ORIGIN)?.to_str().ok().map(str::to_owned))
        .filter(|origin| origin.starts_with("http"))
        .unwrap_or_default()
}
