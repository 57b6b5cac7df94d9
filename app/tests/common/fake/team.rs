//! The [`TeamBackend`] implementation of [`FakeBackend`]: the team.

use async_trait::async_trait;
use milvaion_api::{
    permissions::Role,
    team::{PersonView, TeamFilter, TeamView},
};
use milvaion_app::{
    backend::{RequestUser, TeamBackend},
    error::AppError,
};
use milvaion_protocol::id::{SessionId, UserId};

use super::FakeBackend;

#[async_trait]
impl TeamBackend for FakeBackend {
    async fn team(&self, _me: &RequestUser, _filter: TeamFilter) -> Result<TeamView, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn person(&self, _me: &RequestUser, _id: UserId) -> Result<PersonView, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn invite_user(&self, _me: &RequestUser, _name: &str, _role: Role) -> Result<String, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn renew_invite(&self, _me: &RequestUser, _id: UserId) -> Result<String, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn revoke_invite(&self, _me: &RequestUser, _id: UserId) -> Result<(), AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn change_role(
        &self,
        _me: &RequestUser,
        _id: UserId,
        _role: Role,
        _confirm_self: bool,
    ) -> Result<(), AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn set_user_active(&self, _me: &RequestUser, _id: UserId, _active: bool) -> Result<(), AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn remove_user(&self, _me: &RequestUser, _id: UserId) -> Result<(), AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn create_reset_link(&self, _me: &RequestUser, _id: UserId) -> Result<String, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn revoke_reset_link(&self, _me: &RequestUser, _id: UserId) -> Result<(), AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn unlock_user(&self, _me: &RequestUser, _id: UserId) -> Result<(), AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn end_user_sessions(
        &self,
        _me: &RequestUser,
        _id: UserId,
        _session: Option<SessionId>,
    ) -> Result<u32, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }
}
