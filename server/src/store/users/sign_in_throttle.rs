//! Failed sign-in attempts by account and by network address.
//!
//! An attempt is counted *before* the passphrase is verified, and uncounted if it was right. Counting afterwards would
//! let through as many guesses as can be sent before the first one is answered.

use chrono::{DateTime, TimeDelta, Utc};

use super::{Result, Store};

/// The decision about one more sign-in attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignInThrottle {
    /// The attempt is allowed and counted; the value is the count including it.
    Counted(i32),
    /// The subject is locked until this time; the attempt was not counted.
    Locked(DateTime<Utc>),
}

impl Store {
    /// Counts one attempt on `subject`. A count without an attempt for `memory` starts again at one. `lock_for` returns
    /// the time for which the subject is locked after a number of attempts.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn count_sign_in_attempt(
        &self,
        subject: &str,
        now: DateTime<Utc>,
        memory: TimeDelta,
        lock_for: impl Fn(i32) -> Option<TimeDelta> + Send,
    ) -> Result<SignInThrottle> {
        let mut tx = self.pool().begin().await?;
        // The row must exist to be locked; a concurrent attempt waits here.
        sqlx::query!(
            "INSERT INTO sign_in_failures (subject, failures, last_at) VALUES ($1, 0, $2) ON CONFLICT DO NOTHING",
            subject,
            now
        )
        .execute(&mut *tx)
        .await?;
        let row = sqlx::query!(
            "SELECT failures, last_at, locked_until FROM sign_in_failures WHERE subject = $1 FOR UPDATE",
            subject
        )
        .fetch_one(&mut *tx)
        .await?;
        if let Some(until) = row.locked_until.filter(|until| *until > now) {
            return Ok(SignInThrottle::Locked(until));
        }
        let failures = if row.last_at + memory <= now { 1 } else { row.failures.saturating_add(1) };
        sqlx::query!(
            "UPDATE sign_in_failures SET failures = $2, last_at = $3, locked_until = $4 WHERE subject = $1",
            subject,
            failures,
            now,
            lock_for(failures).map(|wait| now + wait)
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(SignInThrottle::Counted(failures))
    }

    /// Uncounts an attempt that [`count_sign_in_attempt`](Self::count_sign_in_attempt) counted as number `counted`. The
    /// lock it caused is lifted unless another attempt was counted meanwhile.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn uncount_sign_in_attempt(&self, subject: &str, counted: i32) -> Result<()> {
        sqlx::query!(
            "UPDATE sign_in_failures
             SET failures = greatest(failures - 1, 0),
                 locked_until = CASE WHEN failures = $2 THEN NULL ELSE locked_until END
             WHERE subject = $1",
            subject,
            counted
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Deletes the count of `subject`.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn reset_sign_in_attempts(&self, subject: &str) -> Result<()> {
        sqlx::query!("DELETE FROM sign_in_failures WHERE subject = $1", subject).execute(self.pool()).await?;
        Ok(())
    }

    /// Deletes counts without an attempt since `before`. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn delete_old_sign_in_attempts(&self, before: DateTime<Utc>) -> Result<u64> {
        Ok(sqlx::query!("DELETE FROM sign_in_failures WHERE last_at < $1", before)
            .execute(self.pool())
            .await?
            .rows_affected())
    }
}
