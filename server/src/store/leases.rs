//! Fencing epochs: the number that each new holder of a role raises, and that writes in that role name.
//!
//! A server that was frozen while its lease ran out wakes up believing that it still leads. Its epoch is then no longer
//! the newest, and a statement that asks for it touches no row. `FOR SHARE` on the row makes the check and the raising
//! wait for each other, so that there is no moment between.

use chrono::{DateTime, Utc};

use super::{Result, Store};

/// What a write in a role carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencingToken {
    /// Which role.
    pub role: &'static str,
    /// The epoch of the term in which it is made.
    pub epoch: i64,
}

/// Who holds a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// Which role.
    pub role: String,
    /// How many terms there have been.
    pub epoch: i64,
    /// The holder of the last one; none when it gave the role back.
    pub holder: Option<String>,
    /// Since when that is so.
    pub since: DateTime<Utc>,
}

impl Store {
    /// Begins a term: whoever held the role before can write nothing in it from now on. Returns the new epoch.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then no term may begin.
    pub async fn take_lease(&self, role: &'static str, holder: &str, now: DateTime<Utc>) -> Result<FencingToken> {
        let epoch = sqlx::query_scalar!(
            "INSERT INTO leases AS l (role, epoch, holder, changed_at) VALUES ($1, 1, $2, $3)
             ON CONFLICT (role) DO UPDATE SET epoch = l.epoch + 1, holder = excluded.holder, changed_at = excluded.changed_at
             RETURNING epoch",
            role,
            holder,
            now
        )
        .fetch_one(self.pool())
        .await?;
        Ok(FencingToken { role, epoch })
    }

    /// Ends a term in good order. False when it was no longer the newest; then nothing is changed.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then the table names the old holder until there is a new one.
    pub async fn release_lease(&self, fence: FencingToken, now: DateTime<Utc>) -> Result<bool> {
        let done = sqlx::query!(
            "UPDATE leases SET holder = NULL, changed_at = $3 WHERE role = $1 AND epoch = $2 AND holder IS NOT NULL",
            fence.role,
            fence.epoch,
            now
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// The newest epoch of a role; 0 when nobody ever had it.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn lease_epoch(&self, role: &str) -> Result<i64> {
        Ok(sqlx::query_scalar!("SELECT epoch FROM leases WHERE role = $1", role)
            .fetch_optional(self.pool())
            .await?
            .unwrap_or(0))
    }

    /// Every role and who holds it.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn leases(&self) -> Result<Vec<LeaseRow>> {
        Ok(sqlx::query_as!(
            LeaseRow,
            "SELECT role, epoch, holder, changed_at AS since FROM leases ORDER BY role LIMIT 500"
        )
        .fetch_all(self.pool())
        .await?)
    }
}
