//! The [`AccountBackend`] implementation of [`FakeBackend`]: the own account.

use async_trait::async_trait;
use axum::http::request::Parts;
use milvaion_api::{
    permissions::Role,
    team::{AccountView, ResetInfo},
    views::CurrentUser,
};
use milvaion_app::{
    backend::{AccountBackend, RequestUser},
    error::AppError,
};
use milvaion_protocol::id::SessionId;

use super::FakeBackend;

#[async_trait]
impl AccountBackend for FakeBackend {
    async fn account(&self, _parts: &Parts, _me: &RequestUser) -> Result<AccountView, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn rename_account(&self, _me: &RequestUser, _name: &str) -> Result<(), AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn change_passphrase(
        &self,
        _parts: &Parts,
        _me: &RequestUser,
        _current: &str,
        _passphrase: &str,
    ) -> Result<(), AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn end_own_sessions(
        &self,
        _parts: &Parts,
        _me: &RequestUser,
        _session: Option<SessionId>,
    ) -> Result<u32, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn reset_info(&self, token: &str) -> Result<ResetInfo, AppError> {
        if token == "good" {
            Ok(ResetInfo { name: "Grace".into(), email: "grace@example.org".into() })
        } else {
            Err(AppError::NotFound("This link is no longer valid.".into()))
        }
    }

    async fn reset_passphrase(&self, _parts: &Parts, token: &str, passphrase: &str) -> Result<CurrentUser, AppError> {
        let ResetInfo { name, email } = self.reset_info(token).await?;
        if passphrase.chars().count() < 12 {
            return Err(AppError::field("passphrase", "Use at least 12 characters."));
        }
        self.record(format!("reset the passphrase of {name}"));
        Ok(CurrentUser { id: super::team::grace(), name, email, role: Role::Operator })
    }
}
