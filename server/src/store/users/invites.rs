//! One-time links: creation, lookup, use and revocation.
//!
//! The table holds a token only as its hash. Each decision that depends on whether users exist is made under one
//! advisory lock, so that two setup links, or one that is opened twice, cannot create two first admins.

use chrono::{DateTime, Utc};
use milvaion_api::{permissions::Role, views::CurrentUser};
use milvaion_protocol::id::UserId;
use serde_json::json;
use uuid::Uuid;

use super::{Result, Store, StoreError, lock_users, role};
use crate::store::{
    audit::{self, AuditEntry},
    pool::StoreTransaction,
};

/// A link that is not used yet. It may have expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InviteRow {
    /// Identifier, for revocation.
    pub id: UserId,
    /// True for the link that creates the first admin.
    pub is_setup: bool,
    /// Name of the invited user; empty for the setup link.
    pub name: String,
    /// Role of the invited user.
    pub role: Role,
    /// Name of the inviting user.
    pub invited_by: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Expiry.
    pub expires_at: DateTime<Utc>,
}

/// A link to insert.
#[derive(Clone, Debug)]
pub struct NewInvite {
    /// Identifier.
    pub id: UserId,
    /// SHA-256 of the token.
    pub token_hash: [u8; 32],
    /// Name of the invited user; empty for the setup link.
    pub name: String,
    /// Role of the invited user.
    pub role: Role,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Expiry.
    pub expires_at: DateTime<Utc>,
}

/// A user to insert. Not `Debug`, so that no log can contain the hash.
pub struct NewUser {
    /// Identifier.
    pub id: UserId,
    /// Display name.
    pub name: String,
    /// E-mail address, in lower case.
    pub email: String,
    /// Passphrase hash: argon2id in PHC string format.
    pub passphrase_hash: String,
}

/// The result of using a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InviteAcceptance {
    /// The user was created.
    Accepted(CurrentUser),
    /// The link was used, revoked or expired while the form was filled in.
    Spent,
    /// Another user has the e-mail address; the link can still be used.
    EmailTaken,
}

/// The result of the replacement of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InviteRenewal {
    /// The link was replaced.
    Renewed,
    /// The invitation does not exist, was used or was revoked.
    Missing,
    /// Too many other invitations are open.
    TooMany,
}

struct RawInvite {
    id: Uuid,
    is_setup: bool,
    name: String,
    role: String,
    invited_by: String,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
}

impl TryFrom<RawInvite> for InviteRow {
    type Error = StoreError;

    fn try_from(raw: RawInvite) -> Result<Self> {
        Ok(Self {
            id: UserId(raw.id),
            is_setup: raw.is_setup,
            name: raw.name,
            role: role("invites", &raw.role)?,
            invited_by: raw.invited_by,
            created_at: raw.created_at,
            expires_at: raw.expires_at,
        })
    }
}

impl Store {
    /// Replaces all earlier setup links by `invite`. Returns false, and changes nothing, if a user exists.
    pub async fn replace_setup_invite(&self, invite: &NewInvite) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        if sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM users) AS "any!""#).fetch_one(&mut tx).await? {
            return Ok(false);
        }
        sqlx::query!("DELETE FROM invites WHERE is_setup").execute(&mut tx).await?;
        insert(&mut tx, invite, true, "the server").await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Inserts an invitation by the user named `by` unless `limit` invitations are open already. `entry` is the audit
    /// row, without the states. Returns true if it was inserted.
    pub async fn insert_invite(&self, invite: &NewInvite, by: &str, limit: i64, entry: AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        if open_invites_except(&mut tx, invite.id, invite.created_at).await? >= limit {
            return Ok(false);
        }
        insert(&mut tx, invite, false, by).await?;
        let after = json!({ "name": invite.name, "role": invite.role.slug() });
        audit::record(&mut tx, &entry.change(None, Some(after))).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Replaces the token and the expiry of an invitation that is not used, unless `limit` other invitations are open
    /// already. The old link no longer works. `entry` is the audit row, without the states.
    pub async fn renew_invite(
        &self,
        id: UserId,
        token_hash: &[u8; 32],
        expires_at: DateTime<Utc>,
        limit: i64,
        entry: AuditEntry,
    ) -> Result<InviteRenewal> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        let before = sqlx::query!(
            "SELECT name, role, expires_at FROM invites WHERE id = $1 AND used_at IS NULL AND NOT is_setup FOR UPDATE",
            id.0
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(before) = before else { return Ok(InviteRenewal::Missing) };
        if open_invites_except(&mut tx, id, entry.at).await? >= limit {
            return Ok(InviteRenewal::TooMany);
        }
        sqlx::query!(
            "UPDATE invites SET token_hash = $2, expires_at = $3 WHERE id = $1",
            id.0,
            token_hash.as_slice(),
            expires_at
        )
        .execute(&mut tx)
        .await?;
        let entry = entry.change(
            Some(json!({ "expiresAt": before.expires_at })),
            Some(json!({ "name": before.name, "role": before.role, "expiresAt": expires_at })),
        );
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(InviteRenewal::Renewed)
    }

    /// Returns the link with this token if it can still be used.
    pub async fn open_invite(&self, token_hash: &[u8; 32], now: DateTime<Utc>) -> Result<Option<InviteRow>> {
        sqlx::query_as!(
            RawInvite,
            "SELECT id, is_setup, name, role, invited_by, created_at, expires_at FROM invites
             WHERE token_hash = $1 AND used_at IS NULL AND expires_at > $2
               AND NOT (is_setup AND EXISTS (SELECT FROM users))",
            token_hash.as_slice(),
            now
        )
        .fetch_optional(self.pool())
        .await?
        .map(InviteRow::try_from)
        .transpose()
    }

    /// Returns all invitations that are not used, expired ones included, newest first, at most 1,000.
    pub async fn list_invites(&self) -> Result<Vec<InviteRow>> {
        sqlx::query_as!(
            RawInvite,
            "SELECT id, is_setup, name, role, invited_by, created_at, expires_at FROM invites
             WHERE used_at IS NULL AND NOT is_setup ORDER BY created_at DESC, id LIMIT 1000"
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(InviteRow::try_from)
        .collect()
    }

    /// Uses a link: inserts the user, marks the link as used and inserts an audit row, all or nothing. Of two
    /// concurrent uses of the same link, or of two setup links, the second finds it spent.
    pub async fn accept_invite(
        &self,
        token_hash: &[u8; 32],
        user: &NewUser,
        now: DateTime<Utc>,
        address: Option<String>,
    ) -> Result<InviteAcceptance> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        let invite = sqlx::query!(
            "SELECT id, is_setup, role FROM invites
             WHERE token_hash = $1 AND used_at IS NULL AND expires_at > $2
               AND NOT (is_setup AND EXISTS (SELECT FROM users))
             FOR UPDATE",
            token_hash.as_slice(),
            now
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(invite) = invite else { return Ok(InviteAcceptance::Spent) };
        let role = role("invites", &invite.role)?;
        let made = sqlx::query!(
            "INSERT INTO users (id, name, email, passphrase_hash, role, created_at, last_sign_in_at)
             VALUES ($1, $2, $3, $4, $5, $6, $6) ON CONFLICT ON CONSTRAINT users_email_is_unique DO NOTHING",
            user.id.0,
            user.name,
            user.email,
            user.passphrase_hash,
            role.slug(),
            now
        )
        .execute(&mut tx)
        .await?;
        if made.rows_affected() == 0 {
            return Ok(InviteAcceptance::EmailTaken);
        }
        sqlx::query!("UPDATE invites SET used_at = $2 WHERE id = $1", invite.id, now).execute(&mut tx).await?;
        let action = if invite.is_setup { "setup" } else { "invite.accept" };
        let entry = AuditEntry::new(now, &user.email, action, format!("user:{}", user.id))
            .change(None, Some(json!({ "name": user.name, "role": role.slug() })))
            .from(address);
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(InviteAcceptance::Accepted(CurrentUser {
            id: user.id,
            name: user.name.clone(),
            email: user.email.clone(),
            role,
        }))
    }

    /// Revokes an invitation, also one that has expired. `entry` is the audit row, without the states. Returns false if
    /// there is none that is not used.
    pub async fn delete_invite(&self, id: UserId, entry: AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let gone = sqlx::query!(
            "DELETE FROM invites WHERE id = $1 AND used_at IS NULL AND NOT is_setup RETURNING name, role",
            id.0
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(gone) = gone else { return Ok(false) };
        let entry = entry.change(Some(json!({ "name": gone.name, "role": gone.role })), None);
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Returns the number of open invitations other than `id`.
async fn open_invites_except(connection: &mut StoreTransaction, id: UserId, now: DateTime<Utc>) -> Result<i64> {
    Ok(sqlx::query_scalar!(
        r#"SELECT count(*) AS "n!" FROM invites WHERE used_at IS NULL AND expires_at > $1 AND NOT is_setup AND id <> $2"#,
        now,
        id.0
    )
    .fetch_one(connection)
    .await?)
}

async fn insert(connection: &mut StoreTransaction, invite: &NewInvite, is_setup: bool, by: &str) -> Result<()> {
    sqlx::query!(
        "INSERT INTO invites (id, token_hash, is_setup, name, role, invited_by, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        invite.id.0,
        invite.token_hash.as_slice(),
        is_setup,
        invite.name,
        invite.role.slug(),
        by,
        invite.created_at,
        invite.expires_at
    )
    .execute(connection)
    .await?;
    Ok(())
}
