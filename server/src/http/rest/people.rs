//! The operations on users and the audit log.

use milvaion_api::{
    audit::{AuditCursor, AuditFilter, AuditRow},
    permissions::Permission::{ManageAccount, ManageTeam, ReadAudit, ReadTeam},
    rest::{AuditQuery, ChangeRole, InviteUser, OneTimeLink, Page, TeamQuery},
    team::{PersonView, TeamFilter, TeamRow},
    views::CurrentUser,
};
use milvaion_protocol::id::{SessionId, UserId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    operation::{Operation, TagScope},
    problem::ApiError,
};

/// The group of the operations on users in the document.
const GROUP: &str = "Users";

/// The path of a user, or of an invitation.
#[derive(Debug, Deserialize, JsonSchema)]
struct UserPath {
    /// The id of the user or of the invitation.
    id: UserId,
}

/// The path of a session.
#[derive(Debug, Deserialize, JsonSchema)]
struct SessionPath {
    /// The id of the user.
    id: UserId,
    /// The id of the session in the list.
    session: SessionId,
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let read = Operation {
        method: "GET",
        path: "/users",
        id: "listUsers",
        group: GROUP,
        summary: "List users and invitations by name",
        permission: ReadTeam,
        scope: TagScope::Refused,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let post = Operation { method: "POST", permission: ManageTeam, ..read };
    let delete = Operation { method: "DELETE", success: 204, ..post };
    let link = Operation { success: 201, has_secret: true, ..post };
    vec![
        Endpoint::json(
            Operation {
                path: "/account",
                id: "getAccount",
                summary: "Read the user or the owner of the token",
                permission: ManageAccount,
                scope: TagScope::Free,
                ..read
            },
            account,
        ),
        Endpoint::json(read, list),
        Endpoint::json(
            Operation { path: "/users/invitations", id: "inviteUser", summary: "Invite a person", ..link },
            invite,
        ),
        Endpoint::json(
            Operation {
                path: "/users/invitations/{id}/renew",
                id: "renewInvitation",
                summary: "Replace the link of an invitation",
                ..link
            },
            renew,
        ),
        Endpoint::json(
            Operation {
                path: "/users/invitations/{id}",
                id: "revokeInvitation",
                summary: "Revoke an invitation",
                ..delete
            },
            revoke_invitation,
        ),
        Endpoint::json(Operation { path: "/users/{id}", id: "getUser", summary: "Read a user", ..read }, get),
        Endpoint::json(
            Operation {
                method: "PUT",
                path: "/users/{id}/role",
                id: "changeRole",
                summary: "Change the role of a user",
                ..post
            },
            change_role,
        ),
        Endpoint::json(
            Operation {
                path: "/users/{id}/deactivate",
                id: "deactivateUser",
                summary: "Deactivate a user: all sessions and tokens end",
                ..post
            },
            deactivate,
        ),
        Endpoint::json(
            Operation {
                path: "/users/{id}/reactivate",
                id: "reactivateUser",
                summary: "Activate a deactivated user again",
                ..post
            },
            reactivate,
        ),
        Endpoint::json(
            Operation { path: "/users/{id}", id: "removeUser", summary: "Delete a deactivated user", ..delete },
            remove,
        ),
        Endpoint::json(
            Operation {
                path: "/users/{id}/reset-link",
                id: "createResetLink",
                summary: "Create a link for a new passphrase",
                ..link
            },
            reset_link,
        ),
        Endpoint::json(
            Operation {
                path: "/users/{id}/sessions",
                id: "endSessions",
                summary: "End all sessions of a user",
                ..delete
            },
            end_sessions,
        ),
        Endpoint::json(
            Operation {
                path: "/users/{id}/sessions/{session}",
                id: "endSession",
                summary: "End a session of a user",
                ..delete
            },
            end_session,
        ),
        Endpoint::json(
            Operation {
                path: "/audit",
                id: "listAudit",
                group: "Audit log",
                summary: "List actions of users and of the system, newest first",
                permission: ReadAudit,
                ..read
            },
            audit,
        ),
    ]
}

/// Parses the cursor of the audit log.
pub(super) fn audit_cursor(text: Option<&str>) -> Result<Option<AuditCursor>, ApiError> {
    text.map(|text| text.parse().map_err(|message: String| ApiError::field("before", message))).transpose()
}

async fn account(_: ApiState, call: Call<Nothing, Nothing, Nothing>) -> ApiResult<CurrentUser> {
    Ok(Reply::of(call.me.user))
}

async fn list(state: ApiState, call: Call<Nothing, TeamQuery, Nothing>) -> ApiResult<Page<TeamRow>> {
    let TeamQuery { text, role, state: user_state } = call.query;
    let filter = TeamFilter { q: text.unwrap_or_default(), role, state: user_state };
    Ok(Reply::of(Page::all(state.backend.team(&call.me, filter).await?.rows)))
}

async fn get(state: ApiState, call: Call<UserPath, Nothing, Nothing>) -> ApiResult<PersonView> {
    Ok(Reply::of(state.backend.person(&call.me, call.path.id).await?))
}

async fn invite(state: ApiState, call: Call<Nothing, Nothing, InviteUser>) -> ApiResult<OneTimeLink> {
    let path = state.backend.invite_user(&call.me, &call.body.name, call.body.role).await?;
    Ok(Reply::of(OneTimeLink { path }))
}

async fn renew(state: ApiState, call: Call<UserPath, Nothing, Nothing>) -> ApiResult<OneTimeLink> {
    Ok(Reply::of(OneTimeLink { path: state.backend.renew_invite(&call.me, call.path.id).await? }))
}

async fn revoke_invitation(state: ApiState, call: Call<UserPath, Nothing, Nothing>) -> ApiResult<()> {
    Ok(Reply::of(state.backend.revoke_invite(&call.me, call.path.id).await?))
}

async fn change_role(state: ApiState, call: Call<UserPath, Nothing, ChangeRole>) -> ApiResult<PersonView> {
    state.backend.change_role(&call.me, call.path.id, call.body.role, false).await?;
    Ok(Reply::of(state.backend.person(&call.me, call.path.id).await?))
}

async fn deactivate(state: ApiState, call: Call<UserPath, Nothing, Nothing>) -> ApiResult<PersonView> {
    state.backend.set_user_active(&call.me, call.path.id, false).await?;
    Ok(Reply::of(state.backend.person(&call.me, call.path.id).await?))
}

async fn reactivate(state: ApiState, call: Call<UserPath, Nothing, Nothing>) -> ApiResult<PersonView> {
    state.backend.set_user_active(&call.me, call.path.id, true).await?;
    Ok(Reply::of(state.backend.person(&call.me, call.path.id).await?))
}

async fn remove(state: ApiState, call: Call<UserPath, Nothing, Nothing>) -> ApiResult<()> {
    Ok(Reply::of(state.backend.remove_user(&call.me, call.path.id).await?))
}

async fn reset_link(state: ApiState, call: Call<UserPath, Nothing, Nothing>) -> ApiResult<OneTimeLink> {
    Ok(Reply::of(OneTimeLink { path: state.backend.create_reset_link(&call.me, call.path.id).await? }))
}

async fn end_sessions(state: ApiState, call: Call<UserPath, Nothing, Nothing>) -> ApiResult<()> {
    state.backend.end_user_sessions(&call.me, call.path.id, None).await?;
    Ok(Reply::of(()))
}

async fn end_session(state: ApiState, call: Call<SessionPath, Nothing, Nothing>) -> ApiResult<()> {
    state.backend.end_user_sessions(&call.me, call.path.id, Some(call.path.session)).await?;
    Ok(Reply::of(()))
}

async fn audit(state: ApiState, call: Call<Nothing, AuditQuery, Nothing>) -> ApiResult<Page<AuditRow>> {
    let query = call.query;
    let filter = AuditFilter {
        who: query.who.unwrap_or_default(),
        action: query.action.unwrap_or_default(),
        object: query.object.unwrap_or_default(),
        result: query.result,
        since: query.since,
        until: query.until,
        before: audit_cursor(query.before.as_deref())?,
    };
    Ok(Reply::of(Page::of(state.backend.audit(&call.me, filter).await?)))
}
