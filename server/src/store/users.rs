//! People.
//!
//! A passphrase's hash leaves this file only in [`Credentials`], which cannot be printed. Everything else that is read
//! about a person is in [`UserRow`].

mod invites;
mod sign_in_throttle;

use chrono::{DateTime, Utc};
use milvaion_api::{
    permissions::Role,
    views::{CurrentUser, UserView},
};
use milvaion_protocol::id::UserId;
use serde_json::json;
use uuid::Uuid;

pub use invites::{InviteAcceptance, InviteRow, NewInvite, NewUser};
pub use sign_in_throttle::SignInThrottle;

use super::{
    Result, Store, StoreError,
    audit::{self, AuditEntry},
};

/// Somebody, as the table has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRow {
    /// Their id.
    pub id: UserId,
    /// Their name.
    pub name: String,
    /// Their e-mail address, in lower case.
    pub email: String,
    /// What they are.
    pub role: Role,
    /// False: they may not do anything, and their sessions are refused.
    pub is_active: bool,
    /// Since when.
    pub created_at: DateTime<Utc>,
    /// When they last signed in.
    pub last_sign_in_at: Option<DateTime<Utc>>,
}

impl UserRow {
    /// Who they are to the pages.
    #[must_use]
    pub fn me(&self) -> CurrentUser {
        CurrentUser { id: self.id, name: self.name.clone(), email: self.email.clone(), role: self.role }
    }

    /// Their line on the team page.
    #[must_use]
    pub fn view(&self) -> UserView {
        UserView { me: self.me(), created_at: self.created_at, last_sign_in_at: self.last_sign_in_at }
    }
}

/// Somebody and what proves them. Not `Debug`, so that no log can hold the hash.
pub struct Credentials {
    /// Who.
    pub user: UserRow,
    /// argon2id in PHC string form.
    pub passphrase_hash: String,
}

struct RawUser {
    id: Uuid,
    name: String,
    email: String,
    role: String,
    is_active: bool,
    created_at: DateTime<Utc>,
    last_sign_in_at: Option<DateTime<Utc>>,
}

impl TryFrom<RawUser> for UserRow {
    type Error = StoreError;

    fn try_from(raw: RawUser) -> Result<Self> {
        Ok(Self {
            id: UserId(raw.id),
            name: raw.name,
            email: raw.email,
            role: role("users", &raw.role)?,
            is_active: raw.is_active,
            created_at: raw.created_at,
            last_sign_in_at: raw.last_sign_in_at,
        })
    }
}

/// The role behind a stored word.
fn role(table: &'static str, slug: &str) -> Result<Role> {
    Role::from_slug(slug).ok_or_else(|| StoreError::Corrupt { table, column: "role", detail: slug.to_owned() })
}

impl Store {
    /// How many people there are, deactivated ones included.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn count_users(&self) -> Result<i64> {
        Ok(sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM users"#).fetch_one(self.pool()).await?)
    }

    /// Somebody by id.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn user(&self, id: UserId) -> Result<Option<UserRow>> {
        sqlx::query_as!(
            RawUser,
            "SELECT id, name, email, role, is_active, created_at, last_sign_in_at FROM users WHERE id = $1",
            id.0
        )
        .fetch_optional(self.pool())
        .await?
        .map(UserRow::try_from)
        .transpose()
    }

    /// Somebody by e-mail address, which must be in lower case.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn user_by_email(&self, email: &str) -> Result<Option<UserRow>> {
        sqlx::query_as!(
            RawUser,
            "SELECT id, name, email, role, is_active, created_at, last_sign_in_at FROM users WHERE email = $1",
            email
        )
        .fetch_optional(self.pool())
        .await?
        .map(UserRow::try_from)
        .transpose()
    }

    /// Somebody who may sign in, with what proves them. Deactivated people are not found.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn credentials(&self, email: &str) -> Result<Option<Credentials>> {
        let Some(row) = sqlx::query!(
            "SELECT id, name, email, role, is_active, created_at, last_sign_in_at, passphrase_hash
             FROM users WHERE email = $1 AND is_active",
            email
        )
        .fetch_optional(self.pool())
        .await?
        else {
            return Ok(None);
        };
        let user = UserRow::try_from(RawUser {
            id: row.id,
            name: row.name,
            email: row.email,
            role: row.role,
            is_active: row.is_active,
            created_at: row.created_at,
            last_sign_in_at: row.last_sign_in_at,
        })?;
        Ok(Some(Credentials { user, passphrase_hash: row.passphrase_hash }))
    }

    /// Everybody who is active, by name; at most 1,000.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn list_users(&self) -> Result<Vec<UserRow>> {
        sqlx::query_as!(
            RawUser,
            "SELECT id, name, email, role, is_active, created_at, last_sign_in_at FROM users
             WHERE is_active ORDER BY lower(name), id LIMIT 1000"
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(UserRow::try_from)
        .collect()
    }

    /// Notes that somebody signed in: when, a stronger hash if there is one, and an audit row, all or nothing.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn record_sign_in(
        &self,
        user: &UserRow,
        stronger_hash: Option<&str>,
        now: DateTime<Utc>,
        address: Option<String>,
    ) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        sqlx::query!(
            "UPDATE users SET last_sign_in_at = $2, passphrase_hash = coalesce($3, passphrase_hash) WHERE id = $1",
            user.id.0,
            now,
            stronger_hash
        )
        .execute(&mut *tx)
        .await?;
        let entry = AuditEntry::new(now, &user.email, "sign-in", format!("user:{}", user.id)).from(address);
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Lets somebody in again or keeps them out, and ends their sessions in the latter case. `by` is who decided.
    /// Returns whether there is such a person.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn set_user_active(
        &self,
        id: UserId,
        active: bool,
        by: &CurrentUser,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let changed =
            sqlx::query!("UPDATE users SET is_active = $2 WHERE id = $1", id.0, active).execute(&mut *tx).await?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        if !active {
            sqlx::query!("DELETE FROM sessions WHERE user_id = $1", id.0).execute(&mut *tx).await?;
        }
        let entry = AuditEntry::new(now, &by.email, "user.set-active", format!("user:{id}"))
            .change(None, Some(json!({ "isActive": active })));
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Makes somebody something else; it holds from their next request on. `by` is who decided. Returns whether there
    /// is such a person.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn set_user_role(&self, id: UserId, role: Role, by: &CurrentUser, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let before = sqlx::query_scalar!("SELECT role FROM users WHERE id = $1 FOR UPDATE", id.0)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(before) = before else { return Ok(false) };
        sqlx::query!("UPDATE users SET role = $2 WHERE id = $1", id.0, role.slug()).execute(&mut *tx).await?;
        let entry = AuditEntry::new(now, &by.email, "user.set-role", format!("user:{id}"))
            .change(Some(json!({ "role": before })), Some(json!({ "role": role.slug() })));
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }
}
