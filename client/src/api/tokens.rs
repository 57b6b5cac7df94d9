//! API tokens.

use milvaion_api::{
    rest::{Page, TokenQuery},
    tokens::{CreatedToken, NewToken, TokenRow},
};
use milvaion_protocol::id::TokenId;

use crate::{Client, ClientError};

impl Client {
    /// Returns the tokens, without their secrets.
    pub async fn tokens(&self, query: &TokenQuery) -> Result<Page<TokenRow>, ClientError> {
        self.get(&["tokens"], query).await
    }

    /// Creates a token. Its secret is in this answer only.
    ///
    /// # Errors
    ///
    /// Returns an error if the request is invalid or fails.
    pub async fn create_token(&self, token: &NewToken) -> Result<CreatedToken, ClientError> {
        self.post(&["tokens"], token).await
    }

    /// Returns a token, without its secret.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such token or the request fails.
    pub async fn token(&self, id: TokenId) -> Result<TokenRow, ClientError> {
        self.get(&["tokens", &id.to_string()], &()).await
    }

    /// Revokes a token at once.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such token or the request fails.
    pub async fn revoke_token(&self, id: TokenId) -> Result<(), ClientError> {
        self.delete(&["tokens", &id.to_string()], None).await
    }

    /// Creates a token that replaces another one. The old one works for 24 more hours.
    ///
    /// # Errors
    ///
    /// Returns an error if the token no longer works or the request fails.
    pub async fn rotate_token(&self, id: TokenId) -> Result<CreatedToken, ClientError> {
        self.post_empty(&["tokens", &id.to_string(), "rotate"]).await
    }
}
