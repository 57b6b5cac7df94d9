//! Server functions of the page behind a one-time link for a new passphrase. They need no session: the link is the
//! credential.

use leptos::prelude::*;
use milvaion_api::team::ResetInfo;
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Result of looking up a link for a new passphrase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ResetLink {
    /// A valid link with its user.
    Good(ResetInfo),
    /// A link that is used, replaced, expired, revoked or mistyped.
    Spent,
}

/// Looks up the link for a new passphrase with this token.
///
/// # Errors
///
/// `Unavailable` if it cannot be looked up. An invalid link is a result, not an error.
#[server(input = GetUrl, output = JsonText, endpoint = "reset_info")]
pub async fn load_reset_link(#[server(default)] token: String) -> Result<ResetLink, AppError> {
    match super::backend()?.reset_info(&token).await {
        Ok(info) => Ok(ResetLink::Good(info)),
        Err(error @ AppError::NotFound(_)) => {
            super::with_error_status(error);
            Ok(ResetLink::Spent)
        }
        Err(error) => Err(super::with_error_status(error)),
    }
}

/// Consumes a link for a new passphrase: stores the passphrase, ends all sessions of the user, signs the user in and
/// returns the address to continue at.
///
/// # Errors
///
/// `Fields` for `passphrase`; `NotFound` if the link is no longer valid.
#[server(output = JsonText, endpoint = "reset_passphrase")]
pub async fn reset_passphrase(
    #[server(default)] token: String,
    #[server(default)] passphrase: String,
) -> Result<String, AppError> {
    let parts = super::request()?;
    let backend = super::backend()?;
    let result = backend.reset_passphrase(&parts, &token, &passphrase).await.map(|_| "/".to_owned());
    let back = format!("/reset?token={}", super::session::query_value(&token));
    super::respond("reset", result, Clone::clone, "", &back, ()).await
}
