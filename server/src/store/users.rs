//! Users.
//!
//! A passphrase hash leaves this file only in [`Credentials`], which cannot be printed. All other data about a user is
//! in [`UserRow`].

mod account;
mod known_devices;
mod one_time_links;
mod sign_in_throttle;
mod team;

use chrono::{DateTime, Utc};
use milvaion_api::{permissions::Role, views::CurrentUser};
use milvaion_protocol::id::UserId;
use uuid::Uuid;

pub use account::NewPassphrase;
pub use known_devices::DeviceAttempt;
pub use one_time_links::{LinkAcceptance, LinkCreation, LinkedUser, MAX_OPEN_INVITES, NewLink, OpenLink};
pub use sign_in_throttle::{SignInThrottle, ThrottleSlot};
pub use team::TeamChange;

use super::{
    Result, Store, StoreError,
    audit::{self, AuditEntry},
    pool::StoreTransaction,
};

/// A stored user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRow {
    /// Identifier.
    pub id: UserId,
    /// Display name.
    pub name: String,
    /// E-mail address, in lower case.
    pub email: String,
    /// Role.
    pub role: Role,
    /// False if the user is deactivated: every action and every session is refused.
    pub is_active: bool,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Time of the last sign-in.
    pub last_sign_in_at: Option<DateTime<Utc>>,
    /// Last use of a session, to the minute.
    pub last_seen_at: Option<DateTime<Utc>>,
    /// Time of the deactivation; none while the user is active.
    pub deactivated_at: Option<DateTime<Utc>>,
    /// Last change of the passphrase; none since the user was created.
    pub passphrase_changed_at: Option<DateTime<Utc>>,
}

impl UserRow {
    /// Returns the user as the pages show the signed-in user.
    #[must_use]
    pub fn me(&self) -> CurrentUser {
        CurrentUser { id: self.id, name: self.name.clone(), email: self.email.clone(), role: self.role }
    }
}

/// A user with the passphrase hash. Not `Debug`, so that no log can contain the hash.
pub struct Credentials {
    /// The user.
    pub user: UserRow,
    /// Passphrase hash: argon2id in PHC string format.
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
    last_seen_at: Option<DateTime<Utc>>,
    deactivated_at: Option<DateTime<Utc>>,
    passphrase_changed_at: Option<DateTime<Utc>>,
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
            last_seen_at: raw.last_seen_at,
            deactivated_at: raw.deactivated_at,
            passphrase_changed_at: raw.passphrase_changed_at,
        })
    }
}

/// Parses a stored role.
pub(super) fn role(table: &'static str, slug: &str) -> Result<Role> {
    Role::from_slug(slug).ok_or_else(|| StoreError::Corrupt { table, column: "role", detail: slug.to_owned() })
}

/// Key of the advisory lock for decisions that depend on other users or on invitations. It must differ from the keys of
/// other locks.
const USERS_LOCK_KEY: i64 = 0x70_65_6f_70_6c_65;

/// Waits for the lock of all decisions that depend on other users or on invitations, such as the one about the last
/// Admin. It is held until the end of the transaction.
async fn lock_users(connection: &mut StoreTransaction) -> Result<()> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", USERS_LOCK_KEY).execute(connection).await?;
    Ok(())
}

/// Locks the row of a user until the end of the transaction and returns it. Every transaction that changes sessions or
/// links of a user locks the user first, so that two of them cannot wait for each other.
pub(super) async fn lock_user(connection: &mut StoreTransaction, id: UserId) -> Result<Option<UserRow>> {
    sqlx::query_as!(
        RawUser,
        "SELECT id, name, email, role, is_active, created_at, last_sign_in_at, last_seen_at, deactivated_at,
                passphrase_changed_at
         FROM users WHERE id = $1 FOR UPDATE",
        id.0
    )
    .fetch_optional(connection)
    .await?
    .map(UserRow::try_from)
    .transpose()
}

impl Store {
    /// Returns the number of users, deactivated users included.
    pub async fn count_users(&self) -> Result<i64> {
        Ok(sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM users"#).fetch_one(self.pool()).await?)
    }

    /// Returns a user by id, or `None` if there is none.
    pub async fn user(&self, id: UserId) -> Result<Option<UserRow>> {
        sqlx::query_as!(
            RawUser,
            "SELECT id, name, email, role, is_active, created_at, last_sign_in_at, last_seen_at, deactivated_at,
                    passphrase_changed_at
             FROM users WHERE id = $1",
            id.0
        )
        .fetch_optional(self.pool())
        .await?
        .map(UserRow::try_from)
        .transpose()
    }

    /// Returns a user by e-mail address, which must be in lower case, or `None` if there is none.
    pub async fn user_by_email(&self, email: &str) -> Result<Option<UserRow>> {
        sqlx::query_as!(
            RawUser,
            "SELECT id, name, email, role, is_active, created_at, last_sign_in_at, last_seen_at, deactivated_at,
                    passphrase_changed_at
             FROM users WHERE email = $1",
            email
        )
        .fetch_optional(self.pool())
        .await?
        .map(UserRow::try_from)
        .transpose()
    }

    /// Returns an active user with the passphrase hash, or `None`. Deactivated users are not found.
    pub async fn credentials(&self, email: &str) -> Result<Option<Credentials>> {
        let Some(row) = sqlx::query!(
            "SELECT id, name, email, role, is_active, created_at, last_sign_in_at, last_seen_at, deactivated_at,
                    passphrase_changed_at, passphrase_hash
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
            last_seen_at: row.last_seen_at,
            deactivated_at: row.deactivated_at,
            passphrase_changed_at: row.passphrase_changed_at,
        })?;
        Ok(Some(Credentials { user, passphrase_hash: row.passphrase_hash }))
    }

    /// Returns all users by name, deactivated users included, at most 1,000.
    pub async fn list_users(&self) -> Result<Vec<UserRow>> {
        sqlx::query_as!(
            RawUser,
            "SELECT id, name, email, role, is_active, created_at, last_sign_in_at, last_seen_at, deactivated_at,
                    passphrase_changed_at
             FROM users ORDER BY lower(name), id LIMIT 1000"
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(UserRow::try_from)
        .collect()
    }

    /// Records a sign-in: its time, a stronger passphrase hash if there is one, and an audit row, all or nothing. If the
    /// passphrase was changed since `user` was read, the stronger hash is of the old one and is not stored.
    pub async fn record_sign_in(
        &self,
        user: &UserRow,
        stronger_hash: Option<&str>,
        now: DateTime<Utc>,
        address: Option<String>,
    ) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        sqlx::query!(
            "UPDATE users
             SET last_sign_in_at = $2,
                 passphrase_hash = CASE WHEN passphrase_changed_at IS NOT DISTINCT FROM $4
                                        THEN coalesce($3, passphrase_hash) ELSE passphrase_hash END
             WHERE id = $1",
            user.id.0,
            now,
            stronger_hash,
            user.passphrase_changed_at
        )
        .execute(&mut tx)
        .await?;
        let entry = AuditEntry::new(now, &user.email, "sign-in", format!("user:{}", user.id)).from(address);
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(())
    }
}
