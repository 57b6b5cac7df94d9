//! One-time links. They are the only way to create a user.
//!
//! A fresh installation has no default account and no default passphrase. The server prints a link that creates the
//! first Admin. All later users are invited by an Admin. A link holds 256 random bits, of which the database stores
//! only a hash. It works once and expires.

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::TimeDelta;
use milvaion_api::{
    permissions::Role,
    requests::{FieldError, check_email, check_name, check_passphrase},
    views::{CurrentUser, InviteInfo},
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::UserId;
use sha2::{Digest, Sha256};

use super::sign_in::{PassphraseHasher, passphrase::check_guessable};
use crate::{
    clock::Clock,
    store::{
        Store, StoreError,
        audit::AuditEntry,
        users::{InviteAcceptance, InviteRenewal, InviteRow, NewInvite, NewUser},
    },
};

/// The lifetime of the setup link. It is short because the link is printed to the terminal or to a log.
const SETUP_LINK_TTL: TimeDelta = TimeDelta::minutes(15);

/// The lifetime of an invitation.
const INVITE_TTL: TimeDelta = TimeDelta::hours(72);

/// The most open invitations.
const MAX_OPEN_INVITES: i64 = 100;

/// The longest token that is looked up, in bytes. Valid tokens are shorter.
const MAX_TOKEN_CHARS: usize = 64;

/// Creates a setup link that is valid for 15 minutes, and invalidates every earlier one. Returns its path,
/// `/setup?token=…`, or `None` if there already is a user.
pub async fn setup_link(store: &Store, clock: &Clock) -> Result<Option<String>, StoreError> {
    let (token, invite) = new_invite(clock, String::new(), Role::Admin, SETUP_LINK_TTL);
    let created = store.replace_setup_invite(&invite).await?;
    Ok(created.then(|| format!("/setup?token={token}")))
}

/// Returns the kind, name and role of the link with this token.
///
/// # Errors
///
/// Returns `NotFound` if the link is unknown, used, revoked or expired.
pub async fn info(store: &Store, clock: &Clock, token: &str) -> Result<InviteInfo, AppError> {
    let invite = find(store, clock, token).await?;
    Ok(InviteInfo { is_setup: invite.is_setup, name: invite.name, role: invite.role })
}

/// Accepts an invitation: creates the user and uses the link up. The caller starts the session. `address` is the
/// address of the client, if it is known.
///
/// # Errors
///
/// Returns `NotFound` if the link is not valid, also if another request has used it first. Returns `Fields` for an
/// invalid `name`, `email` or `passphrase`; the link then stays valid.
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
    // Checked before hashing, because a hash is expensive and only a valid link justifies it.
    let invite = find(store, clock, token).await?;
    let (name, email) = check(name, email, passphrase).map_err(AppError::Fields)?;
    let passphrase_hash = hasher.hash(passphrase, clock).await?;
    let user = NewUser { id: clock.user_id(), name, email, passphrase_hash };
    let address = address.map(|address| address.to_string());
    match store.accept_invite(&hash(token), &user, clock.now(), address).await? {
        InviteAcceptance::Accepted(me) => {
            let (id, role) = (me.id, me.role.slug());
            if invite.is_setup {
                tracing::info!(user.id = %id, user.role = role, "user {id} was created with the setup link");
            } else {
                tracing::info!(user.id = %id, user.role = role, "user {id} accepted an invitation");
            }
            Ok(me)
        }
        InviteAcceptance::Spent => Err(invalid_link(store).await),
        InviteAcceptance::EmailTaken => {
            Err(AppError::field("email", "another user has this address: sign in, or use a different one"))
        }
    }
}

/// Creates an invitation. Returns the path of its link, `/invite?token=…`. The link is valid for 72 hours and cannot be
/// read again later.
///
/// # Errors
///
/// Returns `Fields` for an invalid `name`, and `TooMany` if 100 invitations are open.
pub async fn create(
    store: &Store,
    clock: &Clock,
    by: &RequestUser,
    name: &str,
    role: Role,
) -> Result<String, AppError> {
    let name = check_name(name).map_err(|message| AppError::field("name", message))?;
    let (token, invite) = new_invite(clock, name, role, INVITE_TTL);
    let entry = entry_by(by, clock, "invite.create", invite.id);
    if store.insert_invite(&invite, &by.name, MAX_OPEN_INVITES, entry).await? {
        Ok(format!("/invite?token={token}"))
    } else {
        Err(too_many_open())
    }
}

/// Replaces the link of an invitation, which may have expired, by a new one that is valid for another 72 hours. Returns
/// its path. The old link no longer works.
///
/// # Errors
///
/// Returns `NotFound` if the invitation was used or revoked in the meantime, and `TooMany` if 100 others are open.
pub async fn renew(store: &Store, clock: &Clock, by: &RequestUser, id: UserId) -> Result<String, AppError> {
    let token = URL_SAFE_NO_PAD.encode(clock.token());
    let entry = entry_by(by, clock, "invite.renew", id);
    let expires_at = entry.at + INVITE_TTL;
    match store.renew_invite(id, &hash(&token), expires_at, MAX_OPEN_INVITES, entry).await? {
        InviteRenewal::Renewed => Ok(format!("/invite?token={token}")),
        InviteRenewal::Missing => Err(used_or_revoked()),
        InviteRenewal::TooMany => Err(too_many_open()),
    }
}

/// Revokes an invitation. Its link no longer works.
///
/// # Errors
///
/// Returns `NotFound` if it was used or revoked in the meantime.
pub async fn revoke(store: &Store, clock: &Clock, by: &RequestUser, id: UserId) -> Result<(), AppError> {
    if store.delete_invite(id, entry_by(by, clock, "invite.revoke", id)).await? {
        Ok(())
    } else {
        Err(used_or_revoked())
    }
}

fn entry_by(by: &RequestUser, clock: &Clock, action: &'static str, id: UserId) -> AuditEntry {
    let address = by.address.map(|address| address.to_string());
    AuditEntry::new(clock.now(), &by.email, action, format!("invite:{id}")).from(address)
}

fn too_many_open() -> AppError {
    AppError::TooMany(format!("{MAX_OPEN_INVITES} invitations are pending. Revoke one before you create another."))
}

fn used_or_revoked() -> AppError {
    AppError::NotFound("This invitation was used or revoked in the meantime.".into())
}

/// Returns the name and the e-mail address as they are stored, or the errors of all invalid fields.
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

fn new_invite(clock: &Clock, name: String, role: Role, lifetime: TimeDelta) -> (String, NewInvite) {
    let token = URL_SAFE_NO_PAD.encode(clock.token());
    let now = clock.now();
    let invite = NewInvite {
        id: clock.user_id(),
        token_hash: hash(&token),
        name,
        role,
        created_at: now,
        expires_at: now + lifetime,
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
    Err(invalid_link(store).await)
}

/// Returns the error for an invalid link. It is the same for every cause, but the remedy depends on whether there are
/// users to ask.
async fn invalid_link(store: &Store) -> AppError {
    match store.count_users().await {
        Ok(0) => AppError::NotFound(
            "This setup link no longer works: it is valid for 15 minutes. Restart the server to get a new one.".into(),
        ),
        Ok(_) => AppError::NotFound(
            "This link no longer works: it was used or revoked, or it has expired. Ask an Admin for a new one.".into(),
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
    fn a_token_has_256_bits_and_needs_no_escaping() {
        let (token, invite) = new_invite(&Clock::system(), String::new(), Role::Admin, SETUP_LINK_TTL);
        assert_eq!(URL_SAFE_NO_PAD.decode(&token).expect("base64url").len(), 32);
        assert!(token.len() <= MAX_TOKEN_CHARS);
        assert_eq!(invite.token_hash, hash(&token));
        assert_eq!(invite.expires_at - invite.created_at, SETUP_LINK_TTL);
    }

    #[test]
    fn all_invalid_fields_are_reported_together() {
        let fields = |name, email, passphrase| {
            let errors = check(name, email, passphrase).expect_err("at least one field is invalid");
            errors.into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        assert_eq!(fields(" ", "no address", "short"), ["name", "email", "passphrase"]);
        assert_eq!(fields("Ana", "ana@example.org", "Password2024!!"), ["passphrase"]);
        assert!(check("Ana", " Ana@Example.org", "violet tram under snow").is_ok());
    }
}
