//! API tokens. Only the hash of a secret is stored.
//!
//! A token is never deleted while its owner exists: its record says who used which rights, until when. What a token may
//! do is read from the database with each request, so that a revocation, a deactivated owner or a lower role takes
//! effect with the next one.

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::{
    page::{ListPage, effective_limit},
    permissions::Role,
    tokens::{EXPIRY_WARNING_DAYS, TOKEN_PREFIX, TokenRow, TokenState},
    views::CurrentUser,
};
use milvaion_protocol::id::{TokenId, UserId};
use serde_json::json;
use uuid::Uuid;

use super::{
    Result, Store,
    audit::{self, AuditEntry},
    users::role,
};

/// The maximum number of tokens in a list.
const MAX_LISTED_TOKENS: i64 = 1_000;

/// A token to insert.
#[derive(Clone, Debug)]
pub struct StoredToken {
    /// Identifier.
    pub id: TokenId,
    /// Owner; none for a service token.
    pub owner: Option<UserId>,
    /// Name.
    pub name: String,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// Last four characters of the secret.
    pub hint: String,
    /// Role.
    pub role: Role,
    /// True if the token may only read.
    pub read_only: bool,
    /// Tag of the jobs that it is limited to.
    pub tag: Option<String>,
    /// Lifetime in days; none means no end.
    pub lifetime_days: Option<u32>,
    /// Time of the end.
    pub expires_at: Option<DateTime<Utc>>,
}

/// The rights of a request with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPrincipal {
    /// Identifier of the token.
    pub id: TokenId,
    /// Name and last characters of the secret, for the audit log.
    pub label: String,
    /// The owner with the role that applies; for a service token, a user with the id of the token.
    pub user: CurrentUser,
    /// True if the token may only read.
    pub read_only: bool,
    /// Tag of the jobs that it is limited to.
    pub tag: Option<String>,
    /// State.
    pub state: TokenState,
    /// Last use, to the minute.
    pub last_used_at: Option<DateTime<Utc>>,
}

struct RawToken {
    id: Uuid,
    owner: Option<String>,
    name: String,
    role: String,
    read_only: bool,
    tag: Option<String>,
    hint: String,
    created_at: DateTime<Utc>,
    created_by: String,
    expires_at: Option<DateTime<Utc>>,
    rotated_at: Option<DateTime<Utc>>,
    revoked_at: Option<DateTime<Utc>>,
    last_used_at: Option<DateTime<Utc>>,
    last_used_address: Option<String>,
    last_used_route: Option<String>,
}

/// Returns the state of a token at `now`.
fn state(now: DateTime<Utc>, expires_at: Option<DateTime<Utc>>, is_rotated: bool, is_revoked: bool) -> TokenState {
    if is_revoked {
        TokenState::Revoked
    } else if expires_at.is_some_and(|at| at <= now) {
        TokenState::Expired
    } else if is_rotated {
        TokenState::Rotated
    } else {
        TokenState::Active
    }
}

impl RawToken {
    fn row(self, now: DateTime<Utc>) -> Result<TokenRow> {
        let state = state(now, self.expires_at, self.rotated_at.is_some(), self.revoked_at.is_some());
        let warned_from = now + TimeDelta::days(EXPIRY_WARNING_DAYS);
        Ok(TokenRow {
            id: TokenId(self.id),
            name: self.name,
            owner: self.owner,
            role: role("api_tokens", &self.role)?,
            read_only: self.read_only,
            tag: self.tag,
            hint: self.hint,
            state,
            created_at: self.created_at,
            created_by: self.created_by,
            expires_at: self.expires_at,
            expires_soon: state == TokenState::Active && self.expires_at.is_some_and(|at| at <= warned_from),
            last_used_at: self.last_used_at,
            last_used_address: self.last_used_address,
            last_used_route: self.last_used_route,
            revoked_at: self.revoked_at,
        })
    }
}

impl Store {
    /// Returns the tokens of a user, or all tokens without `owner`, newest first, at most 1,000.
    pub async fn tokens(&self, owner: Option<UserId>, now: DateTime<Utc>) -> Result<Vec<TokenRow>> {
        self.tokens_after(owner, None, MAX_LISTED_TOKENS, now).await
    }

    /// Returns a page of the tokens of a user, or of all tokens without `owner`, newest first. It begins after the token
    /// `after`, and has `limit` rows, or 50 without it.
    pub async fn token_page(
        &self,
        owner: Option<UserId>,
        after: Option<TokenId>,
        limit: Option<u32>,
        now: DateTime<Utc>,
    ) -> Result<ListPage<TokenRow>> {
        let limit = effective_limit(limit.unwrap_or_default());
        let mut rows = self.tokens_after(owner, after, i64::from(limit) + 1, now).await?;
        let has_more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = rows.last().filter(|_| has_more).map(|last| last.id.to_string());
        Ok(ListPage { rows, next })
    }

    async fn tokens_after(
        &self,
        owner: Option<UserId>,
        after: Option<TokenId>,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<TokenRow>> {
        let rows = sqlx::query_as!(
            RawToken,
            r#"SELECT t.id, u.email AS "owner?", t.name, t.role, t.read_only, t.tag, t.hint, t.created_at, t.created_by,
                      t.expires_at, t.rotated_at, t.revoked_at, t.last_used_at, t.last_used_address, t.last_used_route
                 FROM api_tokens t LEFT JOIN users u ON u.id = t.user_id
                WHERE ($1::uuid IS NULL OR t.user_id = $1)
                  AND ($3::uuid IS NULL
                       OR (t.created_at, t.id) < (SELECT a.created_at, a.id FROM api_tokens a WHERE a.id = $3))
                ORDER BY t.created_at DESC, t.id DESC LIMIT $2"#,
            owner.map(|owner| owner.0),
            limit,
            after.map(|after| after.0)
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(|row| row.row(now)).collect()
    }

    /// Returns a token and its owner, or `None` if it does not exist.
    pub async fn token(&self, id: TokenId, now: DateTime<Utc>) -> Result<Option<(TokenRow, Option<UserId>)>> {
        let row = sqlx::query!(
            r#"SELECT t.user_id, u.email AS "owner?", t.name, t.role, t.read_only, t.tag, t.hint, t.created_at, t.created_by,
                      t.expires_at, t.rotated_at, t.revoked_at, t.last_used_at, t.last_used_address, t.last_used_route
                 FROM api_tokens t LEFT JOIN users u ON u.id = t.user_id WHERE t.id = $1"#,
            id.0
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        let raw = RawToken {
            id: id.0,
            owner: row.owner,
            name: row.name,
            role: row.role,
            read_only: row.read_only,
            tag: row.tag,
            hint: row.hint,
            created_at: row.created_at,
            created_by: row.created_by,
            expires_at: row.expires_at,
            rotated_at: row.rotated_at,
            revoked_at: row.revoked_at,
            last_used_at: row.last_used_at,
            last_used_address: row.last_used_address,
            last_used_route: row.last_used_route,
        };
        Ok(Some((raw.row(now)?, row.user_id.map(UserId))))
    }

    /// Returns the rights of the token with this hash of its secret, whatever its state, or `None` if it does not exist.
    pub async fn token_principal(&self, hash: &[u8; 32], now: DateTime<Utc>) -> Result<Option<TokenPrincipal>> {
        let row = sqlx::query!(
            r#"SELECT t.id, t.name, t.hint, t.role, t.read_only, t.tag, t.expires_at, t.rotated_at, t.revoked_at, t.last_used_at,
                      t.user_id, u.name AS "user_name?", u.email AS "user_email?", u.role AS "user_role?",
                      u.is_active AS "user_is_active?"
                 FROM api_tokens t LEFT JOIN users u ON u.id = t.user_id WHERE t.token_hash = $1"#,
            &hash[..]
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        let own = role("api_tokens", &row.role)?;
        let user = match (row.user_id, row.user_name, row.user_email, row.user_role) {
            (Some(id), Some(name), Some(email), Some(owner)) => {
                CurrentUser { id: UserId(id), name, email, role: own.min(role("users", &owner)?) }
            }
            _ => CurrentUser {
                id: UserId(row.id),
                name: row.name.clone(),
                email: format!("service:{}", row.name),
                role: own,
            },
        };
        let is_revoked = row.revoked_at.is_some() || row.user_is_active == Some(false);
        Ok(Some(TokenPrincipal {
            id: TokenId(row.id),
            label: format!("{} ({TOKEN_PREFIX}…{})", row.name, row.hint),
            user,
            read_only: row.read_only,
            tag: row.tag,
            state: state(now, row.expires_at, row.rotated_at.is_some(), is_revoked),
            last_used_at: row.last_used_at,
        }))
    }

    /// Stores the last use of a token.
    pub async fn note_token_use(
        &self,
        id: TokenId,
        now: DateTime<Utc>,
        address: Option<&str>,
        route: &str,
    ) -> Result<()> {
        sqlx::query!(
            "UPDATE api_tokens SET last_used_at = $2, last_used_address = $3, last_used_route = $4 WHERE id = $1",
            id.0,
            now,
            address,
            route
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Inserts a token with the audit row `entry`, unless its owner, or the installation for a service token, has `most`
    /// active ones. Returns false if so.
    pub async fn insert_token(&self, token: &StoredToken, most: i64, entry: AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let lock = format!("api_tokens:{}", token.owner.map(|owner| owner.to_string()).unwrap_or_default());
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock).execute(&mut tx).await?;
        let active = sqlx::query_scalar!(
            r#"SELECT count(*) AS "n!" FROM api_tokens
                WHERE user_id IS NOT DISTINCT FROM $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)"#,
            token.owner.map(|owner| owner.0),
            entry.at
        )
        .fetch_one(&mut tx)
        .await?;
        if active >= most {
            return Ok(false);
        }
        insert(&mut tx, token, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Inserts the token that replaces `old`, which works until `overlap_ends`, with the audit row `entry`. Returns false
    /// if `old` is revoked, expired or rotated already.
    pub async fn rotate_token(
        &self,
        old: TokenId,
        new: &StoredToken,
        overlap_ends: DateTime<Utc>,
        entry: AuditEntry,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let rotated = sqlx::query!(
            "UPDATE api_tokens SET rotated_at = $2, expires_at = least(expires_at, $3)
              WHERE id = $1 AND rotated_at IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)",
            old.0,
            entry.at,
            overlap_ends
        )
        .execute(&mut tx)
        .await?;
        if rotated.rows_affected() == 0 {
            return Ok(false);
        }
        insert(&mut tx, new, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Returns the lifetime of a token in days; none means no end.
    pub async fn token_lifetime(&self, id: TokenId) -> Result<Option<u32>> {
        let days = sqlx::query_scalar!("SELECT lifetime_days FROM api_tokens WHERE id = $1", id.0)
            .fetch_optional(self.pool())
            .await?;
        Ok(days.flatten().and_then(|days| u32::try_from(days).ok()))
    }

    /// Revokes a token with the audit row `entry`. Returns false if it is revoked already.
    pub async fn revoke_token(&self, id: TokenId, entry: AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let done =
            sqlx::query!("UPDATE api_tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL", id.0, entry.at)
                .execute(&mut tx)
                .await?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }
}

async fn insert(tx: &mut super::pool::StoreTransaction, token: &StoredToken, entry: &AuditEntry) -> Result<()> {
    sqlx::query!(
        "INSERT INTO api_tokens (id, user_id, name, token_hash, hint, role, read_only, tag, lifetime_days, expires_at,
                                 created_at, created_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        token.id.0,
        token.owner.map(|owner| owner.0),
        token.name,
        &token.hash[..],
        token.hint,
        token.role.slug(),
        token.read_only,
        token.tag,
        token.lifetime_days.and_then(|days| i32::try_from(days).ok()),
        token.expires_at,
        entry.at,
        entry.who
    )
    .execute(&mut *tx)
    .await?;
    let after = json!({
        "name": token.name, "role": token.role.slug(), "readOnly": token.read_only, "tag": token.tag,
        "expiresAt": token.expires_at, "service": token.owner.is_none()
    });
    audit::record(tx, &entry.clone().change(None, Some(after))).await
}
