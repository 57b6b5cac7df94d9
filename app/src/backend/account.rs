//! The part of the backend that manages the own account.

use async_trait::async_trait;
use http::request::Parts;
use milvaion_api::team::AccountView;
use milvaion_protocol::id::SessionId;

use super::RequestUser;
use crate::error::AppError;

/// The operations on the own account.
#[async_trait]
pub trait AccountBackend: Send + Sync + 'static {
    /// Returns the own account with its sessions. The request determines the current session.
    async fn account(&self, parts: &Parts, me: &RequestUser) -> Result<AccountView, AppError>;
    /// Changes the own name. `Fields` for `name`.
    async fn rename_account(&self, me: &RequestUser, name: &str) -> Result<(), AppError>;
    /// Changes the own passphrase, ends all other sessions and gives this one a new id. `Fields` for `current` and
    /// `passphrase`; `TooMany` after too many wrong values of `current`.
    async fn change_passphrase(
        &self,
        parts: &Parts,
        me: &RequestUser,
        current: &str,
        passphrase: &str,
    ) -> Result<(), AppError>;
    /// Ends one own session, or all but the current one without `session`. Returns the number of ended sessions.
    /// `NotFound` if the session does not exist or belongs to another user.
    async fn end_own_sessions(
        &self,
        parts: &Parts,
        me: &RequestUser,
        session: Option<SessionId>,
    ) -> Result<u32, AppError>;
}
