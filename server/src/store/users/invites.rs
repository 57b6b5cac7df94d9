//! One-time links: made, looked at, used up, taken back.
//!
//! The table knows a token only by its hash. Everything that depends on there being nobody yet happens under one
//! advisory lock, so that two setup links, or one opened twice, cannot make two first Admins.

use chrono::{DateTime, Utc};
use milvaion_api::{
    permissions::Role,
    views::{CurrentUser, InviteView},
};
use milvaion_protocol::id::UserId;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Result, Store, StoreError, role};
use crate::store::audit::{self, AuditEntry};

/// Held by whoever decides something from how many people or invitations there are. The number only has to be no other
/// lock's.
const USERS_LOCK_KEY: i64 = 0x70_65_6f_70_6c_65;

/// A link that can still be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InviteRow {
    /// Its id, for taking it back.
    pub id: UserId,
    /// True for the link that makes the first Admin.
    pub is_setup: bool,
    /// For whom; empty for the setup link.
    pub name: String,
    /// As what.
    pub role: Role,
    /// By whom.
    pub invited_by: String,
    /// Until when.
    pub expires_at: DateTime<Utc>,
}

impl InviteRow {
    /// Its line on the team page.
    #[must_use]
    pub fn view(&self) -> InviteView {
        InviteView {
            id: self.id,
            name: self.name.clone(),
            role: self.role,
            expires_at: self.expires_at,
            invited_by: self.invited_by.clone(),
        }
    }
}

/// A link to be made.
#[derive(Clone, Debug)]
pub struct NewInvite {
    /// Its id.
    pub id: UserId,
    /// SHA-256 of the token.
    pub token_hash: [u8; 32],
    /// For whom; empty for the setup link.
    pub name: String,
    /// As what.
    pub role: Role,
    /// Now.
    pub created_at: DateTime<Utc>,
    /// Until when.
    pub expires_at: DateTime<Utc>,
}

/// A person to be made. Not `Debug`, so that no log can hold the hash.
pub struct NewUser {
    /// Their id.
    pub id: UserId,
    /// Their name.
    pub name: String,
    /// Their e-mail address, in lower case.
    pub email: String,
    /// argon2id in PHC string form.
    pub passphrase_hash: String,
}

/// How using a link up went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InviteAcceptance {
    /// The person exists now.
    Accepted(CurrentUser),
    /// The link was used up, taken back or outlived while the form was filled in.
    Spent,
    /// Somebody has that e-mail address; the link is still good.
    EmailTaken,
}

struct RawInvite {
    id: Uuid,
    is_setup: bool,
    name: String,
    role: String,
    invited_by: String,
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
            expires_at: raw.expires_at,
        })
    }
}

async fn lock_people(connection: &mut PgConnection) -> Result<()> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", USERS_LOCK_KEY).execute(connection).await?;
    Ok(())
}

impl Store {
    /// Puts `invite` in place of every earlier setup link. Returns false, and does nothing, when there is somebody.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn replace_setup_invite(&self, invite: &NewInvite) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        lock_people(&mut tx).await?;
        if sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM users) AS "any!""#).fetch_one(&mut *tx).await? {
            return Ok(false);
        }
        sqlx::query!("DELETE FROM invites WHERE is_setup").execute(&mut *tx).await?;
        insert(&mut tx, invite, true, "the server").await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Adds an invitation by `by` unless `limit` are open already. Returns whether it was added.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn insert_invite(&self, invite: &NewInvite, by: &CurrentUser, limit: i64) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        lock_people(&mut tx).await?;
        let open = sqlx::query_scalar!(
            r#"SELECT count(*) AS "n!" FROM invites WHERE used_at IS NULL AND expires_at > $1"#,
            invite.created_at
        )
        .fetch_one(&mut *tx)
        .await?;
        if open >= limit {
            return Ok(false);
        }
        insert(&mut tx, invite, false, &by.name).await?;
        let entry = AuditEntry::new(invite.created_at, &by.email, "invite.create", format!("invite:{}", invite.id))
            .change(None, Some(json!({ "name": invite.name, "role": invite.role.slug() })));
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The link with this token, if it can still be used.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn open_invite(&self, token_hash: &[u8; 32], now: DateTime<Utc>) -> Result<Option<InviteRow>> {
        sqlx::query_as!(
            RawInvite,
            "SELECT id, is_setup, name, role, invited_by, expires_at FROM invites
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

    /// Every invitation that can still be used, newest first.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn list_invites(&self, now: DateTime<Utc>) -> Result<Vec<InviteRow>> {
        sqlx::query_as!(
            RawInvite,
            "SELECT id, is_setup, name, role, invited_by, expires_at FROM invites
             WHERE used_at IS NULL AND expires_at > $1 AND NOT is_setup ORDER BY created_at DESC, id LIMIT 1000",
            now
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(InviteRow::try_from)
        .collect()
    }

    /// Uses a link up: makes the person, marks the link and writes it down, all or nothing. Of two who use the same
    /// link, or two setup links, at once, the second finds it spent.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn accept_invite(
        &self,
        token_hash: &[u8; 32],
        user: &NewUser,
        now: DateTime<Utc>,
        address: Option<String>,
    ) -> Result<InviteAcceptance> {
        let mut tx = self.pool().begin().await?;
        lock_people(&mut tx).await?;
        let invite = sqlx::query!(
            "SELECT id, is_setup, role FROM invites
             WHERE token_hash = $1 AND used_at IS NULL AND expires_at > $2
               AND NOT (is_setup AND EXISTS (SELECT FROM users))
             FOR UPDATE",
            token_hash.as_slice(),
            now
        )
        .fetch_optional(&mut *tx)
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
        .execute(&mut *tx)
        .await?;
        if made.rows_affected() == 0 {
            return Ok(InviteAcceptance::EmailTaken);
        }
        sqlx::query!("UPDATE invites SET used_at = $2 WHERE id = $1", invite.id, now).execute(&mut *tx).await?;
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

    /// Takes an invitation back. Returns false when there is none that could still be used.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn delete_invite(&self, id: UserId, by: &CurrentUser, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let gone = sqlx::query!(
            "DELETE FROM invites WHERE id = $1 AND used_at IS NULL AND NOT is_setup RETURNING name, role",
            id.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(gone) = gone else { return Ok(false) };
        let entry = AuditEntry::new(now, &by.email, "invite.revoke", format!("invite:{id}"))
            .change(Some(json!({ "name": gone.name, "role": gone.role })), None);
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Deletes links that ended before `before`, used or not; the audit log still tells of them. Returns how many.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn delete_old_invites(&self, before: DateTime<Utc>) -> Result<u64> {
        Ok(sqlx::query!("DELETE FROM invites WHERE expires_at < $1", before)
            .execute(self.pool())
            .await?
            .rows_affected())
    }
}

async fn insert(connection: &mut PgConnection, invite: &NewInvite, is_setup: bool, by: &str) -> Result<()> {
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
