//! Fencing epochs: a number that each new holder of a role raises, and that each write in the role carries.
//!
//! An epoch is at least the time at which it was granted, in milliseconds, and higher than the one before.
//!
//! A server that was frozen while its lease expired still acts as the leader when it resumes. Its epoch is then no
//! longer the newest, and a statement that checks the epoch changes no row. `FOR SHARE` on the row makes the check and
//! the raise wait for each other, so that there is no gap between them.

use chrono::{DateTime, Utc};

use super::{Result, Store};

/// The fencing token that a write in a role carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencingToken {
    /// Role name.
    pub role: &'static str,
    /// Epoch of the lease under which the write is made.
    pub epoch: i64,
}

/// A role and its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// Role name.
    pub role: String,
    /// Newest epoch.
    pub epoch: i64,
    /// Holder of the newest epoch; none if it released the role.
    pub holder: Option<String>,
    /// Time of the last change of holder.
    pub since: DateTime<Utc>,
}

impl Store {
    /// Takes a role by raising its epoch: a write by any earlier holder is rejected from now on. Returns the new epoch.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then the caller must not act in the role.
    pub async fn take_lease(&self, role: &'static str, holder: &str, now: DateTime<Utc>) -> Result<FencingToken> {
        // A standby may be promoted without the newest raises. By the time, it grants none of their epochs again.
        let epoch = sqlx::query_scalar!(
            "INSERT INTO leases AS l (role, epoch, holder, changed_at)
             VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $2, $3)
             ON CONFLICT (role) DO UPDATE SET epoch = greatest(l.epoch + 1, excluded.epoch), holder = excluded.holder,
                                              changed_at = excluded.changed_at
             RETURNING epoch",
            role,
            holder,
            now
        )
        .fetch_one(self.pool())
        .await?;
        Ok(FencingToken { role, epoch })
    }

    /// Releases a role in good order. Returns false, and changes nothing, if its epoch is no longer the newest.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then the row names the old holder until there is
    /// a new one.
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

    /// Returns the newest epoch of a role, or 0 if it was never taken.
    pub async fn lease_epoch(&self, role: &str) -> Result<i64> {
        Ok(sqlx::query_scalar!("SELECT epoch FROM leases WHERE role = $1", role)
            .fetch_optional(self.pool())
            .await?
            .unwrap_or(0))
    }

    /// Returns all roles and their holders, at most 500.
    pub async fn leases(&self) -> Result<Vec<LeaseRow>> {
        Ok(sqlx::query_as!(
            LeaseRow,
            "SELECT role, epoch, holder, changed_at AS since FROM leases ORDER BY role LIMIT 500"
        )
        .fetch_all(self.pool())
        .await?)
    }
}
