//! How often signing in was tried in vain, for whom and from where.
//!
//! A try is counted *before* the passphrase is looked at and given back when it was right. Counting afterwards would
//! let as many guesses through at once as can be sent before the first one is answered.

use chrono::{DateTime, TimeDelta, Utc};

use super::{Result, Store};

/// Whether one more try is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignInThrottle {
    /// It is; this many have now been counted, this one included.
    Counted(i32),
    /// It is not, until then; nothing was counted.
    Locked(DateTime<Utc>),
}

impl Store {
    /// Counts one try on `subject`. A count that rested for `memory` starts anew. `lock_for` says for how long the
    /// subject is locked after so many tries.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn count_sign_in_attempt(
        &self,
        subject: &str,
        now: DateTime<Utc>,
        memory: TimeDelta,
        lock_for: impl Fn(i32) -> Option<TimeDelta> + Send,
    ) -> Result<SignInThrottle> {
        let mut tx = self.pool().begin().await?;
        // The row must exist to be locked; whoever comes second waits here for the first.
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

    /// Gives back a try that [`count_sign_in_attempt`](Self::count_sign_in_attempt) counted as the `counted`th. The lock it caused is lifted
    /// unless another try was counted meanwhile.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// Forgets every try on `subject`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn reset_sign_in_attempts(&self, subject: &str) -> Result<()> {
        sqlx::query!("DELETE FROM sign_in_failures WHERE subject = $1", subject).execute(self.pool()).await?;
        Ok(())
    }

    /// Forgets every count that has rested since `before`. Returns how many.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn delete_old_sign_in_attempts(&self, before: DateTime<Utc>) -> Result<u64> {
        Ok(sqlx::query!("DELETE FROM sign_in_failures WHERE last_at < $1", before)
            .execute(self.pool())
            .await?
            .rows_affected())
    }
}
