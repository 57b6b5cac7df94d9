//! Sessions by the hash of their id. [`crate::http::session`] decides about creation and lifetime.
//!
//! A session that is ended before its expiry keeps its row with the reason, so that an open page can state it. Every
//! read that grants anything ignores such rows. Only a sign-out and a deactivation delete the row.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{SessionId, UserId};
use serde_json::{Value, json};

use super::{Result, Store, pool::StoreTransaction};

/// Maximum number of anonymous sessions. Such a session only carries a message to the next page, and any visitor can
/// cause one, so their number is bounded.
const MAX_ANONYMOUS_SESSIONS: i64 = 10_000;

/// Maximum number of sessions of one user, ended ones included. One more deletes the one that was not used for the
/// longest time.
pub const MAX_SESSIONS_PER_USER: i64 = 100;

/// The key in the data of a session that another one of the same browser has replaced.
const REPLACED_KEY: &str = "isReplaced";

/// A stored session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRow {
    /// Content.
    pub data: Value,
    /// The signed-in user; none before signing in.
    pub user_id: Option<UserId>,
    /// Time of the sign-in, or of the first message.
    pub created_at: DateTime<Utc>,
    /// Last request, to the minute.
    pub last_seen_at: DateTime<Utc>,
    /// Expiry unless the session is used.
    pub expires_at: DateTime<Utc>,
    /// Network address of the sign-in, if it was known.
    pub address: Option<String>,
    /// Header User-Agent of the sign-in, at most 300 characters.
    pub user_agent: Option<String>,
}

/// The reason for which a session was ended before its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// It was ended from another device or by an Admin.
    Revoked,
    /// The passphrase was changed.
    PassphraseChanged,
    /// It got a new id when its user changed the passphrase in it.
    Replaced,
}

impl SessionEnd {
    const fn slug(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::PassphraseChanged | Self::Replaced => "passphrase",
        }
    }

    fn of(slug: &str, data: &Value) -> Self {
        match slug {
            "passphrase" if data.get(REPLACED_KEY).is_some() => Self::Replaced,
            "passphrase" => Self::PassphraseChanged,
            _ => Self::Revoked,
        }
    }
}

/// The sessions of a user that are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedSessions<'a> {
    /// All of them.
    All,
    /// All except the one with this hash of its id.
    AllExcept(&'a [u8; 32]),
    /// The one with this hash of its id.
    ByHash(&'a [u8; 32]),
    /// The one with this id for lists.
    ById(SessionId),
}

/// A session as its user and Admins see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSession {
    /// The id for revocation.
    pub id: SessionId,
    /// Network address of the sign-in, if it was known.
    pub address: Option<String>,
    /// Header User-Agent of the sign-in.
    pub user_agent: Option<String>,
    /// Time of the sign-in.
    pub created_at: DateTime<Utc>,
    /// Last request, to the minute.
    pub last_seen_at: DateTime<Utc>,
    /// True for the session that the caller named.
    pub is_current: bool,
}

impl Store {
    /// Inserts a session. Returns false if the id is taken, or if there are too many anonymous sessions. If the user has
    /// [`MAX_SESSIONS_PER_USER`] sessions, the one that was not used for the longest time is deleted; ended ones are
    /// deleted first.
    pub async fn insert_session(&self, id_hash: &[u8; 32], row: &SessionRow) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        if let Some(user) = row.user_id {
            // Locks the user, so that concurrent sign-ins do not exceed the limit.
            sqlx::query!("UPDATE users SET last_seen_at = $2 WHERE id = $1", user.0, row.last_seen_at)
                .execute(&mut tx)
                .await?;
        }
        let done = sqlx::query!(
            "INSERT INTO sessions (id_hash, data, user_id, created_at, last_seen_at, expires_at, address, user_agent)
             SELECT $1, $2, $3, $4, $5, $6, $7, $8
             WHERE $3::uuid IS NOT NULL
                OR (SELECT count(*) FROM (SELECT FROM sessions WHERE user_id IS NULL LIMIT $9) AS few) < $9
             ON CONFLICT DO NOTHING",
            id_hash.as_slice(),
            row.data,
            row.user_id.map(|id| id.0),
            row.created_at,
            row.last_seen_at,
            row.expires_at,
            row.address,
            row.user_agent,
            MAX_ANONYMOUS_SESSIONS
        )
        .execute(&mut tx)
        .await?;
        if let Some(user) = row.user_id {
            sqlx::query!(
                "DELETE FROM sessions WHERE id_hash IN (
                     SELECT id_hash FROM sessions WHERE user_id = $1 AND id_hash <> $2
                     ORDER BY end_reason IS NOT NULL, last_seen_at DESC, created_at DESC OFFSET $3
                        FOR UPDATE SKIP LOCKED)",
                user.0,
                id_hash.as_slice(),
                MAX_SESSIONS_PER_USER - 1
            )
            .execute(&mut tx)
            .await?;
        }
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// Updates content, user and expiry of a session. Returns false if it does not exist; a session that was deleted or
    /// ended meanwhile stays so.
    pub async fn update_session(&self, id_hash: &[u8; 32], row: &SessionRow) -> Result<bool> {
        let done = sqlx::query!(
            "UPDATE sessions SET data = $2, user_id = $3, expires_at = $4 WHERE id_hash = $1 AND end_reason IS NULL",
            id_hash.as_slice(),
            row.data,
            row.user_id.map(|id| id.0),
            row.expires_at
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Returns the session, or `None` if it does not exist, was ended or has expired by `now`.
    pub async fn session(&self, id_hash: &[u8; 32], now: DateTime<Utc>) -> Result<Option<SessionRow>> {
        let row = self.session_with_end(id_hash).await?;
        Ok(row.filter(|(row, end)| end.is_none() && row.expires_at > now).map(|(row, _)| row))
    }

    /// Returns the session, also if it has expired, with the reason for which it was ended. Nothing may be granted for
    /// an ended session.
    pub async fn session_with_end(&self, id_hash: &[u8; 32]) -> Result<Option<(SessionRow, Option<SessionEnd>)>> {
        let row = sqlx::query!(
            "SELECT data, user_id, created_at, last_seen_at, expires_at, address, user_agent, end_reason
             FROM sessions WHERE id_hash = $1",
            id_hash.as_slice()
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| {
            let end = row.end_reason.map(|slug| SessionEnd::of(&slug, &row.data));
            let session = SessionRow {
                data: row.data,
                user_id: row.user_id.map(UserId),
                created_at: row.created_at,
                last_seen_at: row.last_seen_at,
                expires_at: row.expires_at,
                address: row.address,
                user_agent: row.user_agent,
            };
            (session, end)
        }))
    }

    /// Records a use of a user's session: its time and its new expiry. The two statements are separate, because a
    /// transaction that changes a user's sessions locks the user first.
    pub async fn extend_session(
        &self,
        id_hash: &[u8; 32],
        user: UserId,
        now: DateTime<Utc>,
        expires_at: DateTime<Utc>,
    ) -> Result<()> {
        let done = sqlx::query!(
            "UPDATE sessions SET last_seen_at = $2, expires_at = $3 WHERE id_hash = $1 AND end_reason IS NULL",
            id_hash.as_slice(),
            now,
            expires_at
        )
        .execute(self.pool())
        .await?;
        if done.rows_affected() == 1 {
            sqlx::query!(
                "UPDATE users SET last_seen_at = $2
                 WHERE id = $1 AND (last_seen_at IS NULL OR last_seen_at + interval '1 minute' <= $2)",
                user.0,
                now
            )
            .execute(self.pool())
            .await?;
        }
        Ok(())
    }

    /// Deletes a session. A session that was ended keeps its row, so that its other pages can state the reason.
    pub async fn delete_session(&self, id_hash: &[u8; 32]) -> Result<()> {
        sqlx::query!("DELETE FROM sessions WHERE id_hash = $1 AND end_reason IS NULL", id_hash.as_slice())
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Returns the valid sessions of a user, the last used one first. `current` is the hash of the id of the caller's
    /// session.
    pub async fn sessions_of(
        &self,
        user: UserId,
        now: DateTime<Utc>,
        current: Option<&[u8; 32]>,
    ) -> Result<Vec<ListedSession>> {
        let rows = sqlx::query!(
            r#"SELECT s.id, s.address, s.user_agent, s.created_at, s.last_seen_at,
                      coalesce(s.id_hash = $3, false) AS "is_current!"
               FROM sessions AS s JOIN users AS u ON u.id = s.user_id
               WHERE s.user_id = $1 AND s.end_reason IS NULL AND s.expires_at > $2
                 AND (u.passphrase_changed_at IS NULL OR s.created_at >= u.passphrase_changed_at)
               ORDER BY s.last_seen_at DESC, s.created_at DESC, s.id"#,
            user.0,
            now,
            current.map(<[u8; 32]>::as_slice)
        )
        .fetch_all(self.pool())
        .await?;
        let listed = rows.into_iter().map(|row| ListedSession {
            id: SessionId(row.id),
            address: row.address,
            user_agent: row.user_agent,
            created_at: row.created_at,
            last_seen_at: row.last_seen_at,
            is_current: row.is_current,
        });
        Ok(listed.collect())
    }

    /// Returns the number of valid sessions of each user that has one, counted as in
    /// [`sessions_of`](Self::sessions_of).
    pub async fn count_sessions(&self, now: DateTime<Utc>) -> Result<Vec<(UserId, u32)>> {
        let rows = sqlx::query!(
            r#"SELECT u.id, count(*) AS "sessions!"
               FROM sessions AS s JOIN users AS u ON u.id = s.user_id
               WHERE s.end_reason IS NULL AND s.expires_at > $1
                 AND (u.passphrase_changed_at IS NULL OR s.created_at >= u.passphrase_changed_at)
               GROUP BY u.id"#,
            now
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (UserId(row.id), u32::try_from(row.sessions).unwrap_or(u32::MAX))).collect())
    }
}

/// Ends sessions of a user for a reason. The user must be locked. An ended session holds no data any more. Returns the
/// number of sessions that were valid until now.
pub(super) async fn end_sessions(
    connection: &mut StoreTransaction,
    user: UserId,
    which: EndedSessions<'_>,
    end: SessionEnd,
    now: DateTime<Utc>,
) -> Result<u32> {
    let (only, except, id) = match which {
        EndedSessions::All => (None, None, None),
        EndedSessions::AllExcept(hash) => (None, Some(hash), None),
        EndedSessions::ByHash(hash) => (Some(hash), None, None),
        EndedSessions::ById(id) => (None, None, Some(id.0)),
    };
    let data = if end == SessionEnd::Replaced { json!({ REPLACED_KEY: true }) } else { json!({}) };
    let ended = sqlx::query!(
        "UPDATE sessions SET end_reason = $2, data = $3
         WHERE user_id = $1 AND end_reason IS NULL AND expires_at > $4
           AND ($5::bytea IS NULL OR id_hash = $5) AND ($6::bytea IS NULL OR id_hash <> $6)
           AND ($7::uuid IS NULL OR id = $7)",
        user.0,
        end.slug(),
        data,
        now,
        only.map(<[u8; 32]>::as_slice),
        except.map(<[u8; 32]>::as_slice),
        id
    )
    .execute(connection)
    .await?;
    Ok(u32::try_from(ended.rows_affected()).unwrap_or(u32::MAX))
}
