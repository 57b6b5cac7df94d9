//! Sessions by the hash of their id. [`crate::http::session`] decides about creation and lifetime.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::UserId;
use serde_json::Value;

use super::{Result, Store};

/// Maximum number of anonymous sessions. Such a session only carries a message to the next page, and any visitor can
/// cause one, so their number is bounded.
const MAX_ANONYMOUS_SESSIONS: i64 = 10_000;

/// A stored session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRow {
    /// Content.
    pub data: Value,
    /// The signed-in user; none before signing in.
    pub user_id: Option<UserId>,
    /// Expiry unless the session is used.
    pub expires_at: DateTime<Utc>,
}

impl Store {
    /// Inserts a session. Returns false if the id is taken, or if there are too many anonymous sessions.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn insert_session(&self, id_hash: &[u8; 32], row: &SessionRow) -> Result<bool> {
        let done = sqlx::query!(
            "INSERT INTO sessions (id_hash, data, user_id, expires_at)
             SELECT $1, $2, $3, $4
             WHERE $3::uuid IS NOT NULL
                OR (SELECT count(*) FROM (SELECT FROM sessions WHERE user_id IS NULL LIMIT $5) AS few) < $5
             ON CONFLICT DO NOTHING",
            id_hash.as_slice(),
            row.data,
            row.user_id.map(|id| id.0),
            row.expires_at,
            MAX_ANONYMOUS_SESSIONS
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Updates a session. Returns false if it does not exist; a session that was deleted meanwhile stays deleted.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn update_session(&self, id_hash: &[u8; 32], row: &SessionRow) -> Result<bool> {
        let done = sqlx::query!(
            "UPDATE sessions SET data = $2, user_id = $3, expires_at = $4 WHERE id_hash = $1",
            id_hash.as_slice(),
            row.data,
            row.user_id.map(|id| id.0),
            row.expires_at
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Returns the session, or `None` if it does not exist or has expired by `now`.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn session(&self, id_hash: &[u8; 32], now: DateTime<Utc>) -> Result<Option<SessionRow>> {
        let row = sqlx::query!(
            "SELECT data, user_id, expires_at FROM sessions WHERE id_hash = $1 AND expires_at > $2",
            id_hash.as_slice(),
            now
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| SessionRow { data: row.data, user_id: row.user_id.map(UserId), expires_at: row.expires_at }))
    }

    /// Sets the expiry of a session.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn extend_session(&self, id_hash: &[u8; 32], expires_at: DateTime<Utc>) -> Result<()> {
        sqlx::query!("UPDATE sessions SET expires_at = $2 WHERE id_hash = $1", id_hash.as_slice(), expires_at)
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Deletes a session.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn delete_session(&self, id_hash: &[u8; 32]) -> Result<()> {
        sqlx::query!("DELETE FROM sessions WHERE id_hash = $1", id_hash.as_slice()).execute(self.pool()).await?;
        Ok(())
    }

    /// Deletes sessions that have expired by `now`. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn delete_expired_sessions(&self, now: DateTime<Utc>) -> Result<u64> {
        Ok(sqlx::query!("DELETE FROM sessions WHERE expires_at <= $1", now).execute(self.pool()).await?.rows_affected())
    }
}
