//! One-time links for a new passphrase.
//!
//! An Admin creates a link for a user who cannot sign in, and the command line for an Admin who cannot. The user chooses
//! the passphrase, so the Admin does not receive it. A link holds 256 random bits, of which the database stores only a
//! hash. It works once and for 24 hours, and a new one replaces it.

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::TimeDelta;
use milvaion_api::{requests::check_passphrase, team::ResetInfo, views::CurrentUser};
use milvaion_app::error::AppError;
use sha2::{Digest, Sha256};

use super::sign_in::{PassphraseHasher, passphrase::check_guessable};
use crate::{
    clock::Clock,
    store::{
        Store,
        audit::AuditEntry,
        users::{NewReset, ThrottleSlot, UserRow},
    },
};

/// The lifetime of a link.
const RESET_LINK_TTL: TimeDelta = TimeDelta::hours(24);

/// The longest token that is looked up, in bytes. Valid tokens are shorter.
const MAX_TOKEN_CHARS: usize = 64;

/// Creates the link with which `user` chooses a new passphrase, and invalidates an earlier one. Returns its path,
/// `/reset?token=…`, which cannot be read again later. `by` is the e-mail address of the Admin, or `system` for the
/// command line, and `address` the network address of the request, if there is one.
///
/// # Errors
///
/// Returns `Conflict` if the user is deactivated, and `NotFound` if the user was removed in the meantime.
pub async fn create_link(
    store: &Store,
    clock: &Clock,
    by: &str,
    address: Option<String>,
    user: &UserRow,
) -> Result<String, AppError> {
    let token = URL_SAFE_NO_PAD.encode(clock.token());
    let now = clock.now();
    let reset = NewReset {
        id: clock.user_id().0,
        token_hash: hash(&token),
        user_id: user.id,
        created_by: by.to_owned(),
        created_at: now,
        expires_at: now + RESET_LINK_TTL,
    };
    let entry = AuditEntry::new(now, by, "user.create-reset-link", format!("user:{}", user.id)).from(address);
    if store.replace_reset(&reset, entry).await? {
        tracing::info!(user.id = %user.id, user.by = by, "a link for a new passphrase of user {} was created", user.id);
        Ok(format!("/reset?token={token}"))
    } else if store.user(user.id).await?.is_some() {
        Err(AppError::Conflict(format!(
            "{} is deactivated and cannot sign in. Reactivate the user, then create the link.",
            user.name
        )))
    } else {
        Err(AppError::NotFound("This user was removed in the meantime.".into()))
    }
}

/// Returns the user of the link with this token.
///
/// # Errors
///
/// Returns `NotFound` if the link is unknown, used, replaced, revoked or expired.
pub async fn info(store: &Store, clock: &Clock, token: &str) -> Result<ResetInfo, AppError> {
    let user = find(store, clock, token).await?;
    Ok(ResetInfo { name: user.name, email: user.email })
}

/// Uses a link: stores the passphrase, ends all sessions of the user, forgets the user's devices and lifts the sign-in
/// limit of the account. The caller starts the session. `address` is the address of the client, if it is known.
///
/// # Errors
///
/// Returns `NotFound` if the link is not valid, also if another request has used it first. Returns `Fields` for an
/// invalid `passphrase`; the link then stays valid.
pub async fn accept(
    store: &Store,
    clock: &Clock,
    hasher: &PassphraseHasher,
    address: Option<IpAddr>,
    token: &str,
    passphrase: &str,
) -> Result<CurrentUser, AppError> {
    // Checked before hashing, because a hash is expensive and only a valid link justifies it.
    let user = find(store, clock, token).await?;
    check_passphrase(passphrase)
        .and_then(|()| check_guessable(passphrase, &user.name, &user.email))
        .map_err(|message| AppError::field("passphrase", message))?;
    let passphrase_hash = hasher.hash(passphrase, clock).await?;
    let entry = AuditEntry::new(clock.now(), &user.email, "user.reset-passphrase", format!("user:{}", user.id))
        .from(address.map(|address| address.to_string()));
    let user = store.use_reset(&hash(token), user.id, &passphrase_hash, entry).await?.ok_or_else(invalid_link)?;
    store.reset_sign_in_attempts(ThrottleSlot::account(&user.email)).await?;
    tracing::info!(user.id = %user.id, "user {} chose a new passphrase with a link", user.id);
    Ok(user.me())
}

async fn find(store: &Store, clock: &Clock, token: &str) -> Result<UserRow, AppError> {
    if token.is_empty() || token.len() > MAX_TOKEN_CHARS {
        return Err(invalid_link());
    }
    store.user_of_reset(&hash(token), clock.now()).await?.ok_or_else(invalid_link)
}

/// Returns the error for an invalid link. It is the same for every cause.
fn invalid_link() -> AppError {
    AppError::NotFound(
        "This link no longer works: it was used, replaced or revoked, or it has expired. Ask an Admin for a new one."
            .into(),
    )
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}
