//! One-time links: the only way to become somebody here.
//!
//! A fresh installation has no default account and no default passphrase. Its server prints a link that makes the first
//! Admin; everybody after that is invited by an Admin. A link holds 256 random bits and is known to the database only by
//! their hash; it works once, for a while.

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::TimeDelta;
use milvaion_api::{
    permissions::Role,
    requests::{FieldError, check_email, check_name, check_passphrase},
    views::{CurrentUser, InviteInfo},
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::UserId;
use sha2::{Digest, Sha256};

use super::sign_in::{PassphraseHasher, passphrase::check_guessable};
use crate::{
    clock::Clock,
    store::{
        Store, StoreError,
        users::{InviteAcceptance, InviteRow, NewInvite, NewUser},
    },
};

/// How long the setup link works. It is printed to a log, so not for long.
const SETUP_LINK_TTL: TimeDelta = TimeDelta::minutes(15);

/// How long an invitation works.
const INVITE_TTL: TimeDelta = TimeDelta::hours(72);

/// Open invitations at one time.
const MAX_OPEN_INVITES: i64 = 100;

/// Longer than any token of ours, in bytes; what is longer is not looked up.
const MAX_TOKEN_CHARS: usize = 64;

/// Makes a new setup link, good for 15 minutes, in place of every earlier one. Returns its path, `/setup?token=…`; none
/// when there is somebody already.
///
/// # Errors
///
/// When the database does not answer.
pub async fn setup_link(store: &Store, clock: &Clock) -> Result<Option<String>, StoreError> {
    let (token, invite) = new_invite(clock, String::new(), Role::Admin, SETUP_LINK_TTL);
    let made = store.replace_setup_invite(&invite).await?;
    Ok(made.then(|| format!("/setup?token={token}")))
}

/// What the link with this token is good for.
///
/// # Errors
///
/// `NotFound` when it is not good: unknown, used up, taken back, or too old.
pub async fn info(store: &Store, clock: &Clock, token: &str) -> Result<InviteInfo, AppError> {
    let invite = find(store, clock, token).await?;
    Ok(InviteInfo { is_setup: invite.is_setup, name: invite.name, role: invite.role })
}

/// Uses a link up: makes the person it is for. The session is the caller's to make. `address` is where the request came
/// from, if that is known.
///
/// # Errors
///
/// `NotFound` when the link is not good, also when somebody else was quicker; `Fields` for `name`, `email` and
/// `passphrase`, with the link left as it was.
#[expect(clippy::too_many_arguments, reason = "three of them are the form's fields, and each has another meaning")]
pub async fn accept(
    store: &Store,
    clock: &Clock,
    hasher: &PassphraseHasher,
    address: Option<IpAddr>,
    token: &str,
    name: &str,
    email: &str,
    passphrase: &str,
) -> Result<CurrentUser, AppError> {
    // Only a good link is worth a hash.
    find(store, clock, token).await?;
    let (name, email) = check(name, email, passphrase).map_err(AppError::Fields)?;
    let passphrase_hash = hasher.hash(passphrase, clock).await?;
    let user = NewUser { id: clock.user_id(), name, email, passphrase_hash };
    let address = address.map(|address| address.to_string());
    match store.accept_invite(&hash(token), &user, clock.now(), address).await? {
        InviteAcceptance::Accepted(me) => {
            tracing::info!(user.id = %me.id, user.role = me.role.slug(), "somebody joined");
            Ok(me)
        }
        InviteAcceptance::Spent => Err(spent(store).await),
        InviteAcceptance::EmailTaken => {
            Err(AppError::field("email", "somebody here has this address already: sign in, or use another"))
        }
    }
}

/// Invites somebody. Returns the link's path, `/invite?token=…`, good for 72 hours; it cannot be read again later.
///
/// # Errors
///
/// `Fields` for `name`; `TooMany` when 100 invitations are open.
pub async fn create(
    store: &Store,
    clock: &Clock,
    by: &CurrentUser,
    name: &str,
    role: Role,
) -> Result<String, AppError> {
    let name = check_name(name).map_err(|message| AppError::field("name", message))?;
    let (token, invite) = new_invite(clock, name, role, INVITE_TTL);
    if store.insert_invite(&invite, by, MAX_OPEN_INVITES).await? {
        Ok(format!("/invite?token={token}"))
    } else {
        Err(AppError::TooMany(format!(
            "{MAX_OPEN_INVITES} invitations are open. Take one back before you make another."
        )))
    }
}

/// Takes an invitation back: its link is dead from now on.
///
/// # Errors
///
/// `NotFound` when it was used or taken back meanwhile.
pub async fn revoke(store: &Store, clock: &Clock, by: &CurrentUser, id: UserId) -> Result<(), AppError> {
    if store.delete_invite(id, by, clock.now()).await? {
        Ok(())
    } else {
        Err(AppError::NotFound("This invitation was used or taken back meanwhile.".into()))
    }
}

/// The name and e-mail address as they are kept, or everything that is wrong.
fn check(name: &str, email: &str, passphrase: &str) -> Result<(String, String), Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut take = |field: &str, result: Result<String, String>| {
        result.unwrap_or_else(|message| {
            errors.push(FieldError::new(field, message));
            String::new()
        })
    };
    let name = take("name", check_name(name));
    let email = take("email", check_email(email));
    take("passphrase", check_passphrase(passphrase).map(|()| String::new()));
    if errors.is_empty()
        && let Err(message) = check_guessable(passphrase, &name, &email)
    {
        errors.push(FieldError::new("passphrase", message));
    }
    if errors.is_empty() { Ok((name, email)) } else { Err(errors) }
}

fn new_invite(clock: &Clock, name: String, role: Role, life: TimeDelta) -> (String, NewInvite) {
    let token = URL_SAFE_NO_PAD.encode(clock.token());
    let now = clock.now();
    let invite = NewInvite {
        id: clock.user_id(),
        token_hash: hash(&token),
        name,
        role,
        created_at: now,
        expires_at: now + life,
    };
    (token, invite)
}

async fn find(store: &Store, clock: &Clock, token: &str) -> Result<InviteRow, AppError> {
    if !token.is_empty()
        && token.len() <= MAX_TOKEN_CHARS
        && let Some(invite) = store.open_invite(&hash(token), clock.now()).await?
    {
        return Ok(invite);
    }
    Err(spent(store).await)
}

/// The same words whatever is wrong with the link, but the way out depends on whether there is anybody to ask.
async fn spent(store: &Store) -> AppError {
    match store.count_users().await {
        Ok(0) => AppError::NotFound(
            "This setup link no longer works: it is good for 15 minutes. Restart the server to get a new one.".into(),
        ),
        Ok(_) => AppError::NotFound(
            "This link no longer works: it was used, taken back, or is too old. Ask an Admin for a new one.".into(),
        ),
        Err(error) => error.into(),
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_256_bits_and_stands_in_an_address_as_it_is() {
        let (token, invite) = new_invite(&Clock::system(), String::new(), Role::Admin, SETUP_LINK_TTL);
        assert_eq!(URL_SAFE_NO_PAD.decode(&token).expect("base64url").len(), 32);
        assert!(token.len() <= MAX_TOKEN_CHARS);
        assert_eq!(invite.token_hash, hash(&token));
        assert_eq!(invite.expires_at - invite.created_at, SETUP_LINK_TTL);
    }

    #[test]
    fn every_wrong_field_is_named_at_once() {
        let fields = |name, email, passphrase| {
            check(name, email, passphrase).expect_err("wrong").into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        assert_eq!(fields(" ", "nobody", "short"), ["name", "email", "passphrase"]);
        assert_eq!(fields("Ana", "ana@example.org", "Password2024!!"), ["passphrase"]);
        assert!(check("Ana", " Ana@Example.org", "violet tram under snow").is_ok());
    }
}
