//! The part of the backend that manages the team. Every method needs the right to read or to manage it.

use async_trait::async_trait;
use milvaion_api::{
    permissions::Role,
    team::{PersonView, TeamFilter, TeamView},
};
use milvaion_protocol::id::{SessionId, UserId};

use super::RequestUser;
use crate::error::AppError;

/// The operations on the team.
#[async_trait]
pub trait TeamBackend: Send + Sync + 'static {
    /// Returns the users and invitations that match a filter.
    async fn team(&self, me: &RequestUser, filter: TeamFilter) -> Result<TeamView, AppError>;
    /// Returns one user with sessions and jobs; `NotFound` if there is none.
    async fn person(&self, me: &RequestUser, id: UserId) -> Result<PersonView, AppError>;
    /// Invites a person and returns the path of the one-time link, which is shown once.
    async fn invite_user(&self, me: &RequestUser, name: &str, role: Role) -> Result<String, AppError>;
    /// Replaces the link of an invitation by a new one that is valid for another 72 hours, and returns its path. The
    /// invitation may have expired.
    async fn renew_invite(&self, me: &RequestUser, id: UserId) -> Result<String, AppError>;
    /// Revokes an invitation.
    async fn revoke_invite(&self, me: &RequestUser, id: UserId) -> Result<(), AppError>;
    /// Changes the role of a user, with effect on open pages within a second. `Conflict` for the last Admin, and for the
    /// own role unless `confirm_self` is set.
    async fn change_role(&self, me: &RequestUser, id: UserId, role: Role, confirm_self: bool) -> Result<(), AppError>;
    /// Activates or deactivates a user. A deactivation ends all sessions and revokes all API tokens. `Conflict` for the
    /// last Admin and for the own account.
    async fn set_user_active(&self, me: &RequestUser, id: UserId, active: bool) -> Result<(), AppError>;
    /// Deletes a deactivated user; the e-mail address can then be used again. Jobs and the audit log keep the name.
    /// `Conflict` for an active user.
    async fn remove_user(&self, me: &RequestUser, id: UserId) -> Result<(), AppError>;
    /// Creates the link with which a user chooses a new passphrase and returns its path, which is shown once. It
    /// replaces an earlier link. `Conflict` for a deactivated user.
    async fn create_reset_link(&self, me: &RequestUser, id: UserId) -> Result<String, AppError>;
    /// Revokes the open link for a new passphrase.
    async fn revoke_reset_link(&self, me: &RequestUser, id: UserId) -> Result<(), AppError>;
    /// Lifts the refusal of sign-ins from unknown devices.
    async fn unlock_user(&self, me: &RequestUser, id: UserId) -> Result<(), AppError>;
    /// Ends one session of a user, or all of them without `session`. Returns the number of ended sessions.
    async fn end_user_sessions(
        &self,
        me: &RequestUser,
        id: UserId,
        session: Option<SessionId>,
    ) -> Result<u32, AppError>;
}
