//! Signing in.
//!
//! Three things an attacker must not get: an answer that tells whether an address is known, more guesses than the brake
//! allows, and the memory of the machine. So an unknown address costs the same hash as a known one and is answered in
//! the same words; every try is counted before it is judged; and [`PassphraseHasher`] works on two passphrases at a time.

pub mod passphrase;

use std::net::{IpAddr, Ipv6Addr};

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::{
    requests::{check_email, check_passphrase},
    views::CurrentUser,
};
use milvaion_app::error::AppError;
use serde_json::json;
use sha2::{Digest, Sha256};

pub use passphrase::PassphraseHasher;

use crate::{
    clock::Clock,
    error::chain,
    store::{
        Store,
        audit::AuditEntry,
        users::{Credentials, SignInThrottle},
    },
};

/// Tries on one account that cost no waiting.
const FREE_PER_ACCOUNT: i32 = 5;

/// Tries from one address that cost no waiting: several people may share it.
const FREE_PER_ADDRESS: i32 = 20;

/// The longest wait between two tries.
const MAX_SIGN_IN_WAIT: TimeDelta = TimeDelta::minutes(15);

/// A count that rested for so long starts anew.
pub const FAILED_SIGN_IN_RETENTION: TimeDelta = TimeDelta::hours(1);

const WRONG_CREDENTIALS: &str = "The e-mail address or the passphrase is wrong.";

/// Signs somebody in: checks the passphrase, and writes down that it was right or wrong. The session is the caller's to
/// make. `address` is where the request came from; none when that is not known, as behind a proxy.
///
/// # Errors
///
/// `Fields` when something is missing or wrong, in the same words whether the address is known or not; `TooMany` with
/// the seconds to wait; `Unavailable` or `Failed` when the database does not do its part.
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
        return Err(AppError::field("passphrase", "write your passphrase"));
    }
    // No passphrase of anybody's is outside these bounds, so nothing is given away by answering at once.
    if check_passphrase(passphrase).is_err() {
        return Err(wrong());
    }

    let now = clock.now();
    let from = address.map(|address| LoginThrottle::new("address", &network(address), FREE_PER_ADDRESS));
    let account = LoginThrottle::new("account", &email, FREE_PER_ACCOUNT);
    let from_count = match &from {
        Some(from) => Some(from.count(store, now).await?),
        None => None,
    };
    let give_back_from = async || match (&from, from_count) {
        (Some(from), Some(counted)) => store.uncount_sign_in_attempt(&from.key, counted).await,
        _ => Ok(()),
    };
    let account_count = match account.count(store, now).await {
        Ok(counted) => counted,
        Err(error) => {
            // The account was locked already: this was no guess, so it does not count against the address.
            give_back_from().await?;
            return Err(error);
        }
    };

    let known = store.credentials(&email).await?;
    let right = match hasher.verify(passphrase, known.as_ref().map(|known| known.passphrase_hash.as_str())).await {
        Ok(right) => right,
        Err(error) => {
            // Nothing was judged.
            give_back_from().await?;
            store.uncount_sign_in_attempt(&account.key, account_count).await?;
            return Err(error);
        }
    };
    let Some(Credentials { user, passphrase_hash }) = known.filter(|_| right) else {
        note_failure(store, &account, account_count, &email, now, address).await;
        return Err(wrong());
    };

    let stronger = if passphrase::is_outdated(&passphrase_hash) {
        // A stronger hash can wait for a quieter moment: signing in does not depend on it.
        hasher.hash(passphrase, clock).await.ok()
    } else {
        None
    };
    store.record_sign_in(&user, stronger.as_deref(), now, address.map(|address| address.to_string())).await?;
    // The account starts anew. The address only gets this try back: else whoever has an account could clear its count
    // between guesses at other accounts.
    store.reset_sign_in_attempts(&account.key).await?;
    give_back_from().await?;
    Ok(user.me())
}

fn wrong() -> AppError {
    AppError::field("passphrase", WRONG_CREDENTIALS)
}

/// Something whose tries are counted. Only its hash is kept.
struct LoginThrottle {
    key: String,
    free: i32,
}

impl LoginThrottle {
    fn new(kind: &str, name: &str, free: i32) -> Self {
        let digest = Sha256::digest(format!("{kind}:{name}"));
        Self { key: digest.iter().map(|byte| format!("{byte:02x}")).collect(), free }
    }

    async fn count(&self, store: &Store, now: DateTime<Utc>) -> Result<i32, AppError> {
        match store
            .count_sign_in_attempt(&self.key, now, FAILED_SIGN_IN_RETENTION, |tries| wait_after(tries, self.free))
            .await?
        {
            SignInThrottle::Counted(counted) => Ok(counted),
            SignInThrottle::Locked(until) => {
                let seconds = (until - now).num_milliseconds().max(1).unsigned_abs().div_ceil(1_000);
                let unit = if seconds == 1 { "second" } else { "seconds" };
                Err(AppError::TooMany(format!("Too many tries. Wait {seconds} {unit}, then try again.")))
            }
        }
    }
}

/// How long to wait after so many tries: 1, 2, 4 … seconds from the last free one on.
fn wait_after(tries: i32, free: i32) -> Option<TimeDelta> {
    let beyond = u32::try_from(tries - free).ok()?;
    let seconds = 1_i64.checked_shl(beyond.min(32)).unwrap_or(i64::MAX);
    Some(TimeDelta::seconds(seconds).min(MAX_SIGN_IN_WAIT))
}

/// What is counted for an address: one household has a whole /64 of IPv6 addresses to try from.
fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).to_string()
        }
    }
}

/// Writes a failure down. What was typed is not written when it is nobody's address: it may be a passphrase that slipped
/// into the wrong field.
async fn note_failure(
    store: &Store,
    account: &LoginThrottle,
    tries: i32,
    email: &str,
    now: DateTime<Utc>,
    address: Option<IpAddr>,
) {
    let (who, object) = match store.user_by_email(email).await {
        Ok(Some(user)) => (email, format!("user:{}", user.id)),
        _ => ("unknown", format!("account:{}", &account.key[..12])),
    };
    let locked_seconds = wait_after(tries, account.free).map(|wait| wait.num_seconds());
    let entry = AuditEntry::new(now, who, "sign-in.refuse", object)
        .change(None, Some(json!({ "tries": tries, "lockedSeconds": locked_seconds })))
        .from(address.map(|address| address.to_string()));
    // The refusal stands whether or not it can be written down.
    if let Err(error) = store.audit(&entry).await {
        tracing::error!(error = %chain(&error), "a refused sign-in could not be written to the audit log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_from_the_fifth_try_on_and_ends_at_a_quarter_of_an_hour() {
        let waits: Vec<_> = (1..=8).map(|tries| wait_after(tries, 5).map(|wait| wait.num_seconds())).collect();
        assert_eq!(waits, [None, None, None, None, Some(1), Some(2), Some(4), Some(8)]);
        for tries in [15, 30, 60, 1_000, i32::MAX] {
            assert_eq!(wait_after(tries, 5), Some(TimeDelta::minutes(15)));
        }
    }

    #[test]
    fn a_household_is_one_address() {
        let network = |text: &str| network(text.parse().expect("address"));
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), network("2001:db8:1:2:ffff::1"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
    }
}
