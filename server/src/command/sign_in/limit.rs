//! The limits of sign-in attempts.
//!
//! An attempt from an unknown device counts for the account and for the network of the client. A stranger can therefore
//! lock an account, but only for unknown devices: an attempt from a device that the account knows counts for that device
//! alone.

use std::net::IpAddr;

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_app::error::AppError;

use super::device::{self, DEVICE_RETENTION};
use crate::{
    domain::network::network_of,
    store::{
        Store,
        users::{DeviceAttempt, SignInThrottle, ThrottleSlot},
    },
};

/// The number of attempts on one account, or from one known device, without a wait.
const FREE_ATTEMPTS: i32 = 5;

/// The number of attempts from one address without a wait. Several users may share an address.
const FREE_PER_ADDRESS: i32 = 20;

/// The longest wait between two attempts.
const MAX_SIGN_IN_WAIT: TimeDelta = TimeDelta::minutes(15);

/// The time without an attempt after which a count starts again.
pub const FAILED_SIGN_IN_RETENTION: TimeDelta = TimeDelta::hours(1);

/// An attempt that was counted before its passphrase is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedAttempt {
    /// From a device that the account knows.
    KnownDevice {
        /// SHA-256 of the device's token.
        token_hash: [u8; 32],
        /// The count of the device.
        counted: i32,
    },
    /// From an unknown device.
    Stranger {
        /// The account and its count.
        account: (ThrottleSlot, i32),
        /// The network and its count, if the address is known.
        network: Option<(ThrottleSlot, i32)>,
    },
}

impl CountedAttempt {
    /// Counts an attempt on the account `email` from `address`, by a browser with the device token `device`.
    ///
    /// # Errors
    ///
    /// Returns `TooMany` with the seconds to wait, and `Unavailable` or `Failed` if PostgreSQL fails. The attempt is
    /// then not counted.
    pub(super) async fn count(
        store: &Store,
        now: DateTime<Utc>,
        email: &str,
        address: Option<IpAddr>,
        device: Option<&str>,
    ) -> Result<Self, AppError> {
        if let Some(token_hash) = device.and_then(device::token_hash) {
            let periods = (FAILED_SIGN_IN_RETENTION, DEVICE_RETENTION);
            let lock_for = |tries| wait_after(tries, FREE_ATTEMPTS);
            if let Some(DeviceAttempt { token_hash, throttle }) =
                store.count_device_attempt(&token_hash, email, now, periods, lock_for).await?
            {
                return Ok(Self::KnownDevice { token_hash, counted: number(throttle, now)? });
            }
        }
        let network = match address {
            Some(address) => {
                let slot = ThrottleSlot::address(&network_of(address).to_string());
                Some((slot, count(store, slot, FREE_PER_ADDRESS, now).await?))
            }
            None => None,
        };
        let slot = ThrottleSlot::account(email);
        match count(store, slot, FREE_ATTEMPTS, now).await {
            Ok(counted) => Ok(Self::Stranger { account: (slot, counted), network }),
            Err(error) => {
                // The account was already locked. The passphrase is not checked, so the attempt does not count for the
                // network.
                uncount(store, network).await?;
                Err(error)
            }
        }
    }

    /// Uncounts the attempt, because its passphrase was not checked.
    pub(super) async fn uncount(&self, store: &Store) -> Result<(), AppError> {
        match self {
            Self::KnownDevice { token_hash, counted } => store.uncount_device_attempt(token_hash, *counted).await?,
            Self::Stranger { account, network } => {
                uncount(store, *network).await?;
                uncount(store, Some(*account)).await?;
            }
        }
        Ok(())
    }

    /// Uncounts the attempt and all failed ones before it, because its passphrase was right. A known device starts again
    /// when it is [remembered](super::device::remember).
    pub(super) async fn succeed(&self, store: &Store) -> Result<(), AppError> {
        match self {
            // The count of the account stays: the user's own browser must not give strangers new attempts.
            Self::KnownDevice { token_hash, counted } => store.uncount_device_attempt(token_hash, *counted).await?,
            Self::Stranger { account, network } => {
                store.reset_sign_in_attempts(account.0).await?;
                // For the network, only this attempt is uncounted: otherwise an attacker with an account could reset the
                // count of the network between guesses at other accounts.
                uncount(store, *network).await?;
            }
        }
        Ok(())
    }

    /// Returns the number of attempts on the account or from the device, this one included.
    pub(super) fn tries(&self) -> i32 {
        match self {
            Self::KnownDevice { counted, .. } | Self::Stranger { account: (_, counted), .. } => *counted,
        }
    }

    /// Returns the wait that this attempt causes if it fails.
    pub(super) fn wait(&self) -> Option<TimeDelta> {
        wait_after(self.tries(), FREE_ATTEMPTS)
    }
}

async fn count(store: &Store, slot: ThrottleSlot, free: i32, now: DateTime<Utc>) -> Result<i32, AppError> {
    let lock_for = |tries| wait_after(tries, free);
    number(store.count_sign_in_attempt(slot, now, FAILED_SIGN_IN_RETENTION, lock_for).await?, now)
}

async fn uncount(store: &Store, counted: Option<(ThrottleSlot, i32)>) -> Result<(), AppError> {
    if let Some((slot, counted)) = counted {
        store.uncount_sign_in_attempt(slot, counted).await?;
    }
    Ok(())
}

/// Returns the number of a counted attempt, or the error with the seconds to wait.
fn number(throttle: SignInThrottle, now: DateTime<Utc>) -> Result<i32, AppError> {
    match throttle {
        SignInThrottle::Counted(counted) => Ok(counted),
        SignInThrottle::Locked(until) => {
            let seconds = (until - now).num_milliseconds().max(1).unsigned_abs().div_ceil(1_000);
            let unit = if seconds == 1 { "second" } else { "seconds" };
            Err(AppError::TooMany(format!("Too many attempts. Wait {seconds} {unit}, then try again.")))
        }
    }
}

/// Returns the wait after a number of attempts. It starts with the last free attempt and doubles: 1, 2, 4 … seconds.
pub(in crate::command) fn wait_after(tries: i32, free: i32) -> Option<TimeDelta> {
    let beyond = u32::try_from(tries - free).ok()?;
    let seconds = 1_i64.checked_shl(beyond.min(32)).unwrap_or(i64::MAX);
    Some(TimeDelta::seconds(seconds).min(MAX_SIGN_IN_WAIT))
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
}
