//! Sessions by the hash of their id. Who may have one, and for how long, is decided in [`crate::http::session`].

use chrono::{DateTime, Utc};
use milvaion_protocol::id::UserId;
use serde_json::Value;

use super::{Result, Store};

/// How many sessions of people who have not signed in are kept at a time. Such a session only carries a message to the
/// next page, and anybody can cause one, so there must be an end to them.
const MAX_ANONYMOUS_SESSIONS: i64 = 10_000;

/// A session that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRow {
    /// What it holds.
    pub data: Value,
    /// Whose it is; none before signing in.
    pub user_id: Option<UserId>,
    /// When it ends unless it is used.
    pub expires_at: DateTime<Utc>,
}

impl Store {
    /// Adds a session. Returns false when the id is taken, or there are too many sessions without a person.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// Rewrites a session that exists. One that was ended meanwhile stays ended. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// The session, if it has not ended by `now`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

    /// Puts off a session's end.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn extend_session(&self, id_hash: &[u8; 32], expires_at: DateTime<Utc>) -> Result<()> {
        sqlx::query!("UPDATE sessions SET expires_at = $2 WHERE id_hash = $1", id_hash.as_slice(), expires_at)
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Ends a session.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn delete_session(&self, id_hash: &[u8; 32]) -> Result<()> {
        sqlx::query!("DELETE FROM sessions WHERE id_hash = $1", id_hash.as_slice()).execute(self.pool()).await?;
        Ok(())
    }

    /// Deletes what has ended by `now`. Returns how many.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn delete_expired_sessions(&self, now: DateTime<Utc>) -> Result<u64> {
        Ok(sqlx::query!("DELETE FROM sessions WHERE expires_at <= $1", now).execute(self.pool()).await?.rows_affected())
    }
}
