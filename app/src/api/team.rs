//! Server functions that list users, and create and revoke invitations.

use leptos::prelude::*;
use milvaion_api::{
    permissions::Role,
    team::{TeamFilter, TeamView},
};
use milvaion_protocol::id::UserId;
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

/// Invites a user and returns the one-time link, which is shown only once. The link is a path; the page prepends its
/// own origin.
///
/// # Errors
///
/// `Fields` for `name`; `Denied` below Admin.
#[server(output = JsonText, endpoint = "invite_user")]
pub async fn invite_user(#[server(default)] name: String, role: Role) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.invite_user(&me, &name, role).await;
    let notice = match &result {
        Ok(path) => format!(
            "{} can now join as {}. Send them this link; it is shown only once: {}{path}",
            name.trim(),
            role.label(),
            own_origin()
        ),
        Err(_) => String::new(),
    };
    let typed = serde_json::json!({ "name": name, "role": role.slug() });
    super::respond("invite-user", result, |_| "/team".into(), &notice, "/team", typed).await
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
    super::respond("invite-user", result, |()| "/team".into(), "The invitation is revoked.", "/team", ()).await
}

/// Returns the scheme and host from the request's `Origin` header, which [`super::authorize`] has compared with ours.
#[cfg(feature = "ssr")]
fn own_origin() -> String {
    super::request()
        .ok()
        .and_then(|parts| parts.headers.get(http::header::ORIGIN)?.to_str().ok().map(str::to_owned))
        .filter(|origin| origin.starts_with("http"))
        .unwrap_or_default()
}
