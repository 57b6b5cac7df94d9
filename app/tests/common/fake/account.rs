//! The [`AccountBackend`] implementation of [`FakeBackend`]: the own account.

use async_trait::async_trait;
use axum::http::request::Parts;
use milvaion_api::team::AccountView;
use milvaion_app::{
    backend::{AccountBackend, RequestUser},
    error::AppError,
};
use milvaion_protocol::id::SessionId;

use super::FakeBackend;
use crate::common::samples;

#[async_trait]
impl AccountBackend for FakeBackend {
    async fn account(&self, _parts: &Parts, me: &RequestUser) -> Result<AccountView, AppError> {
        Ok(AccountView {
            user: me.user.clone(),
            created_at: samples::at(0),
            passphrase_changed_at: None,
            sessions: samples::own_sessions(),
        })
    }

    async fn rename_account(&self, _me: &RequestUser, name: &str) -> Result<(), AppError> {
        if name.trim().is_empty() {
            return Err(AppError::field("name", "Enter a name."));
        }
        self.record(format!("rename {name}"));
        Ok(())
    }

    async fn change_passphrase(
        &self,
        _parts: &Parts,
        _me: &RequestUser,
        current: &str,
        passphrase: &str,
    ) -> Result<(), AppError> {
        if current != "correct horse battery" {
            return Err(AppError::field("current", "The current passphrase is wrong."));
        }
        if passphrase.chars().count() < 12 {
            return Err(AppError::field("passphrase", "Use at least 12 characters."));
        }
        if passphrase.contains("password") {
            return Err(AppError::field("passphrase", "This passphrase is easy to guess."));
        }
        self.record("change passphrase");
        Ok(())
    }

    async fn end_own_sessions(
        &self,
        _parts: &Parts,
        _me: &RequestUser,
        session: Option<SessionId>,
    ) -> Result<u32, AppError> {
        let others: Vec<_> = samples::own_sessions().into_iter().filter(|session| !session.is_current).collect();
        let ended: Vec<_> = others.iter().filter(|other| session.is_none_or(|session| session == other.id)).collect();
        if ended.is_empty() && session.is_some() {
            return Err(AppError::NotFound("This session has already ended.".into()));
        }
        self.record(format!(
            "end {}",
            ended.iter().map(|session| session.device.as_str()).collect::<Vec<_>>().join(", ")
        ));
        Ok(ended.len().try_into().expect("a few sessions"))
    }
}
