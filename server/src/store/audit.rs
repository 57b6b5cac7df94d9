//! The audit log: the author, the action and the origin of each change.
//!
//! A row is written in the transaction of the change that it records, so that neither exists without the other. The
//! table rejects updates and deletes, and its months are dropped when their retention has ended.
//!
//! Anyone can cause refusals, such as failed sign-ins. They are therefore counted: one row stands for all refusals of the
//! same kind within an hour. Its count is the only value that the table allows to change, and only to grow.

mod pages;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use sqlx::PgExecutor;

use super::{Result, Store, pool::StoreTransaction};

/// The time in which refusals with the same key are counted in one row.
const REFUSAL_WINDOW: TimeDelta = TimeDelta::hours(1);

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
pub async fn record(connection: &mut StoreTransaction, entry: &AuditEntry) -> Result<()> {
    insert(connection, entry).await
}

async fn insert(executor: impl PgExecutor<'_>, entry: &AuditEntry) -> Result<()> {
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
    .execute(executor)
    .await?;
    Ok(())
}

impl Store {
    /// Inserts an entry without a change, such as a refusal.
    pub async fn audit(&self, entry: &AuditEntry) -> Result<()> {
        insert(self.pool(), entry).await
    }

    /// Records a refusal. All refusals with the same `repeat_key` within an hour are one row: the first inserts it, and
    /// each later one increases its count.
    pub async fn audit_refusal(&self, entry: &AuditEntry, repeat_key: &str) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        // Without the lock, two concurrent first refusals would both insert a row.
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", repeat_key).execute(&mut tx).await?;
        let counted = sqlx::query!(
            "UPDATE audit_log
                SET repeats = repeats + 1, last_at = $2,
                    has_other_addresses = has_other_addresses OR address IS DISTINCT FROM $4
              WHERE (at, id) = (SELECT at, id FROM audit_log WHERE repeat_key = $1 AND at > $3 AND at <= $2
                                 ORDER BY at DESC LIMIT 1)",
            repeat_key,
            entry.at,
            entry.at - REFUSAL_WINDOW,
            entry.address
        )
        .execute(&mut tx)
        .await?;
        if counted.rows_affected() == 0 {
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
            .execute(&mut tx)
            .await?;
        }
        tx.commit().await?;
        Ok(())
    }
}
