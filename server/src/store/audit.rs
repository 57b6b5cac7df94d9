//! The audit log: the author, the action and the origin of each change.
//!
//! A row is written in the transaction of the change that it records, so that neither exists without the other. The
//! table rejects updates and deletes.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use super::{Result, Store};

/// One action of a user or of the system, or an attempt at one.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Time of the action.
    pub at: DateTime<Utc>,
    /// Author: an e-mail address, or a name such as `system`.
    pub who: String,
    /// Action, as in `job.pause`.
    pub action: &'static str,
    /// Object of the action, as `kind:id`.
    pub object: String,
    /// State before the change. Must hold no secret.
    pub before: Option<Value>,
    /// State after the change. Must hold no secret.
    pub after: Option<Value>,
    /// Network address of the request, if there is one.
    pub address: Option<String>,
}

impl AuditEntry {
    /// Creates an entry without before, after and address.
    pub fn new(at: DateTime<Utc>, who: &str, action: &'static str, object: impl Into<String>) -> Self {
        Self { at, who: who.to_owned(), action, object: object.into(), before: None, after: None, address: None }
    }

    /// Adds the states before and after the change. Neither may hold a secret.
    #[must_use]
    pub fn change(self, before: Option<Value>, after: Option<Value>) -> Self {
        Self { before, after, ..self }
    }

    /// Adds the network address of the request.
    #[must_use]
    pub fn from(self, address: Option<String>) -> Self {
        Self { address, ..self }
    }
}

/// Inserts `entry` in the transaction of the change that it records.
///
/// # Errors
///
/// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; the transaction is then aborted, and the change with
/// it.
pub async fn record(connection: &mut PgConnection, entry: &AuditEntry) -> Result<()> {
    sqlx::query!(
        "INSERT INTO audit_log (at, who, action, object, before, after, address) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        entry.at,
        entry.who,
        entry.action,
        entry.object,
        entry.before,
        entry.after,
        entry.address
    )
    .execute(connection)
    .await?;
    Ok(())
}

impl Store {
    /// Inserts an entry without a change, such as a refusal.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn audit(&self, entry: &AuditEntry) -> Result<()> {
        let mut connection = self.pool().acquire().await?;
        record(&mut connection, entry).await
    }

    /// Inserts a refusal. Refusals with the same `repeat_key` are repeats of each other.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn audit_refusal(&self, entry: &AuditEntry, repeat_key: &str) -> Result<()> {
        sqlx::query!(
            "INSERT INTO audit_log (at, who, action, object, result, before, after, address, repeat_key)
             VALUES ($1, $2, $3, $4, 'refused', $5, $6, $7, $8)",
            entry.at,
            entry.who,
            entry.action,
            entry.object,
            entry.before,
            entry.after,
            entry.address,
            repeat_key
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Returns the newest `limit` entries about `object`, or about all objects, newest first. `limit` is at most 1,000.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn audit_entries(&self, object: Option<&str>, limit: i64) -> Result<Vec<AuditRow>> {
        Ok(sqlx::query_as!(
            AuditRow,
            "SELECT at, who, action, object, before, after, address FROM audit_log
             WHERE $1::text IS NULL OR object = $1 ORDER BY id DESC LIMIT $2",
            object,
            limit.clamp(1, 1_000)
        )
        .fetch_all(self.pool())
        .await?)
    }
}

/// One stored entry; see [`AuditEntry`].
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRow {
    /// Time of the action.
    pub at: DateTime<Utc>,
    /// Author.
    pub who: String,
    /// Action, as in `job.pause`.
    pub action: String,
    /// Object of the action, as `kind:id`.
    pub object: String,
    /// State before the change.
    pub before: Option<Value>,
    /// State after the change.
    pub after: Option<Value>,
    /// Network address of the request.
    pub address: Option<String>,
}
