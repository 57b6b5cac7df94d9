//! Failed sign-in attempts by account and by network address.
//!
//! An attempt is counted *before* the passphrase is verified, and uncounted if it was right. Counting afterwards would
//! let through as many guesses as can be sent before the first one is answered.
//!
//! Outsiders choose the accounts and addresses that they try, so a row for each would grow the table without bound. The
//! attempts are therefore counted in a fixed number of slots, found by a hash. Two accounts that share a slot share
//! their limit; with 65,536 slots this is rare, and a known device is not affected by it.

use chrono::{DateTime, TimeDelta, Utc};
use sha2::{Digest, Sha256};

use super::{Result, Store};

/// An account or a network whose sign-in attempts are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleSlot {
    kind: &'static str,
    slot: i32,
}

impl ThrottleSlot {
    /// Returns the slot of an account, by its e-mail address in lower case. The account need not exist.
    #[must_use]
    pub fn account(email: &str) -> Self {
        Self { kind: "account", slot: slot_of(email) }
    }

    /// Returns the slot of a network, by its name.
    #[must_use]
    pub fn address(network: &str) -> Self {
        Self { kind: "address", slot: slot_of(network) }
    }
}

fn slot_of(name: &str) -> i32 {
    let digest = Sha256::digest(name);
    i32::from(u16::from_be_bytes([digest[0], digest[1]]))
}

/// The decision about one more sign-in attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignInThrottle {
    /// The attempt is allowed and counted; the value is the count including it.
    Counted(i32),
    /// The slot is locked until this time; the attempt was not counted.
    Locked(DateTime<Utc>),
}

impl Store {
    /// Counts one attempt on `slot`. A count without an attempt for `memory` starts again at one. `lock_for` returns
    /// the time for which the slot is locked after a number of attempts.
    pub async fn count_sign_in_attempt(
        &self,
        slot: ThrottleSlot,
        now: DateTime<Utc>,
        memory: TimeDelta,
        lock_for: impl Fn(i32) -> Option<TimeDelta> + Send,
    ) -> Result<SignInThrottle> {
        let mut tx = self.pool().begin().await?;
        // The row must exist to be locked; a concurrent attempt waits here.
        sqlx::query!(
            "INSERT INTO sign_in_throttle (kind, slot, failures, last_at) VALUES ($1, $2, 0, $3) ON CONFLICT DO NOTHING",
            slot.kind,
            slot.slot,
            now
        )
        .execute(&mut tx)
        .await?;
        let row = sqlx::query!(
            "SELECT failures, last_at, locked_until FROM sign_in_throttle WHERE kind = $1 AND slot = $2 FOR UPDATE",
            slot.kind,
            slot.slot
        )
        .fetch_one(&mut tx)
        .await?;
        if let Some(until) = row.locked_until.filter(|until| *until > now) {
            return Ok(SignInThrottle::Locked(until));
        }
        let failures = if row.last_at + memory <= now { 1 } else { row.failures.saturating_add(1) };
        sqlx::query!(
            "UPDATE sign_in_throttle SET failures = $3, last_at = $4, locked_until = $5 WHERE kind = $1 AND slot = $2",
            slot.kind,
            slot.slot,
            failures,
            now,
            lock_for(failures).map(|wait| now + wait)
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        Ok(SignInThrottle::Counted(failures))
    }

    /// Uncounts an attempt that [`count_sign_in_attempt`](Self::count_sign_in_attempt) counted as number `counted`. The
    /// lock it caused is lifted unless another attempt was counted meanwhile.
    pub async fn uncount_sign_in_attempt(&self, slot: ThrottleSlot, counted: i32) -> Result<()> {
        sqlx::query!(
            "UPDATE sign_in_throttle
             SET failures = greatest(failures - 1, 0),
                 locked_until = CASE WHEN failures = $3 THEN NULL ELSE locked_until END
             WHERE kind = $1 AND slot = $2",
            slot.kind,
            slot.slot,
            counted
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Deletes the count of `slot`.
    pub async fn reset_sign_in_attempts(&self, slot: ThrottleSlot) -> Result<()> {
        sqlx::query!("DELETE FROM sign_in_throttle WHERE kind = $1 AND slot = $2", slot.kind, slot.slot)
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Returns the time until which sign-ins to an account from unknown devices are refused; `None` if they are not.
    pub async fn account_locked_until(&self, email: &str, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>> {
        Ok(self.accounts_locked_until(std::slice::from_ref(&email), now).await?.pop().flatten())
    }

    /// Returns [`account_locked_until`](Self::account_locked_until) for each of several accounts, in their order.
    pub async fn accounts_locked_until(
        &self,
        emails: &[&str],
        now: DateTime<Utc>,
    ) -> Result<Vec<Option<DateTime<Utc>>>> {
        let slots: Vec<i32> = emails.iter().map(|email| ThrottleSlot::account(email).slot).collect();
        let locked = sqlx::query!(
            r#"SELECT slot, locked_until AS "locked_until!" FROM sign_in_throttle
               WHERE kind = 'account' AND slot = ANY($1) AND locked_until > $2"#,
            &slots,
            now
        )
        .fetch_all(self.pool())
        .await?;
        let until = |slot: &i32| locked.iter().find(|row| row.slot == *slot).map(|row| row.locked_until);
        Ok(slots.iter().map(until).collect())
    }
}
