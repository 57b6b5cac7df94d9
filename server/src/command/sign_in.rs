//! Sign-in with e-mail address and passphrase.
//!
//! An attacker must not learn from a response whether an address is known, must not guess faster than the throttle
//! allows, must not exhaust the memory of the machine, and must not lock a user out. Therefore an unknown address costs
//! the same hash as a known one and gets the same message. Every attempt is counted before it is checked.
//! [`PassphraseHasher`] works on at most two passphrases at a time, one of them for strangers. A browser from which the
//! user has signed in before has a limit of its own; see [`device`].

pub mod device;
mod limit;
pub mod passphrase;

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use milvaion_api::{
    requests::{check_email, check_passphrase},
    views::CurrentUser,
};
use milvaion_app::error::AppError;
use serde_json::json;

pub use device::DEVICE_RETENTION;
pub use limit::FAILED_SIGN_IN_RETENTION;
pub(super) use limit::wait_after;
pub use passphrase::PassphraseHasher;

use crate::{
    clock::Clock,
    error::chain,
    store::{Store, audit::AuditEntry, users::Credentials},
};
use limit::CountedAttempt;

const WRONG_CREDENTIALS: &str = "The e-mail address or the passphrase is wrong.";

/// The origin of a sign-in.
#[derive(Clone, Copy, Debug, Default)]
pub struct SignInOrigin<'a> {
    /// The address of the client, or `None` if it is unknown, as behind a proxy that is not trusted.
    pub address: Option<IpAddr>,
    /// The device token that the browser keeps, if it has one. It may be forged or belong to another account.
    pub device: Option<&'a str>,
}

/// Signs a user in: checks the passphrase and records whether it was right. The caller starts the session and
/// [remembers](device::remember) the device.
///
/// # Errors
///
/// Returns `Fields` if a value is missing or wrong, with the same message for known and unknown addresses. Returns
/// `TooMany` with the seconds to wait, and `Unavailable` or `Failed` if PostgreSQL fails.
pub async fn sign_in(
    store: &Store,
    clock: &Clock,
    hasher: &PassphraseHasher,
    origin: SignInOrigin<'_>,
    email: &str,
    passphrase: &str,
) -> Result<CurrentUser, AppError> {
    let email = check_email(email).map_err(|message| AppError::field("email", message))?;
    if passphrase.is_empty() {
        return Err(AppError::field("passphrase", "enter your passphrase"));
    }
    // No stored passphrase has such a length, so rejecting it early reveals nothing.
    if check_passphrase(passphrase).is_err() {
        return Err(wrong());
    }

    let now = clock.now();
    let attempt = CountedAttempt::count(store, now, &email, origin.address, origin.device).await?;
    let known = store.credentials(&email).await?;
    let hash = known.as_ref().map(|known| known.passphrase_hash.as_str());
    let verified = match attempt {
        CountedAttempt::KnownDevice { .. } => hasher.verify(passphrase, hash).await,
        CountedAttempt::Stranger { .. } => hasher.verify_stranger(passphrase, hash).await,
    };
    let right = match verified {
        Ok(right) => right,
        Err(error) => {
            attempt.uncount(store).await?;
            return Err(error);
        }
    };
    let Some(Credentials { user, passphrase_hash }) = known.filter(|_| right) else {
        note_failure(store, &attempt, &email, now, origin.address).await;
        return Err(wrong());
    };

    let stronger = if passphrase::is_outdated(&passphrase_hash) {
        // Sign-in succeeds without the stronger hash. If the hasher is busy, the next sign-in tries again.
        hasher.hash(passphrase, clock).await.ok()
    } else {
        None
    };
    store.record_sign_in(&user, stronger.as_deref(), now, origin.address.map(|address| address.to_string())).await?;
    attempt.succeed(store).await?;
    Ok(user.me())
}

fn wrong() -> AppError {
    AppError::field("passphrase", WRONG_CREDENTIALS)
}

/// Writes a failed sign-in to the audit log. Without a user of that address, the typed text is left out, because it may
/// be a passphrase that was typed into the wrong field. All unknown addresses share one row, so that outsiders cannot
/// fill the log.
async fn note_failure(
    store: &Store,
    attempt: &CountedAttempt,
    email: &str,
    now: DateTime<Utc>,
    address: Option<IpAddr>,
) {
    let (actor, object, repeat_key) = match store.user_by_email(email).await {
        Ok(Some(user)) => (email, format!("user:{}", user.id), format!("sign-in.refuse:user:{}", user.id)),
        _ => ("unknown", "account:unknown".to_owned(), "sign-in.refuse:unknown".to_owned()),
    };
    let locked_seconds = attempt.wait().map(|wait| wait.num_seconds());
    let entry = AuditEntry::new(now, actor, "sign-in.refuse", object)
        .change(None, Some(json!({ "tries": attempt.tries(), "lockedSeconds": locked_seconds })))
        .from(address.map(|address| address.to_string()));
    // The sign-in is refused even if the audit log cannot be written.
    if let Err(error) = store.audit_refusal(&entry, &repeat_key).await {
        tracing::error!(error = %chain(&error), "a failed sign-in could not be written to the audit log");
    }
}
