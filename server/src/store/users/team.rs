//! Changes of the team by Admins: roles, activity and removal.
//!
//! Each change that could leave the installation without an active Admin is made under the lock of all users. Two Admins
//! who demote each other at once therefore change one role: the second change finds the last Admin.

use milvaion_api::{
    permissions::Role,
    team::{MAX_OWNED_JOBS, OwnedJob},
};
use milvaion_protocol::id::{JobId, UserId};
use serde_json::json;
use sqlx::PgExecutor;

use super::{Result, Store, UserRow, lock_user, lock_users};
use crate::store::{
    audit::{self, AuditEntry},
    pool::StoreTransaction,
};

/// The result of a change of a user by an Admin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamChange {
    /// The user was changed.
    Changed,
    /// The user was in this state already. There is no audit row.
    Unchanged,
    /// The user does not exist.
    Missing,
    /// The user is the last active Admin.
    LastAdmin,
    /// The user must be deactivated first.
    StillActive,
}

impl Store {
    /// Sets the role of a user, with effect from the user's next request, and inserts the audit row `entry`.
    pub async fn set_user_role(&self, id: UserId, role: Role, entry: AuditEntry) -> Result<TeamChange> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        let Some(user) = lock_user(&mut tx, id).await? else { return Ok(TeamChange::Missing) };
        if user.role == role {
            return Ok(TeamChange::Unchanged);
        }
        if is_last_admin(&mut tx, &user).await? {
            return Ok(TeamChange::LastAdmin);
        }
        sqlx::query!("UPDATE users SET role = $2 WHERE id = $1", id.0, role.slug()).execute(&mut tx).await?;
        let entry = entry.change(Some(json!({ "role": user.role.slug() })), Some(json!({ "role": role.slug() })));
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(TeamChange::Changed)
    }

    /// Deactivates a user and inserts the audit row `entry`: deletes the sessions, the known devices and the link for a
    /// new passphrase, and revokes the API tokens, all or nothing.
    pub async fn deactivate_user(&self, id: UserId, entry: AuditEntry) -> Result<TeamChange> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        let Some(user) = lock_user(&mut tx, id).await? else { return Ok(TeamChange::Missing) };
        if !user.is_active {
            return Ok(TeamChange::Unchanged);
        }
        if is_last_admin(&mut tx, &user).await? {
            return Ok(TeamChange::LastAdmin);
        }
        sqlx::query!("UPDATE users SET is_active = false, deactivated_at = $2 WHERE id = $1", id.0, entry.at)
            .execute(&mut tx)
            .await?;
        let sessions = delete_sessions(&mut tx, id).await?;
        let tokens = sqlx::query!(
            "UPDATE api_tokens SET revoked_at = $2 WHERE user_id = $1 AND revoked_at IS NULL",
            id.0,
            entry.at
        )
        .execute(&mut tx)
        .await?;
        sqlx::query!("DELETE FROM known_devices WHERE user_id = $1", id.0).execute(&mut tx).await?;
        sqlx::query!("DELETE FROM one_time_links WHERE user_id = $1", id.0).execute(&mut tx).await?;
        let after = json!({
            "isActive": false, "endedSessions": sessions, "revokedTokens": tokens.rows_affected()
        });
        audit::record(&mut tx, &entry.change(Some(json!({ "isActive": true })), Some(after))).await?;
        tx.commit().await?;
        Ok(TeamChange::Changed)
    }

    /// Reactivates a user and inserts the audit row `entry`. Revoked tokens stay revoked, and a session that a
    /// concurrent sign-in stored after the deactivation is deleted.
    pub async fn reactivate_user(&self, id: UserId, entry: AuditEntry) -> Result<TeamChange> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        let Some(user) = lock_user(&mut tx, id).await? else { return Ok(TeamChange::Missing) };
        if user.is_active {
            return Ok(TeamChange::Unchanged);
        }
        sqlx::query!("UPDATE users SET is_active = true, deactivated_at = NULL WHERE id = $1", id.0)
            .execute(&mut tx)
            .await?;
        delete_sessions(&mut tx, id).await?;
        let entry = entry.change(Some(json!({ "isActive": false })), Some(json!({ "isActive": true })));
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(TeamChange::Changed)
    }

    /// Deletes a deactivated user and inserts the audit row `entry`. Jobs and the audit log keep the e-mail address as
    /// text.
    pub async fn remove_user(&self, id: UserId, entry: AuditEntry) -> Result<TeamChange> {
        let mut tx = self.pool().begin().await?;
        lock_users(&mut tx).await?;
        let Some(user) = lock_user(&mut tx, id).await? else { return Ok(TeamChange::Missing) };
        if user.is_active {
            return Ok(TeamChange::StillActive);
        }
        sqlx::query!("DELETE FROM users WHERE id = $1", id.0).execute(&mut tx).await?;
        let before = json!({ "name": user.name, "email": user.email, "role": user.role.slug() });
        audit::record(&mut tx, &entry.change(Some(before), None)).await?;
        tx.commit().await?;
        Ok(TeamChange::Changed)
    }

    /// Returns true if `user` is an active Admin and no other active user is one.
    pub async fn is_last_admin(&self, user: &UserRow) -> Result<bool> {
        is_last_admin(self.pool(), user).await
    }

    /// Returns the number of API tokens of a user that are not revoked.
    pub async fn count_api_tokens(&self, user: UserId) -> Result<u32> {
        let tokens = sqlx::query_scalar!(
            r#"SELECT count(*) AS "n!" FROM api_tokens WHERE user_id = $1 AND revoked_at IS NULL"#,
            user.0
        )
        .fetch_one(self.pool())
        .await?;
        Ok(u32::try_from(tokens).unwrap_or(u32::MAX))
    }

    /// Returns the jobs that the user with this e-mail address has created, by name, at most [`MAX_OWNED_JOBS`], and
    /// the number of all of them.
    pub async fn jobs_created_by(&self, email: &str) -> Result<(Vec<OwnedJob>, u32)> {
        let rows = sqlx::query!(
            r#"SELECT id, display_name, is_active, count(*) OVER () AS "total!" FROM jobs
               WHERE created_by = $1 ORDER BY lower(display_name), id LIMIT $2"#,
            email,
            i64::try_from(MAX_OWNED_JOBS).unwrap_or(i64::MAX)
        )
        .fetch_all(self.pool())
        .await?;
        let total = rows.first().map_or(0, |row| u32::try_from(row.total).unwrap_or(u32::MAX));
        let jobs = rows
            .into_iter()
            .map(|row| OwnedJob { id: JobId(row.id), name: row.display_name, is_active: row.is_active })
            .collect();
        Ok((jobs, total))
    }
}

async fn is_last_admin(executor: impl PgExecutor<'_>, user: &UserRow) -> Result<bool> {
    if user.role != Role::Admin || !user.is_active {
        return Ok(false);
    }
    let has_other = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM users WHERE role = 'admin' AND is_active AND id <> $1) AS "exists!""#,
        user.id.0
    )
    .fetch_one(executor)
    .await?;
    Ok(!has_other)
}

/// Deletes the sessions of a user. Returns the number of those that were not ended before.
async fn delete_sessions(connection: &mut StoreTransaction, id: UserId) -> Result<usize> {
    let ends = sqlx::query_scalar!("DELETE FROM sessions WHERE user_id = $1 RETURNING end_reason", id.0)
        .fetch_all(connection)
        .await?;
    Ok(ends.iter().filter(|end| end.is_none()).count())
}
