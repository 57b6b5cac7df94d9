//! Changes of the own account: the name, the passphrase and the sessions.
//!
//! A change of the passphrase asks for the old one, because the session may be stolen. Wrong values are counted, so that
//! a stolen session cannot be used to guess it. They are counted apart from sign-ins: otherwise a stolen session could
//! lock the account for its user.

use chrono::{DateTime, Utc};
use milvaion_api::{
    requests::{FieldError, check_name, check_passphrase},
    team::AccountView,
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::{SessionId, UserId};

use super::{
    sign_in::{FAILED_SIGN_IN_RETENTION, PassphraseHasher, passphrase::check_guessable, wait_after},
    team::{entry, session_not_found, session_view},
};
use crate::{
    clock::Clock,
    store::{
        Store,
        sessions::EndedSessions,
        users::{NewPassphrase, SignInThrottle, ThrottleSlot},
    },
};

/// The number of values of the old passphrase that can be tried without a wait.
const FREE_TRIES: i32 = 5;

/// The session and the device of a request, which a change of the passphrase keeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct CurrentDevice {
    /// The hash of the id of the session.
    pub session: Option<[u8; 32]>,
    /// The hash of the token of the known device.
    pub device: Option<[u8; 32]>,
}

/// Returns the own account with its sessions: the current one first, then the last used one. `current` is the hash of
/// the id of the session of the request.
///
/// # Errors
///
/// Returns `SignedOut` if the user was removed in the meantime.
pub async fn view(
    store: &Store,
    clock: &Clock,
    me: &RequestUser,
    current: Option<&[u8; 32]>,
) -> Result<AccountView, AppError> {
    let now = clock.now();
    let user = store.user(me.id).await?.ok_or(AppError::SignedOut)?;
    let mut sessions = store.sessions_of(me.id, now, current).await?;
    // The sort is stable, so the others keep their order.
    sessions.sort_by_key(|session| !session.is_current);
    Ok(AccountView {
        user: user.me(),
        created_at: user.created_at,
        passphrase_changed_at: user.passphrase_changed_at,
        sessions: sessions.into_iter().map(session_view).collect(),
    })
}

/// Changes the own name. Returns false if it is the present one.
///
/// # Errors
///
/// Returns `Fields` for an invalid `name`.
pub async fn rename(store: &Store, clock: &Clock, me: &RequestUser, name: &str) -> Result<bool, AppError> {
    let name = check_name(name).map_err(|message| AppError::field("name", message))?;
    Ok(store.rename_user(me.id, &name, entry(clock, me, "account.rename", me.id)).await?)
}

/// Changes the own passphrase. All other sessions end, and all other devices are forgotten. The session of the request
/// ends too: the caller starts a new one in its place.
///
/// # Errors
///
/// Returns `Fields` for a wrong `current` and for an invalid `passphrase`, `TooMany` after too many wrong values of
/// `current`, and `Conflict` if the passphrase was changed in the meantime.
pub async fn change_passphrase(
    store: &Store,
    clock: &Clock,
    hasher: &PassphraseHasher,
    me: &RequestUser,
    at: &CurrentDevice,
    current: &str,
    passphrase: &str,
) -> Result<(), AppError> {
    check(me, current, passphrase).map_err(AppError::Fields)?;
    let credentials = store.credentials(&me.email).await?.filter(|known| known.user.id == me.id);
    let Some(credentials) = credentials else { return Err(AppError::SignedOut) };
    // No stored passphrase has such a length. It is counted all the same, and not hashed.
    let is_possible = check_passphrase(current).is_ok();
    let slot = tries_of(me.id);
    let counted = count(store, slot, clock.now()).await?;
    let is_right = if is_possible {
        match hasher.verify(current, Some(&credentials.passphrase_hash)).await {
            Ok(is_right) => is_right,
            Err(error) => {
                // The passphrase was not checked.
                store.uncount_sign_in_attempt(slot, counted).await?;
                return Err(error);
            }
        }
    } else {
        false
    };
    if !is_right {
        return Err(AppError::field("current", "this is not your passphrase"));
    }
    store.reset_sign_in_attempts(slot).await?;
    let hash = hasher.hash(passphrase, clock).await?;
    let new = NewPassphrase { hash: &hash, session: at.session.as_ref(), device: at.device.as_ref() };
    let entry = entry(clock, me, "account.change-passphrase", me.id);
    if !store.change_passphrase(me.id, &credentials.passphrase_hash, &new, entry).await? {
        return Err(AppError::Conflict("Your passphrase was changed in the meantime. Nothing was changed now.".into()));
    }
    tracing::info!(user.id = %me.id, "user {} changed the passphrase", me.id);
    Ok(())
}

/// Ends one own session, or all but the current one without `session`. Returns the number of sessions that were valid
/// until now.
///
/// # Errors
///
/// Returns `NotFound` if the session does not exist or belongs to another user.
pub async fn end_sessions(
    store: &Store,
    clock: &Clock,
    me: &RequestUser,
    current: Option<&[u8; 32]>,
    session: Option<SessionId>,
) -> Result<u32, AppError> {
    let which = match (session, current) {
        (Some(session), _) => EndedSessions::ById(session),
        (None, Some(current)) => EndedSessions::AllExcept(current),
        (None, None) => EndedSessions::All,
    };
    let entry = entry(clock, me, "account.end-sessions", me.id);
    store.end_sessions(me.id, which, entry).await?.ok_or_else(session_not_found)
}

/// Checks everything that needs no stored passphrase, so that a mistake in the new passphrase is not counted as a guess.
fn check(me: &RequestUser, current: &str, passphrase: &str) -> Result<(), Vec<FieldError>> {
    let mut errors = Vec::new();
    if current.is_empty() {
        errors.push(FieldError::new("current", "enter your present passphrase"));
    }
    let new =
        check_passphrase(passphrase).and_then(|()| check_guessable(passphrase, &me.name, &me.email)).and_then(|()| {
            if current == passphrase {
                Err("this is your present passphrase: choose a different one".into())
            } else {
                Ok(())
            }
        });
    if let Err(message) = new {
        errors.push(FieldError::new("passphrase", message));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Returns the slot that counts the tries of a user. Its name is no e-mail address, so it differs from the slots of
/// sign-ins.
fn tries_of(id: UserId) -> ThrottleSlot {
    ThrottleSlot::account(&format!("passphrase of {id}"))
}

async fn count(store: &Store, slot: ThrottleSlot, now: DateTime<Utc>) -> Result<i32, AppError> {
    let lock_for = |tries| wait_after(tries, FREE_TRIES);
    match store.count_sign_in_attempt(slot, now, FAILED_SIGN_IN_RETENTION, lock_for).await? {
        SignInThrottle::Counted(counted) => Ok(counted),
        SignInThrottle::Locked(until) => {
            let seconds = (until - now).num_milliseconds().max(1).unsigned_abs().div_ceil(1_000);
            let unit = if seconds == 1 { "second" } else { "seconds" };
            Err(AppError::TooMany(format!("Too many wrong passphrases. Wait {seconds} {unit}, then try again.")))
        }
    }
}
