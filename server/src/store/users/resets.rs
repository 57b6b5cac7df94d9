//! One-time links for a new passphrase: creation, lookup, use and revocation.
//!
//! The table holds a token only as its hash, and at most one link per user. Each function locks the user first, so a link
//! that is opened twice at once works once, and a deactivated user gets no link.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::UserId;
use serde_json::json;
use uuid::Uuid;

use super::{NewPassphrase, RawUser, Result, Store, UserRow, account::store_passphrase, lock_user};
use crate::store::audit::{self, AuditEntry};

/// A link to insert.
#[derive(Clone, Debug)]
pub struct NewReset {
    /// Identifier.
    pub id: Uuid,
    /// SHA-256 of the token.
    pub token_hash: [u8; 32],
    /// The user who chooses a new passphrase.
    pub user_id: UserId,
    /// E-mail address of the Admin, or `system` for the command line.
    pub created_by: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Expiry.
    pub expires_at: DateTime<Utc>,
}

/// A link that can still be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetRow {
    /// E-mail address of the Admin, or `system` for the command line.
    pub created_by: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Expiry.
    pub expires_at: DateTime<Utc>,
}

impl Store {
    /// Inserts a link and deletes the earlier one of the same user. `entry` is the audit row, without the states.
    /// Returns false, and changes nothing, if the user does not exist or is deactivated.
    pub async fn replace_reset(&self, reset: &NewReset, entry: AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        if !lock_user(&mut tx, reset.user_id).await?.is_some_and(|user| user.is_active) {
            return Ok(false);
        }
        sqlx::query!("DELETE FROM passphrase_resets WHERE user_id = $1", reset.user_id.0).execute(&mut tx).await?;
        sqlx::query!(
            "INSERT INTO passphrase_resets (id, token_hash, user_id, created_by, created_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6)",
            reset.id,
            reset.token_hash.as_slice(),
            reset.user_id.0,
            reset.created_by,
            reset.created_at,
            reset.expires_at
        )
        .execute(&mut tx)
        .await?;
        let entry = entry.change(None, Some(json!({ "expiresAt": reset.expires_at })));
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Returns the open link of a user.
    pub async fn open_reset(&self, user: UserId, now: DateTime<Utc>) -> Result<Option<ResetRow>> {
        Ok(sqlx::query_as!(
            ResetRow,
            "SELECT created_by, created_at, expires_at FROM passphrase_resets WHERE user_id = $1 AND expires_at > $2",
            user.0,
            now
        )
        .fetch_optional(self.pool())
        .await?)
    }

    /// Returns the user of the link with this token if the link can still be used.
    pub async fn user_of_reset(&self, token_hash: &[u8; 32], now: DateTime<Utc>) -> Result<Option<UserRow>> {
        sqlx::query_as!(
            RawUser,
            "SELECT u.id, u.name, u.email, u.role, u.is_active, u.created_at, u.last_sign_in_at, u.last_seen_at,
                    u.deactivated_at, u.passphrase_changed_at
             FROM passphrase_resets AS r JOIN users AS u ON u.id = r.user_id
             WHERE r.token_hash = $1 AND r.expires_at > $2 AND u.is_active",
            token_hash.as_slice(),
            now
        )
        .fetch_optional(self.pool())
        .await?
        .map(UserRow::try_from)
        .transpose()
    }

    /// Uses a link: stores the passphrase, ends all sessions of the user, forgets the user's devices and inserts the
    /// audit row `entry`, all or nothing. Of two concurrent uses, the second finds no link and returns `None`.
    pub async fn use_reset(
        &self,
        token_hash: &[u8; 32],
        user: UserId,
        passphrase_hash: &str,
        entry: AuditEntry,
    ) -> Result<Option<UserRow>> {
        let mut tx = self.pool().begin().await?;
        let Some(user) = lock_user(&mut tx, user).await?.filter(|user| user.is_active) else { return Ok(None) };
        let used = sqlx::query!(
            "DELETE FROM passphrase_resets WHERE token_hash = $1 AND user_id = $2 AND expires_at > $3",
            token_hash.as_slice(),
            user.id.0,
            entry.at
        )
        .execute(&mut tx)
        .await?;
        if used.rows_affected() == 0 {
            return Ok(None);
        }
        let ended = store_passphrase(&mut tx, user.id, &NewPassphrase::of_link(passphrase_hash), entry.at).await?;
        sqlx::query!("UPDATE users SET last_sign_in_at = $2 WHERE id = $1", user.id.0, entry.at)
            .execute(&mut tx)
            .await?;
        audit::record(&mut tx, &entry.change(None, Some(json!({ "endedSessions": ended })))).await?;
        tx.commit().await?;
        Ok(Some(user))
    }

    /// Revokes the open link of a user. `entry` is the audit row, without the states. Returns false if there is none.
    pub async fn delete_reset(&self, user: UserId, entry: AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let gone = sqlx::query_scalar!(
            "DELETE FROM passphrase_resets WHERE user_id = $1 AND expires_at > $2 RETURNING expires_at",
            user.0,
            entry.at
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(expires_at) = gone else { return Ok(false) };
        audit::record(&mut tx, &entry.change(Some(json!({ "expiresAt": expires_at })), None)).await?;
        tx.commit().await?;
        Ok(true)
    }
}
