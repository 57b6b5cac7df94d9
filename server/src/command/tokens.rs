//! API tokens: create, rotate and revoke.
//!
//! A secret is `milvaion_` and 40 random letters and digits, which are 238 bits: it cannot be guessed, so its hash needs
//! no salt and no slow function, and one indexed read finds it. The prefix lets secret scanners recognise it in code and
//! logs. A rotation creates another token with the same rights; the old one still works for a day, in which its users
//! are given the new one.

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::{
    page::ListPage,
    permissions::Role,
    rest::TokenQuery,
    tokens::{
        CreatedToken, MAX_ACTIVE_TOKENS, NewToken, ROTATION_OVERLAP_HOURS, TOKEN_PREFIX, TOKEN_SECRET_CHARS, TokenRow,
    },
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::{TokenId, UserId};
use rand::{RngExt, distr::Alphanumeric};
use sha2::{Digest, Sha256};

use crate::{
    clock::Clock,
    store::{
        Store,
        audit::AuditEntry,
        tokens::{StoredToken, TokenPrincipal},
    },
};

/// The start of the e-mail address that stands for a service token in the audit log.
const SERVICE_AUTHOR_PREFIX: &str = "service:";

/// Returns the own tokens, or with `all` every token.
///
/// # Errors
///
/// Returns `Denied` for `all` below Admin.
pub async fn list(store: &Store, clock: &Clock, me: &RequestUser, all: bool) -> Result<Vec<TokenRow>, AppError> {
    may_list(me, all)?;
    Ok(store.tokens((!all).then_some(me.id), clock.now()).await?)
}

/// Returns a page of the own tokens, or with `all` of every token, newest first, after the token `after`.
///
/// # Errors
///
/// Returns `Denied` for `all` below Admin.
pub async fn page(
    store: &Store,
    clock: &Clock,
    me: &RequestUser,
    query: &TokenQuery,
) -> Result<ListPage<TokenRow>, AppError> {
    may_list(me, query.all)?;
    Ok(store.token_page((!query.all).then_some(me.id), query.after, query.limit, clock.now()).await?)
}

fn may_list(me: &RequestUser, all: bool) -> Result<(), AppError> {
    if all && me.role < Role::Admin {
        return Err(AppError::Denied("Only an Admin may view the tokens of other users.".into()));
    }
    Ok(())
}

/// Returns one token that the user may manage.
///
/// # Errors
///
/// Returns `NotFound` if it does not exist or belongs to another user, for users below Admin.
pub async fn get(store: &Store, clock: &Clock, me: &RequestUser, id: TokenId) -> Result<TokenRow, AppError> {
    find(store, clock, me, id).await.map(|(row, _)| row)
}

async fn find(
    store: &Store,
    clock: &Clock,
    me: &RequestUser,
    id: TokenId,
) -> Result<(TokenRow, Option<UserId>), AppError> {
    let found = store.token(id, clock.now()).await?;
    found
        .filter(|(_, owner)| me.role >= Role::Admin || *owner == Some(me.id))
        .ok_or_else(|| AppError::NotFound("This token does not exist, or it belongs to another user.".into()))
}

/// Creates a token and returns its secret.
///
/// # Errors
///
/// Returns `Fields` for invalid fields, and `Conflict` if the owner has too many active tokens.
pub async fn create(store: &Store, clock: &Clock, me: &RequestUser, new: &NewToken) -> Result<CreatedToken, AppError> {
    new.check(me.role).map_err(AppError::Fields)?;
    if !new.service && me.email.starts_with(SERVICE_AUTHOR_PREFIX) {
        return Err(AppError::field("service", "a service token has no owner, so it can create only service tokens"));
    }
    let now = clock.now();
    let secret = secret();
    let token = StoredToken {
        id: clock.token_id(),
        owner: (!new.service).then_some(me.id),
        name: new.name.trim().to_owned(),
        hash: hash(&secret),
        hint: hint(&secret),
        role: new.role,
        read_only: new.read_only,
        tag: new.tag.as_deref().map(|tag| tag.trim().to_owned()),
        lifetime_days: new.lifetime_days(),
        expires_at: end(now, new.lifetime_days()),
    };
    let entry = entry(clock, me, "token.create", token.id);
    if !store.insert_token(&token, MAX_ACTIVE_TOKENS, entry).await? {
        return Err(AppError::Conflict(format!(
            "There are {MAX_ACTIVE_TOKENS} active tokens, which is the limit. Revoke those that are no longer used."
        )));
    }
    Ok(CreatedToken { token: get(store, clock, me, token.id).await?, secret })
}

/// Replaces a token by one with the same rights and lifetime. The old one works for another day.
///
/// # Errors
///
/// Returns `NotFound`, and `Conflict` if the token is no longer active.
pub async fn rotate(store: &Store, clock: &Clock, me: &RequestUser, id: TokenId) -> Result<CreatedToken, AppError> {
    let (old, owner) = find(store, clock, me, id).await?;
    if old.role > me.role {
        return Err(AppError::Denied("This token has more rights than you. Ask an Admin to rotate it.".into()));
    }
    let now = clock.now();
    let lifetime_days = store.token_lifetime(id).await?;
    let secret = secret();
    let new = StoredToken {
        id: clock.token_id(),
        owner,
        name: old.name,
        hash: hash(&secret),
        hint: hint(&secret),
        role: old.role,
        read_only: old.read_only,
        tag: old.tag,
        lifetime_days,
        expires_at: end(now, lifetime_days),
    };
    let overlap_ends = now + TimeDelta::hours(ROTATION_OVERLAP_HOURS);
    let entry = entry(clock, me, "token.rotate", new.id);
    if !store.rotate_token(id, &new, overlap_ends, entry).await? {
        return Err(AppError::Conflict(
            "This token is rotated, expired or revoked already. Create a new one instead.".into(),
        ));
    }
    Ok(CreatedToken { token: get(store, clock, me, new.id).await?, secret })
}

/// Revokes a token at once. Returns its name.
///
/// # Errors
///
/// Returns `NotFound`.
pub async fn revoke(store: &Store, clock: &Clock, me: &RequestUser, id: TokenId) -> Result<String, AppError> {
    let token = get(store, clock, me, id).await?;
    store.revoke_token(id, entry(clock, me, "token.revoke", id)).await?;
    Ok(token.name)
}

/// Returns the rights of the token with this secret, in whatever state it is; `None` if there is none.
pub async fn principal(store: &Store, clock: &Clock, secret: &str) -> Result<Option<TokenPrincipal>, AppError> {
    if !is_secret(secret) {
        return Ok(None);
    }
    Ok(store.token_principal(&hash(secret), clock.now()).await?)
}

fn entry(clock: &Clock, me: &RequestUser, action: &'static str, id: TokenId) -> AuditEntry {
    AuditEntry::new(clock.now(), &me.email, action, format!("token:{id}"))
        .from(me.address.map(|address| address.to_string()))
}

fn end(now: DateTime<Utc>, days: Option<u32>) -> Option<DateTime<Utc>> {
    days.map(|days| now + TimeDelta::days(days.into()))
}

fn secret() -> String {
    let random = rand::rng().sample_iter(Alphanumeric).take(TOKEN_SECRET_CHARS).map(char::from);
    TOKEN_PREFIX.chars().chain(random).collect()
}

fn is_secret(text: &str) -> bool {
    text.strip_prefix(TOKEN_PREFIX)
        .is_some_and(|rest| rest.len() == TOKEN_SECRET_CHARS && rest.bytes().all(|b| b.is_ascii_alphanumeric()))
}

fn hint(secret: &str) -> String {
    secret[secret.len().saturating_sub(4)..].to_owned()
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_has_its_prefix_and_needs_no_escaping() {
        let secret = secret();
        assert!(is_secret(&secret), "{secret}");
        assert_eq!(secret.len(), TOKEN_PREFIX.len() + 40);
        assert!(secret.ends_with(&hint(&secret)));
        assert_ne!(secret, super::secret());
        for other in ["", "milvaion_", "milvaion_short", &format!("{secret}x"), &secret.replace("milvaion_", "other_")]
        {
            assert!(!is_secret(other), "{other}");
        }
    }
}
