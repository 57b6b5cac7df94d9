//! The backend of the page of API tokens.

use async_trait::async_trait;
use milvaion_api::tokens::{CreatedToken, NewToken, TokenRow};
use milvaion_app::{
    backend::{RequestUser, TokenBackend},
    error::AppError,
};
use milvaion_protocol::id::TokenId;

use super::backend::ServerBackend;
use crate::command::tokens;

#[async_trait]
impl TokenBackend for ServerBackend {
    async fn tokens(&self, me: &RequestUser, all: bool) -> Result<Vec<TokenRow>, AppError> {
        tokens::list(&self.store, &self.clock, me, all).await
    }

    async fn token(&self, me: &RequestUser, id: TokenId) -> Result<TokenRow, AppError> {
        tokens::get(&self.store, &self.clock, me, id).await
    }

    async fn create_token(&self, me: &RequestUser, new: &NewToken) -> Result<CreatedToken, AppError> {
        tokens::create(&self.store, &self.clock, me, new).await
    }

    async fn rotate_token(&self, me: &RequestUser, id: TokenId) -> Result<CreatedToken, AppError> {
        tokens::rotate(&self.store, &self.clock, me, id).await
    }

    async fn revoke_token(&self, me: &RequestUser, id: TokenId) -> Result<String, AppError> {
        tokens::revoke(&self.store, &self.clock, me, id).await
    }
}
