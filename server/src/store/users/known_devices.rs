//! Known devices: browsers from which a user has signed in.
//!
//! Each device counts its own failed sign-ins, so that no number of attempts by strangers can lock it out. The table
//! holds a device's token only as its hash. Only a successful sign-in inserts a row, and a user has at most
//! 20 of them, so outsiders cannot grow the table.

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_protocol::id::UserId;

use super::{Result, SignInThrottle, Store};

/// The most known devices of a user. One more replaces the one that was unused for the longest time.
const MAX_DEVICES: i64 = 20;

/// One attempt to sign in from a device that the account knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttempt {
    /// SHA-256 of the device's token.
    pub token_hash: [u8; 32],
    /// The decision about the attempt.
    pub throttle: SignInThrottle,
}

impl Store {
    /// Counts one attempt from a device on the account `email`. Returns `None` if the account does not know the device,
    /// or if its last sign-in is older than `retention`; nothing is counted then. A count without an attempt for
    /// `memory` starts again at one. `lock_for` returns the time for which the device is locked after a number of
    /// attempts.
    pub async fn count_device_attempt(
        &self,
        token_hash: &[u8; 32],
        email: &str,
        now: DateTime<Utc>,
        (memory, retention): (TimeDelta, TimeDelta),
        lock_for: impl Fn(i32) -> Option<TimeDelta> + Send,
    ) -> Result<Option<DeviceAttempt>> {
        let mut tx = self.pool().begin().await?;
        let row = sqlx::query!(
            "SELECT d.failures, d.last_failure_at, d.locked_until
             FROM known_devices d JOIN users u ON u.id = d.user_id
             WHERE d.token_hash = $1 AND u.email = $2 AND d.last_used_at > $3
             FOR UPDATE OF d",
            token_hash.as_slice(),
            email,
            now - retention
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let attempt = |throttle| Some(DeviceAttempt { token_hash: *token_hash, throttle });
        if let Some(until) = row.locked_until.filter(|until| *until > now) {
            return Ok(attempt(SignInThrottle::Locked(until)));
        }
        let is_recent = row.last_failure_at.is_some_and(|at| at + memory > now);
        let failures = if is_recent { row.failures.saturating_add(1) } else { 1 };
        sqlx::query!(
            "UPDATE known_devices SET failures = $2, last_failure_at = $3, locked_until = $4 WHERE token_hash = $1",
            token_hash.as_slice(),
            failures,
            now,
            lock_for(failures).map(|wait| now + wait)
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        Ok(attempt(SignInThrottle::Counted(failures)))
    }

    /// Uncounts an attempt that [`count_device_attempt`](Self::count_device_attempt) counted as number `counted`. The
    /// lock it caused is lifted unless another attempt was counted meanwhile.
    pub async fn uncount_device_attempt(&self, token_hash: &[u8; 32], counted: i32) -> Result<()> {
        sqlx::query!(
            "UPDATE known_devices
             SET failures = greatest(failures - 1, 0),
                 locked_until = CASE WHEN failures = $2 THEN NULL ELSE locked_until END
             WHERE token_hash = $1",
            token_hash.as_slice(),
            counted
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Records that `user` signed in from a known device: its time, and that no failed attempts count any more. Returns
    /// false if the user does not know the device, or if its last sign-in is not after `since`.
    pub async fn use_device(
        &self,
        token_hash: &[u8; 32],
        user: UserId,
        now: DateTime<Utc>,
        since: DateTime<Utc>,
    ) -> Result<bool> {
        let used = sqlx::query!(
            "UPDATE known_devices SET last_used_at = $3, failures = 0, last_failure_at = NULL, locked_until = NULL
             WHERE token_hash = $1 AND user_id = $2 AND last_used_at > $4",
            token_hash.as_slice(),
            user.0,
            now,
            since
        )
        .execute(self.pool())
        .await?;
        Ok(used.rows_affected() == 1)
    }

    /// Inserts a device of `user`. Beyond 20, the devices that were unused for the longest time are
    /// deleted. Does nothing if the user no longer exists.
    pub async fn insert_device(&self, token_hash: &[u8; 32], user: UserId, now: DateTime<Utc>) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        // Two concurrent sign-ins would otherwise not see each other's device and leave one too many.
        let exists = sqlx::query_scalar!("SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE", user.0)
            .fetch_optional(&mut tx)
            .await?;
        if exists.is_none() {
            return Ok(());
        }
        sqlx::query!(
            "INSERT INTO known_devices (token_hash, user_id, created_at, last_used_at) VALUES ($1, $2, $3, $3)",
            token_hash.as_slice(),
            user.0,
            now
        )
        .execute(&mut tx)
        .await?;
        sqlx::query!(
            "DELETE FROM known_devices WHERE token_hash IN (
                 SELECT token_hash FROM known_devices WHERE user_id = $1 AND token_hash <> $3
                 ORDER BY last_used_at DESC, token_hash OFFSET $2)",
            user.0,
            MAX_DEVICES - 1,
            token_hash.as_slice()
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Deletes the known devices of `user`, but not the one with the token hash `except`. Returns their number.
    pub async fn forget_devices(&self, user: UserId, except: Option<&[u8; 32]>) -> Result<u64> {
        let forgotten = sqlx::query!(
            "DELETE FROM known_devices WHERE user_id = $1 AND token_hash IS DISTINCT FROM $2",
            user.0,
            except.map(|hash| hash.as_slice())
        )
        .execute(self.pool())
        .await?;
        Ok(forgotten.rows_affected())
    }
}
