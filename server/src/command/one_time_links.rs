//! One-time links. They create users and set forgotten passphrases.
//!
//! A fresh installation has no default account and no default passphrase. The server prints a link that creates the
//! first Admin. All later users are invited by an Admin. An Admin also creates the link for a user who cannot sign in,
//! and the command line for an Admin who cannot; the user chooses the passphrase, so the Admin does not receive it. A
//! link holds 256 random bits, of which the database stores only a hash. It works once and expires.

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::TimeDelta;
use milvaion_api::{
    permissions::Role,
    requests::{FieldError, check_email, check_name, check_passphrase},
    team::{LinkForm, LinkInfo, LinkKind},
    views::CurrentUser,
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::UserId;

use super::sign_in::{
    PassphraseHasher,
    device::{hash, token_hash},
    passphrase::check_guessable,
};
use crate::{
    clock::Clock,
    store::{
        Store, StoreError,
        audit::AuditEntry,
        users::{LinkAcceptance, LinkCreation, LinkedUser, MAX_OPEN_INVITES, NewLink, OpenLink, ThrottleSlot, UserRow},
    },
};

/// Returns the lifetime of a link.
const fn lifetime(kind: LinkKind) -> TimeDelta {
    match kind {
        // It is short because the link is printed to the terminal or to a log.
        LinkKind::Setup => TimeDelta::minutes(15),
        LinkKind::Invite => TimeDelta::hours(72),
        LinkKind::Reset => TimeDelta::hours(24),
    }
}

/// Creates a setup link that is valid for 15 minutes, and invalidates every earlier one. Returns its path,
/// `/setup?token=…`, or `None` if there already is a user.
pub async fn setup_link(store: &Store, clock: &Clock) -> Result<Option<String>, StoreError> {
    let (path, link) = new_link(clock, LinkKind::Setup, "the server");
    let link = NewLink { role: Some(Role::Admin), ..link };
    Ok((store.insert_link(&link, None).await? == LinkCreation::Created).then_some(path))
}

/// Creates an invitation. Returns the path of its link, `/invite?token=…`. The link is valid for 72 hours and cannot be
/// read again later.
///
/// # Errors
///
/// Returns `Fields` for an invalid `name`, and `TooMany` if 100 invitations are open.
pub async fn invite(
    store: &Store,
    clock: &Clock,
    by: &RequestUser,
    name: &str,
    role: Role,
) -> Result<String, AppError> {
    let name = check_name(name).map_err(|message| AppError::field("name", message))?;
    let (path, link) = new_link(clock, LinkKind::Invite, &by.name);
    let link = NewLink { name: Some(name), role: Some(role), ..link };
    let entry = entry_by(by, clock, "invite.create", link.id);
    created(store.insert_link(&link, Some(entry)).await?, path)
}

/// Replaces the link of an invitation, which may have expired, by a new one that is valid for another 72 hours. Returns
/// its path. The old link no longer works.
///
/// # Errors
///
/// Returns `NotFound` if the invitation was used or revoked in the meantime, and `TooMany` if 100 others are open.
pub async fn renew_invite(store: &Store, clock: &Clock, by: &RequestUser, id: UserId) -> Result<String, AppError> {
    let (path, link) = new_link(clock, LinkKind::Invite, &by.name);
    let entry = entry_by(by, clock, "invite.renew", id);
    created(store.renew_invite(id, &link.token_hash, link.expires_at, entry).await?, path)
}

/// Revokes an invitation. Its link no longer works.
///
/// # Errors
///
/// Returns `NotFound` if it was used or revoked in the meantime.
pub async fn revoke_invite(store: &Store, clock: &Clock, by: &RequestUser, id: UserId) -> Result<(), AppError> {
    let revoked = store.delete_link(LinkKind::Invite, id, entry_by(by, clock, "invite.revoke", id)).await?;
    if revoked { Ok(()) } else { Err(used_or_revoked()) }
}

/// Creates the link with which `user` chooses a new passphrase, and invalidates an earlier one. Returns its path,
/// `/reset?token=…`, which cannot be read again later. `by` is the e-mail address of the Admin, or `system` for the
/// command line, and `address` the network address of the request, if there is one.
///
/// # Errors
///
/// Returns `Conflict` if the user is deactivated, and `NotFound` if the user was removed in the meantime.
pub async fn reset_link(
    store: &Store,
    clock: &Clock,
    by: &str,
    address: Option<String>,
    user: &UserRow,
) -> Result<String, AppError> {
    let (path, link) = new_link(clock, LinkKind::Reset, by);
    let link = NewLink { user_id: Some(user.id), ..link };
    let entry =
        AuditEntry::new(link.created_at, by, "user.create-reset-link", format!("user:{}", user.id)).from(address);
    match store.insert_link(&link, Some(entry)).await? {
        LinkCreation::Deactivated => Err(AppError::Conflict(format!(
            "{} is deactivated and cannot sign in. Reactivate the user, then create the link.",
            user.name
        ))),
        LinkCreation::Created => {
            tracing::info!(
                user.id = %user.id, user.by = by,
                "a link for a new passphrase of user {} was created", user.id
            );
            Ok(path)
        }
        _ => Err(AppError::NotFound("This user was removed in the meantime.".into())),
    }
}

/// Returns the contents of the link with this token, or `None` if it is unknown, used, replaced, revoked or expired.
pub async fn info(store: &Store, clock: &Clock, token: &str) -> Result<Option<LinkInfo>, AppError> {
    Ok(find(store, clock, token).await?.map(|link| link.info))
}

/// Uses a link. An invitation or a setup link creates the user. A link for a new passphrase stores it, ends all
/// sessions of the user, forgets the user's devices and lifts the sign-in limit of the account. The caller starts the
/// session. `address` is the address of the client, if it is known.
///
/// # Errors
///
/// Returns `NotFound` if the link is not valid, also if another request has used it first. Returns `Fields` for an
/// invalid `name`, `email` or `passphrase`; the link then stays valid.
pub async fn accept(
    store: &Store,
    clock: &Clock,
    hasher: &PassphraseHasher,
    address: Option<IpAddr>,
    form: &LinkForm,
) -> Result<CurrentUser, AppError> {
    // Checked before hashing, because a hash is expensive and only a valid link justifies it.
    let Some(OpenLink { user_id, info }) = find(store, clock, &form.token).await? else {
        return Err(invalid_link(store, form.page).await);
    };
    let (name, email) = if user_id.is_some() { (&info.name, &info.email) } else { (&form.name, &form.email) };
    let (name, email) = check(name, email, &form.passphrase).map_err(AppError::Fields)?;
    let passphrase_hash = hasher.hash(&form.passphrase, clock).await?;
    let id = user_id.unwrap_or_else(|| clock.user_id());
    let user = LinkedUser { id, name, email, passphrase_hash };
    let action = match info.kind {
        LinkKind::Setup => "setup",
        LinkKind::Invite => "invite.accept",
        LinkKind::Reset => "user.reset-passphrase",
    };
    let entry = AuditEntry::new(clock.now(), &user.email, action, format!("user:{id}"))
        .from(address.map(|address| address.to_string()));
    let me = match store.accept_link(&hash(&form.token), &user, entry).await? {
        LinkAcceptance::Accepted(me) => me,
        LinkAcceptance::Spent => return Err(invalid_link(store, form.page).await),
        LinkAcceptance::EmailTaken => {
            return Err(AppError::field("email", "another user has this address: sign in, or use a different one"));
        }
    };
    let role = me.role.slug();
    match info.kind {
        LinkKind::Setup => tracing::info!(user.id = %id, user.role = role, "user {id} was created with the setup link"),
        LinkKind::Invite => tracing::info!(user.id = %id, user.role = role, "user {id} accepted an invitation"),
        LinkKind::Reset => {
            store.reset_sign_in_attempts(ThrottleSlot::account(&me.email)).await?;
            tracing::info!(user.id = %id, "user {id} chose a new passphrase with a link");
        }
    }
    Ok(me)
}

fn entry_by(by: &RequestUser, clock: &Clock, action: &'static str, id: UserId) -> AuditEntry {
    let address = by.address.map(|address| address.to_string());
    AuditEntry::new(clock.now(), &by.email, action, format!("invite:{id}")).from(address)
}

/// Returns the path of an invitation, or the reason why there is none.
fn created(invite: LinkCreation, path: String) -> Result<String, AppError> {
    match invite {
        LinkCreation::Created => Ok(path),
        LinkCreation::TooMany => Err(AppError::TooMany(format!(
            "{MAX_OPEN_INVITES} invitations are pending. Revoke one before you create another."
        ))),
        _ => Err(used_or_revoked()),
    }
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

/// Returns the path of a new link, and the link for no user yet.
fn new_link(clock: &Clock, kind: LinkKind, by: &str) -> (String, NewLink) {
    let token = URL_SAFE_NO_PAD.encode(clock.token());
    let now = clock.now();
    let link = NewLink {
        id: clock.user_id(),
        kind,
        token_hash: hash(&token),
        user_id: None,
        name: None,
        role: None,
        created_by: by.to_owned(),
        created_at: now,
        expires_at: now + lifetime(kind),
    };
    (format!("/{}?token={token}", kind.slug()), link)
}

async fn find(store: &Store, clock: &Clock, token: &str) -> Result<Option<OpenLink>, AppError> {
    let Some(hash) = token_hash(token) else { return Ok(None) };
    Ok(store.open_link(&hash, clock.now()).await?)
}

/// Returns the error for an invalid link. It is the same for every cause, but the remedy depends on the page and on
/// whether there are users to ask.
async fn invalid_link(store: &Store, page: LinkKind) -> AppError {
    let cause = if page == LinkKind::Reset { "used, replaced or revoked" } else { "used or revoked" };
    match store.count_users().await {
        Ok(0) if page != LinkKind::Reset => AppError::NotFound(
            "This setup link no longer works: it is valid for 15 minutes. Restart the server to get a new one.".into(),
        ),
        Ok(_) => AppError::NotFound(format!(
            "This link no longer works: it was {cause}, or it has expired. Ask an Admin for a new one."
        )),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_256_bits_and_needs_no_escaping() {
        for (kind, minutes) in [(LinkKind::Setup, 15), (LinkKind::Invite, 72 * 60), (LinkKind::Reset, 24 * 60)] {
            let (path, link) = new_link(&Clock::system(), kind, "ana");
            let token = path.strip_prefix(&format!("/{}?token=", kind.slug())).expect("the path of the page");
            assert_eq!(URL_SAFE_NO_PAD.decode(token).expect("base64url").len(), 32);
            assert_eq!(token_hash(token), Some(link.token_hash));
            assert_eq!(link.expires_at - link.created_at, TimeDelta::minutes(minutes));
        }
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
