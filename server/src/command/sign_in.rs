//! Sign-in with e-mail address and passphrase.
//!
//! An attacker must not learn from a response whether an address is known, must not guess faster than the throttle
//! allows, and must not exhaust the memory of the machine. Therefore an unknown address costs the same hash as a known
//! one and gets the same message. Every attempt is counted before it is checked. [`PassphraseHasher`] works on at most
//! two passphrases at a time.

pub mod passphrase;

use std::net::{IpAddr, Ipv6Addr};

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::{
    requests::{check_email, check_passphrase},
    views::CurrentUser,
};
use milvaion_app::error::AppError;
use serde_json::json;

pub use passphrase::PassphraseHasher;

use crate::{
    clock::Clock,
    error::chain,
    store::{
        Store,
        audit::AuditEntry,
        users::{Credentials, SignInThrottle, ThrottleSlot},
    },
};

/// The number of attempts on one account without a wait.
const FREE_PER_ACCOUNT: i32 = 5;

/// The number of attempts from one address without a wait. Several users may share an address.
const FREE_PER_ADDRESS: i32 = 20;

/// The longest wait between two attempts.
const MAX_SIGN_IN_WAIT: TimeDelta = TimeDelta::minutes(15);

/// The time without an attempt after which a count starts again.
pub const FAILED_SIGN_IN_RETENTION: TimeDelta = TimeDelta::hours(1);

const WRONG_CREDENTIALS: &str = "The e-mail address or the passphrase is wrong.";

/// Signs a user in: checks the passphrase and records whether it was right. The caller starts the session. `address` is
/// the address of the client, or `None` if it is unknown, as behind a proxy.
///
/// # Errors
///
/// Returns `Fields` if a value is missing or wrong, with the same message for known and unknown addresses. Returns
/// `TooMany` with the seconds to wait, and `Unavailable` or `Failed` if PostgreSQL fails.
pub async fn sign_in(
    store: &Store,
    clock: &Clock,
    hasher: &PassphraseHasher,
    address: Option<IpAddr>,
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
    let from =
        address.map(|address| LoginThrottle { slot: ThrottleSlot::address(&network(address)), free: FREE_PER_ADDRESS });
    let account = LoginThrottle { slot: ThrottleSlot::account(&email), free: FREE_PER_ACCOUNT };
    let from_count = match &from {
        Some(from) => Some(from.count(store, now).await?),
        None => None,
    };
    let uncount_address = async || match (&from, from_count) {
        (Some(from), Some(counted)) => store.uncount_sign_in_attempt(from.slot, counted).await,
        _ => Ok(()),
    };
    let account_count = match account.count(store, now).await {
        Ok(counted) => counted,
        Err(error) => {
            // The account was already locked. The passphrase was not checked, so the attempt does not count for the
            // address.
            uncount_address().await?;
            return Err(error);
        }
    };

    let known = store.credentials(&email).await?;
    let right = match hasher.verify(passphrase, known.as_ref().map(|known| known.passphrase_hash.as_str())).await {
        Ok(right) => right,
        Err(error) => {
            // The passphrase was not checked.
            uncount_address().await?;
            store.uncount_sign_in_attempt(account.slot, account_count).await?;
            return Err(error);
        }
    };
    let Some(Credentials { user, passphrase_hash }) = known.filter(|_| right) else {
        note_failure(store, &account, account_count, &email, now, address).await;
        return Err(wrong());
    };

    let stronger = if passphrase::is_outdated(&passphrase_hash) {
        // Sign-in succeeds without the stronger hash. If the hasher is busy, the next sign-in tries again.
        hasher.hash(passphrase, clock).await.ok()
    } else {
        None
    };
    store.record_sign_in(&user, stronger.as_deref(), now, address.map(|address| address.to_string())).await?;
    // The count of the account starts again. For the address, only this attempt is uncounted: otherwise an attacker
    // with an account could reset the count of the address between guesses at other accounts.
    store.reset_sign_in_attempts(account.slot).await?;
    uncount_address().await?;
    Ok(user.me())
}

fn wrong() -> AppError {
    AppError::field("passphrase", WRONG_CREDENTIALS)
}

/// An account or an address whose attempts are counted.
struct LoginThrottle {
    slot: ThrottleSlot,
    free: i32,
}

impl LoginThrottle {
    async fn count(&self, store: &Store, now: DateTime<Utc>) -> Result<i32, AppError> {
        match store
            .count_sign_in_attempt(self.slot, now, FAILED_SIGN_IN_RETENTION, |tries| wait_after(tries, self.free))
            .await?
        {
            SignInThrottle::Counted(counted) => Ok(counted),
            SignInThrottle::Locked(until) => {
                let seconds = (until - now).num_milliseconds().max(1).unsigned_abs().div_ceil(1_000);
                let unit = if seconds == 1 { "second" } else { "seconds" };
                Err(AppError::TooMany(format!("Too many attempts. Wait {seconds} {unit}, then try again.")))
            }
        }
    }
}

/// Returns the wait after a number of attempts. It starts with the last free attempt and doubles: 1, 2, 4 … seconds.
pub(super) fn wait_after(tries: i32, free: i32) -> Option<TimeDelta> {
    let beyond = u32::try_from(tries - free).ok()?;
    let seconds = 1_i64.checked_shl(beyond.min(32)).unwrap_or(i64::MAX);
    Some(TimeDelta::seconds(seconds).min(MAX_SIGN_IN_WAIT))
}

/// Returns the network whose attempts are counted together. For IPv6 it is the /64, because one household can use all
/// of it.
fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).to_string()
        }
    }
}

/// Writes a failed sign-in to the audit log. Without a user of that address, the typed text is left out, because it may
/// be a passphrase that was typed into the wrong field.
async fn note_failure(
    store: &Store,
    account: &LoginThrottle,
    tries: i32,
    email: &str,
    now: DateTime<Utc>,
    address: Option<IpAddr>,
) {
    let (actor, object) = match store.user_by_email(email).await {
        Ok(Some(user)) => (email, format!("user:{}", user.id)),
        _ => ("unknown", "account:unknown".to_owned()),
    };
    let locked_seconds = wait_after(tries, account.free).map(|wait| wait.num_seconds());
    let entry = AuditEntry::new(now, actor, "sign-in.refuse", object)
        .change(None, Some(json!({ "tries": tries, "lockedSeconds": locked_seconds })))
        .from(address.map(|address| address.to_string()));
    // The sign-in is refused even if the audit log cannot be written.
    if let Err(error) = store.audit(&entry).await {
        tracing::error!(error = %chain(&error), "a failed sign-in could not be written to the audit log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_after_five_attempts_up_to_15_minutes() {
        let waits: Vec<_> = (1..=8).map(|tries| wait_after(tries, 5).map(|wait| wait.num_seconds())).collect();
        assert_eq!(waits, [None, None, None, None, Some(1), Some(2), Some(4), Some(8)]);
        for tries in [15, 30, 60, 1_000, i32::MAX] {
            assert_eq!(wait_after(tries, 5), Some(TimeDelta::minutes(15)));
        }
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let network = |text: &str| network(text.parse().expect("address"));
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), network("2001:db8:1:2:ffff::1"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
    }
}
