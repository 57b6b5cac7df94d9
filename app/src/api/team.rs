//! The people of an installation.

use leptos::prelude::*;
use milvaion_api::{permissions::Role, views::TeamView};
use milvaion_protocol::id::UserId;
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// Everybody, and everybody to be.
///
/// # Errors
///
/// `Denied` for anybody but an Admin.
#[server(input = GetUrl, endpoint = "team")]
pub async fn team() -> Result<TeamView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ReadTeam).await?;
    backend.team(&me).await.map_err(super::with_error_status)
}

/// Invites somebody and answers the one-time link, which is shown this once. It is a path; the page knows its own
/// address.
///
/// # Errors
///
/// A wrong `name`; `Denied` for anybody but an Admin.
#[server(endpoint = "invite_user")]
pub async fn invite_user(#[server(default)] name: String, role: Role) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.invite_user(&me, &name, role).await;
    let notice = match &result {
        Ok(path) => format!(
            "{} can now join as {}. Pass this link on; it is shown only this once: {}{path}",
            name.trim(),
            role.label(),
            own_origin()
        ),
        Err(_) => String::new(),
    };
    let typed = serde_json::json!({ "name": name, "role": role.slug() });
    super::respond("invite-user", result, |_| "/team".into(), &notice, "/team", typed).await
}

/// Takes an invitation back; its link is dead from then on.
///
/// # Errors
///
/// `NotFound` when it was used meanwhile; `Denied` for anybody but an Admin.
#[server(endpoint = "revoke_invite")]
pub async fn revoke_invite(id: UserId) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTeam).await?;
    let result = backend.revoke_invite(&me, id).await;
    super::respond("invite-user", result, |()| "/team".into(), "The invitation is taken back.", "/team", ()).await
}

/// Scheme and host as the browser that sent the form sees them; [`super::authorize`] has compared them with ours.
#[cfg(feature = "ssr")]
fn own_origin() -> String {
    super::request()
        .ok()
        .and_then(|parts| parts.headers.get(http::header::ORIGIN)?.to_str().ok().map(str::to_owned))
        .filter(|origin| origin.starts_with("http"))
        .unwrap_or_default()
}
