//! Server functions of the API tokens.
//!
//! A secret is returned once. The answer to a plain form post is a redirect, so there the secret is part of the notice
//! on the next page.

use leptos::prelude::*;
use milvaion_api::tokens::TokenRow;
use milvaion_protocol::id::TokenId;
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// The value of `lifetime` for a number of days that the user has typed.
pub const CUSTOM_LIFETIME: &str = "custom";
/// The value of `lifetime` for a token that never expires.
pub const NO_EXPIRY: &str = "never";

/// The fields of a new token, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TokenForm {
    /// The name.
    pub name: String,
    /// The slug of the role.
    pub role: String,
    /// `on`; empty for off, as a checkbox that is not checked.
    pub read_only: String,
    /// The tag; empty for none.
    pub tag: String,
    /// A number of days, [`CUSTOM_LIFETIME`] or [`NO_EXPIRY`].
    pub lifetime: String,
    /// The number of days of a custom lifetime.
    pub expires_in_days: String,
    /// `on`; empty for off.
    pub service: String,
}

/// The secret of a token that was created or rotated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSecret {
    /// The name of the token.
    pub name: String,
    /// True for a token of the installation.
    pub is_service: bool,
    /// The secret.
    pub secret: String,
}

/// Returns the own tokens, or with `all` those of every user and service, newest first.
///
/// # Errors
///
/// `Denied` for `all` below Admin.
#[server(input = GetUrl, output = JsonText, endpoint = "tokens")]
pub async fn tokens(#[server(default)] all: bool) -> Result<Vec<TokenRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTokens).await?;
    backend.tokens(&me, all).await.map_err(super::with_error_status)
}

/// Creates a token and returns its secret. `all` selects the list that a plain form post returns to.
///
/// # Errors
///
/// `Fields` for invalid fields; `Conflict` after too many active tokens.
#[server(output = JsonText, endpoint = "create_token")]
pub async fn create_token(
    #[server(default)] form: TokenForm,
    #[server(default)] all: bool,
) -> Result<TokenSecret, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTokens).await?;
    let result = match form.request() {
        Ok(new) => backend.create_token(&me, &new).await.map(TokenSecret::from),
        Err(error) => Err(error),
    };
    let notice = match &result {
        Ok(made) => secret_notice(&created_text(&made.name, made.is_service), made),
        Err(_) => String::new(),
    };
    // A service token is only in the list of all tokens.
    let then = |made: &TokenSecret| address(all || made.is_service);
    super::respond(FORM, result, then, &notice, &address(all), form).await
}

/// Replaces a token by one with the same rights and lifetime and returns the new secret. The old one still works for 24
/// hours. `all` selects the list that a plain form post returns to.
///
/// # Errors
///
/// `Conflict` if the token is no longer active; `NotFound` for the token of another user.
#[server(output = JsonText, endpoint = "rotate_token")]
pub async fn rotate_token(id: TokenId, #[server(default)] all: bool) -> Result<TokenSecret, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTokens).await?;
    let result = backend.rotate_token(&me, id).await.map(TokenSecret::from);
    let notice = result.as_ref().map(|made| secret_notice(&rotated_text(&made.name), made)).unwrap_or_default();
    super::respond(FORM, result, |_| address(all), &notice, &address(all), ()).await
}

/// Revokes a token at once and returns its name. `all` selects the list that a plain form post returns to.
///
/// # Errors
///
/// `NotFound` for the token of another user.
#[server(output = JsonText, endpoint = "revoke_token")]
pub async fn revoke_token(id: TokenId, #[server(default)] all: bool) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageTokens).await?;
    let result = backend.revoke_token(&me, id).await;
    let notice = result.as_ref().map(|name| revoked_notice(name)).unwrap_or_default();
    super::respond(FORM, result, |_| address(all), &notice, &address(all), ()).await
}

/// Returns the result of a creation as a sentence.
#[must_use]
pub fn created_text(name: &str, is_service: bool) -> String {
    if is_service {
        format!("The service token {name} is created and listed under All tokens.")
    } else {
        format!("The token {name} is created.")
    }
}

/// Returns the result of a rotation as a sentence.
#[must_use]
pub fn rotated_text(name: &str) -> String {
    let hours = milvaion_api::tokens::ROTATION_OVERLAP_HOURS;
    format!("The token {name} has a new secret. The old one still works for {hours} hours.")
}

/// Returns the notice after a revocation.
#[must_use]
pub fn revoked_notice(name: &str) -> String {
    format!("The token {name} is revoked.")
}

/// Returns the command that checks a secret against the server at `origin`.
#[must_use]
pub fn check_command(secret: &str, origin: &str) -> String {
    let origin = if origin.is_empty() { "https://HOST" } else { origin };
    format!("curl -H \"Authorization: Bearer {secret}\" {origin}/api/v1/jobs")
}

/// Returns the address of the list of the own tokens, or of all tokens.
#[must_use]
pub fn address(all: bool) -> String {
    if all { "/tokens?all=1" } else { "/tokens" }.to_owned()
}

/// The name of the forms of the page in flash messages.
#[cfg(feature = "ssr")]
const FORM: &str = "tokens";

/// Returns the notice with a new secret.
#[cfg(feature = "ssr")]
fn secret_notice(text: &str, made: &TokenSecret) -> String {
    let command = check_command(&made.secret, &super::team::own_origin());
    format!("{text} Copy the secret; it is shown only now: {} To check it, run: {command}", made.secret)
}

#[cfg(feature = "ssr")]
impl From<milvaion_api::tokens::CreatedToken> for TokenSecret {
    fn from(created: milvaion_api::tokens::CreatedToken) -> Self {
        Self { name: created.token.name, is_service: created.token.owner.is_none(), secret: created.secret }
    }
}

#[cfg(feature = "ssr")]
impl TokenForm {
    /// Converts the texts to a request, whose values the backend checks.
    fn request(&self) -> Result<milvaion_api::tokens::NewToken, AppError> {
        use milvaion_api::{permissions::Role, tokens::NewToken};

        let role = Role::from_slug(&self.role).ok_or_else(|| AppError::field("role", "choose a role"))?;
        // No number is 0, which the check of the request refuses with the permitted range.
        let days = |text: &str| Some(text.trim().parse().unwrap_or(0));
        let expires_in_days = match self.lifetime.as_str() {
            "" | NO_EXPIRY => None,
            CUSTOM_LIFETIME => days(&self.expires_in_days),
            chosen => days(chosen),
        };
        let tag = self.tag.trim();
        Ok(NewToken {
            name: self.name.trim().to_owned(),
            role,
            read_only: !self.read_only.is_empty(),
            tag: (!tag.is_empty()).then(|| tag.to_owned()),
            expires_in_days,
            never_expires: self.lifetime == NO_EXPIRY,
            service: !self.service.is_empty(),
        })
    }
}

#[cfg(all(test, feature = "ssr"))]
mod tests {
    use super::*;

    fn form(lifetime: &str, days: &str) -> TokenForm {
        TokenForm {
            name: " ci ".into(),
            role: "viewer".into(),
            lifetime: lifetime.into(),
            expires_in_days: days.into(),
            ..TokenForm::default()
        }
    }

    #[test]
    fn lifetime_is_a_choice_or_a_typed_number() {
        let days = |lifetime, days| form(lifetime, days).request().map(|new| new.lifetime_days());
        assert_eq!(days("30", "7"), Ok(Some(30)));
        assert_eq!(days("custom", " 7 "), Ok(Some(7)));
        assert_eq!(days("custom", "a week"), Ok(Some(0)));
        assert_eq!(days("never", ""), Ok(None));
        assert_eq!(days("", ""), Ok(Some(90)));
    }

    #[test]
    fn texts_are_trimmed_and_an_empty_tag_is_none() {
        let new = TokenForm { tag: " ".into(), read_only: "on".into(), ..form("90", "") }.request().expect("a request");
        assert_eq!((new.name.as_str(), new.tag, new.read_only, new.service), ("ci", None, true, false));
        let unknown = TokenForm { role: "root".into(), ..form("90", "") };
        assert_eq!(unknown.request(), Err(AppError::field("role", "choose a role")));
    }
}
