//! The part of the backend that manages API tokens.

use async_trait::async_trait;
use milvaion_api::tokens::{CreatedToken, NewToken, TokenRow};
use milvaion_protocol::id::TokenId;

use super::RequestUser;
use crate::error::AppError;

/// The operations on API tokens. Users manage their own ones; Admins also manage those of others and service tokens.
#[async_trait]
pub trait TokenBackend: Send + Sync + 'static {
    /// Returns the own tokens, or with `all` every token of the installation, newest first, at most 1,000. `Denied` for
    /// `all` below Admin.
    async fn tokens(&self, me: &RequestUser, all: bool) -> Result<Vec<TokenRow>, AppError>;
    /// Returns one token. `NotFound` if it does not exist or belongs to another user, for users below Admin.
    async fn token(&self, me: &RequestUser, id: TokenId) -> Result<TokenRow, AppError>;
    /// Creates a token and returns its secret, which is shown once. `Fields` for invalid fields, with the names in JSON;
    /// `Conflict` if the owner has too many active tokens.
    async fn create_token(&self, me: &RequestUser, new: &NewToken) -> Result<CreatedToken, AppError>;
    /// Replaces a token by one with the same rights and lifetime. The old one still works for 24 hours. `Conflict` if the
    /// token is no longer active.
    async fn rotate_token(&self, me: &RequestUser, id: TokenId) -> Result<CreatedToken, AppError>;
    /// Revokes a token at once and returns its name. Its record remains. Succeeds if it is revoked already.
    async fn revoke_token(&self, me: &RequestUser, id: TokenId) -> Result<String, AppError>;
}
