//! The [`AccountBackend`] implementation of [`ServerBackend`]: the own account.

use async_trait::async_trait;
use http::request::Parts;
use milvaion_api::team::AccountView;
use milvaion_app::{
    backend::{AccountBackend, RequestUser},
    error::AppError,
};
use milvaion_protocol::id::SessionId;

use super::backend::ServerBackend;
use crate::{
    command::{
        account::{self, CurrentDevice},
        sign_in::device,
    },
    http::{
        device_cookie, guard,
        session::{self, SessionOrigin},
    },
};

/// Returns the hash of the id of the session of a request.
fn current_session(parts: &Parts) -> Result<Option<[u8; 32]>, AppError> {
    Ok(session::id_hash(guard::session(parts)?))
}

#[async_trait]
impl AccountBackend for ServerBackend {
    async fn account(&self, parts: &Parts, me: &RequestUser) -> Result<AccountView, AppError> {
        account::view(&self.store, &self.clock, me, current_session(parts)?.as_ref()).await
    }

    async fn rename_account(&self, me: &RequestUser, name: &str) -> Result<(), AppError> {
        if account::rename(&self.store, &self.clock, me, name).await? {
            self.check_streams_of(me.id);
        }
        Ok(())
    }

    async fn change_passphrase(
        &self,
        parts: &Parts,
        me: &RequestUser,
        current: &str,
        passphrase: &str,
    ) -> Result<(), AppError> {
        let device = device_cookie::device_token(&self.config, parts).and_then(|token| device::token_hash(&token));
        let at = CurrentDevice { session: current_session(parts)?, device };
        account::change_passphrase(&self.store, &self.clock, &self.hasher, me, &at, current, passphrase).await?;
        let origin = SessionOrigin::of(parts, me.address);
        let signed_in = session::sign_in_session(guard::session(parts)?, &me.user, self.clock.now(), origin).await;
        self.check_streams_of(me.id);
        self.remember_device(parts, me.id).await;
        signed_in
    }

    async fn end_own_sessions(
        &self,
        parts: &Parts,
        me: &RequestUser,
        session: Option<SessionId>,
    ) -> Result<u32, AppError> {
        let current = current_session(parts)?;
        let ended = account::end_sessions(&self.store, &self.clock, me, current.as_ref(), session).await?;
        if ended > 0 {
            self.check_streams_of(me.id);
        }
        Ok(ended)
    }
}
