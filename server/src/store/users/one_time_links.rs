//! One-time links: creation, lookup, use and revocation.
//!
//! A row is a link that is neither used nor revoked; it may have expired. The table holds a token only as its hash.
//! Links are created and used under the lock of all users, so that two setup links, or one that is opened twice, cannot
//! create two first admins. The user of a link for a new passphrase is locked before the link, so a link that is opened
//! twice at once works once, and a deactivated user gets no link.

use chrono::{DateTime, Utc};
use milvaion_api::{
    permissions::Role,
    team::{LinkInfo, LinkKind, PendingInvite, PendingReset, TeamRow, UserState},
    views::CurrentUser,
};
use milvaion_protocol::id::UserId;
use serde_json::{Value, json};

use super::{NewPassphrase, Result, Store, StoreError, account::store_passphrase, lock_user, lock_users, role};
use crate::store::{
    audit::{self, AuditEntry},
    pool::StoreTransaction,
};

/// The most open invitations.
pub const MAX_OPEN_INVITES: i64 = 100;

/// A link to insert.
#[derive(Clone, Debug)]
pub struct NewLink {
    /// Identifier.
    pub id: UserId,
    /// Purpose.
    pub kind: LinkKind,
    /// SHA-256 of the token.
    pub token_hash: [u8; 32],
    /// The user who chooses a new passphrase; none for other links.
    pub user_id: Option<UserId>,
    /// Name of the invited user; none for other links.
    pub name: Option<String>,
    /// Role of the user that the link creates; none for a new passphrase.
    pub role: Option<Role>,
    /// Name of the inviting Admin; for a new passphrase the e-mail address of the Admin, or `system`.
    pub created_by: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Expiry.
    pub expires_at: DateTime<Utc>,
}

/// The result of the creation of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkCreation {
    /// The link was stored. The link that it replaces no longer works.
    Created,
    /// The invitation or the user does not exist, or no longer.
    Missing,
    /// The user is deactivated.
    Deactivated,
    /// A user exists, so no setup link is needed.
    HasUsers,
    /// [`MAX_OPEN_INVITES`] other invitations are open.
    TooMany,
}

/// A link that can still be used.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenLink {
    /// The user who chooses a new passphrase; none if the link creates a user.
    pub user_id: Option<UserId>,
    /// The contents.
    pub info: LinkInfo,
}

/// The user that a link creates or gives a new passphrase. Not `Debug`, so that no log can contain the hash.
pub struct LinkedUser {
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
pub enum LinkAcceptance {
    /// The user was created, or has the new passphrase.
    Accepted(CurrentUser),
    /// The link was used, replaced, revoked or expired while the form was filled in.
    Spent,
    /// Another user has the e-mail address; the link can still be used.
    EmailTaken,
}

impl Store {
    /// Inserts a link in place of the earlier setup link, or of the user's earlier link for a new passphrase. `entry`
    /// is the audit row, without the states.
    pub async fn insert_link(&self, link: &NewLink, entry: Option<AuditEntry>) -> Result<LinkCreation> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        if let Some(user) = link.user_id {
            match lock_user(&mut tx, user).await? {
                None => return Ok(LinkCreation::Missing),
                Some(user) if !user.is_active => return Ok(LinkCreation::Deactivated),
                Some(_) => {}
            }
        }
        if link.kind == LinkKind::Setup
            && sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM users) AS "any!""#).fetch_one(&mut tx).await?
        {
            return Ok(LinkCreation::HasUsers);
        }
        if link.kind == LinkKind::Invite
            && open_invites_except(&mut tx, link.id, link.created_at).await? >= MAX_OPEN_INVITES
        {
            return Ok(LinkCreation::TooMany);
        }
        let user_id = link.user_id.map(|user| user.0);
        sqlx::query!(
            "DELETE FROM one_time_links WHERE kind = $1 AND kind <> 'invite' AND user_id IS NOT DISTINCT FROM $2",
            link.kind.slug(),
            user_id
        )
        .execute(&mut tx)
        .await?;
        let role = link.role.map(Role::slug);
        sqlx::query!(
            "INSERT INTO one_time_links
                    (id, kind, token_hash, user_id, name, role, created_by, created_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            link.id.0,
            link.kind.slug(),
            link.token_hash.as_slice(),
            user_id,
            link.name.as_deref(),
            role,
            link.created_by,
            link.created_at,
            link.expires_at
        )
        .execute(&mut tx)
        .await?;
        if let Some(entry) = entry {
            let after = audited(link.name.as_deref(), role, link.expires_at);
            audit::record(&mut tx, &entry.change(None, Some(after))).await?;
        }
        tx.commit().await?;
        Ok(LinkCreation::Created)
    }

    /// Replaces the token and the expiry of an invitation, which may have expired. The old link no longer works.
    /// `entry` is the audit row, without the states.
    pub async fn renew_invite(
        &self,
        id: UserId,
        token_hash: &[u8; 32],
        expires_at: DateTime<Utc>,
        entry: AuditEntry,
    ) -> Result<LinkCreation> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        let before = sqlx::query!(
            "SELECT name, role, expires_at FROM one_time_links WHERE id = $1 AND kind = 'invite' FOR UPDATE",
            id.0
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(before) = before else { return Ok(LinkCreation::Missing) };
        if open_invites_except(&mut tx, id, entry.at).await? >= MAX_OPEN_INVITES {
            return Ok(LinkCreation::TooMany);
        }
        sqlx::query!(
            "UPDATE one_time_links SET token_hash = $2, expires_at = $3 WHERE id = $1",
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
        Ok(LinkCreation::Created)
    }

    /// Returns the link with this token if it can still be used.
    pub async fn open_link(&self, token_hash: &[u8; 32], now: DateTime<Utc>) -> Result<Option<OpenLink>> {
        let link = sqlx::query!(
            r#"SELECT l.kind AS "kind!", u.id AS "user_id?", coalesce(u.name, l.name, '') AS "name!",
                      coalesce(u.email, '') AS "email!", coalesce(u.role, l.role) AS "role!"
               FROM one_time_links AS l LEFT JOIN users AS u ON u.id = l.user_id
               WHERE l.token_hash = $1 AND l.expires_at > $2 AND u.is_active IS NOT FALSE
                 AND NOT (l.kind = 'setup' AND EXISTS (SELECT FROM users))"#,
            token_hash.as_slice(),
            now
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(link) = link else { return Ok(None) };
        let kind = LinkKind::from_slug(&link.kind).ok_or(StoreError::Corrupt {
            table: "one_time_links",
            column: "kind",
            detail: link.kind,
        })?;
        let role = role("one_time_links", &link.role)?;
        let info = LinkInfo { kind, name: link.name, email: link.email, role };
        Ok(Some(OpenLink { user_id: link.user_id.map(UserId), info }))
    }

    /// Returns all invitations, expired ones included, newest first, at most 1,000.
    pub async fn list_invites(&self, now: DateTime<Utc>) -> Result<Vec<TeamRow>> {
        sqlx::query!(
            r#"SELECT id, name AS "name!", role AS "role!", created_by, created_at, expires_at
               FROM one_time_links WHERE kind = 'invite' ORDER BY created_at DESC, id LIMIT 1000"#
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(|row| {
            Ok(TeamRow {
                id: UserId(row.id),
                name: row.name,
                email: None,
                role: role("one_time_links", &row.role)?,
                state: UserState::Invited,
                last_seen_at: None,
                sessions: 0,
                created_at: row.created_at,
                invite: Some(PendingInvite {
                    expires_at: row.expires_at,
                    invited_by: row.created_by,
                    is_expired: row.expires_at <= now,
                }),
            })
        })
        .collect()
    }

    /// Returns the open link for a new passphrase of a user.
    pub async fn open_reset(&self, user: UserId, now: DateTime<Utc>) -> Result<Option<PendingReset>> {
        Ok(sqlx::query_as!(
            PendingReset,
            "SELECT created_by, created_at, expires_at FROM one_time_links WHERE user_id = $1 AND expires_at > $2",
            user.0,
            now
        )
        .fetch_optional(self.pool())
        .await?)
    }

    /// Uses a link: inserts the user, or stores the passphrase of an existing one, whose sessions end and whose devices
    /// are forgotten, and inserts the audit row `entry`, all or nothing. Of two concurrent uses of the same link, or of
    /// two setup links, the second finds it spent.
    pub async fn accept_link(
        &self,
        token_hash: &[u8; 32],
        user: &LinkedUser,
        entry: AuditEntry,
    ) -> Result<LinkAcceptance> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        let existing = lock_user(&mut tx, user.id).await?.filter(|user| user.is_active);
        let link = sqlx::query!(
            "DELETE FROM one_time_links
             WHERE token_hash = $1 AND expires_at > $2 AND user_id IS NOT DISTINCT FROM $3
               AND NOT (kind = 'setup' AND EXISTS (SELECT FROM users))
             RETURNING role",
            token_hash.as_slice(),
            entry.at,
            existing.as_ref().map(|user| user.id.0)
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(link) = link else { return Ok(LinkAcceptance::Spent) };
        let (me, after) = if let Some(existing) = existing {
            let new = NewPassphrase::of_link(&user.passphrase_hash);
            let ended = store_passphrase(&mut tx, user.id, &new, entry.at).await?;
            sqlx::query!("UPDATE users SET last_sign_in_at = $2 WHERE id = $1", user.id.0, entry.at)
                .execute(&mut tx)
                .await?;
            (existing.me(), json!({ "endedSessions": ended }))
        } else {
            let role = role("one_time_links", &link.role.unwrap_or_default())?;
            let made = sqlx::query!(
                "INSERT INTO users (id, name, email, passphrase_hash, role, created_at, last_sign_in_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $6) ON CONFLICT ON CONSTRAINT users_email_is_unique DO NOTHING",
                user.id.0,
                user.name,
                user.email,
                user.passphrase_hash,
                role.slug(),
                entry.at
            )
            .execute(&mut tx)
            .await?;
            if made.rows_affected() == 0 {
                return Ok(LinkAcceptance::EmailTaken);
            }
            let me = CurrentUser { id: user.id, name: user.name.clone(), email: user.email.clone(), role };
            (me, json!({ "name": user.name, "role": role.slug() }))
        };
        audit::record(&mut tx, &entry.change(None, Some(after))).await?;
        tx.commit().await?;
        Ok(LinkAcceptance::Accepted(me))
    }

    /// Revokes the invitation with this id, also one that has expired, or the open link for a new passphrase of the
    /// user with this id. `entry` is the audit row, without the states. Returns false if there is none.
    pub async fn delete_link(&self, kind: LinkKind, id: UserId, entry: AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let gone = sqlx::query!(
            "DELETE FROM one_time_links
             WHERE kind = $1 AND $2 IN (id, user_id) AND (kind = 'invite' OR expires_at > $3)
             RETURNING name, role, expires_at",
            kind.slug(),
            id.0,
            entry.at
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(gone) = gone else { return Ok(false) };
        let before = audited(gone.name.as_deref(), gone.role.as_deref(), gone.expires_at);
        audit::record(&mut tx, &entry.change(Some(before), None)).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Returns what the audit log states about a link: the user that it creates, or the expiry of one for a new passphrase.
fn audited(name: Option<&str>, role: Option<&str>, expires_at: DateTime<Utc>) -> Value {
    role.map_or_else(|| json!({ "expiresAt": expires_at }), |role| json!({ "name": name, "role": role }))
}

/// Returns the number of open invitations other than `id`.
async fn open_invites_except(connection: &mut StoreTransaction, id: UserId, now: DateTime<Utc>) -> Result<i64> {
    Ok(sqlx::query_scalar!(
        r#"SELECT count(*) AS "n!" FROM one_time_links WHERE kind = 'invite' AND expires_at > $1 AND id <> $2"#,
        now,
        id.0
    )
    .fetch_one(connection)
    .await?)
}
