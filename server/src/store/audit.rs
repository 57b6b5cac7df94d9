//! Who changed what, when, from where.
//!
//! A row is written in the transaction of the change it tells of, so that neither exists without the other. The table
//! refuses to have a row changed or deleted.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use super::{Result, Store};

/// One thing somebody did, or tried to.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// When.
    pub at: DateTime<Utc>,
    /// Whose doing: an e-mail address, or what stands for one.
    pub who: String,
    /// The deed, as in `job.pause`.
    pub action: &'static str,
    /// What it was done to: `kind:id`.
    pub object: String,
    /// What changed, as it was. Must hold no secret.
    pub before: Option<Value>,
    /// What changed, as it is. Must hold no secret.
    pub after: Option<Value>,
    /// From where, if it came over the network.
    pub address: Option<String>,
}

impl AuditEntry {
    /// An entry without before, after and address.
    pub fn new(at: DateTime<Utc>, who: &str, action: &'static str, object: impl Into<String>) -> Self {
        Self { at, who: who.to_owned(), action, object: object.into(), before: None, after: None, address: None }
    }

    /// Adds what changed. Neither side may hold a secret.
    #[must_use]
    pub fn change(self, before: Option<Value>, after: Option<Value>) -> Self {
        Self { before, after, ..self }
    }

    /// Adds where it came from.
    #[must_use]
    pub fn from(self, address: Option<String>) -> Self {
        Self { address, ..self }
    }
}

/// Writes `entry` within the transaction of the change it tells of.
///
/// # Errors
///
/// When the database does not answer; the transaction is then lost, and the change with it.
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
    /// Writes an entry that tells of no change, such as a refusal.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn audit(&self, entry: &AuditEntry) -> Result<()> {
        let mut connection = self.pool().acquire().await?;
        record(&mut connection, entry).await
    }

    /// The newest `limit` entries about `object`, or about everything, newest first.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
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

/// One entry as the table has it; see [`AuditEntry`].
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRow {
    /// When.
    pub at: DateTime<Utc>,
    /// Whose doing.
    pub who: String,
    /// The deed.
    pub action: String,
    /// What it was done to: `kind:id`.
    pub object: String,
    /// What changed, as it was.
    pub before: Option<Value>,
    /// What changed, as it is.
    pub after: Option<Value>,
    /// From where.
    pub address: Option<String>,
}
