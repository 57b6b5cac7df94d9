//! The singleton loops that operators disabled. Everything else about a loop is in Redis.

use std::collections::HashMap;

use milvaion_api::singletons::{LoopDisabled, MAX_LOOPS};

use super::{
    Result, Store,
    audit::{self, AuditEntry},
};

impl Store {
    /// Returns the disabled loops by name, at most [`MAX_LOOPS`], the latest ones.
    pub async fn disabled_loops(&self) -> Result<HashMap<String, LoopDisabled>> {
        let rows = sqlx::query!(
            "SELECT name, disabled_at, disabled_by FROM disabled_loops ORDER BY disabled_at DESC, name LIMIT $1",
            i64::try_from(MAX_LOOPS).unwrap_or(i64::MAX)
        )
        .fetch_all(self.pool())
        .await?;
        let disabled =
            rows.into_iter().map(|row| (row.name, LoopDisabled { at: row.disabled_at, by: row.disabled_by }));
        Ok(disabled.collect())
    }

    /// Returns the record of a disabled loop; `None` if the loop is enabled.
    pub async fn disabled_loop(&self, name: &str) -> Result<Option<LoopDisabled>> {
        Ok(sqlx::query_as!(
            LoopDisabled,
            "SELECT disabled_at AS at, disabled_by AS by FROM disabled_loops WHERE name = $1",
            name
        )
        .fetch_optional(self.pool())
        .await?)
    }

    /// Disables a loop. Returns false, and changes nothing, if it was disabled already.
    pub async fn disable_loop(&self, name: &str, entry: &AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let done = sqlx::query!(
            "INSERT INTO disabled_loops (name, disabled_at, disabled_by) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            name,
            entry.at,
            entry.who
        )
        .execute(&mut tx)
        .await?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        audit::record(&mut tx, entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Enables a loop. Returns false, and changes nothing, if it was enabled already.
    pub async fn enable_loop(&self, name: &str, entry: &AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let done = sqlx::query!("DELETE FROM disabled_loops WHERE name = $1", name).execute(&mut tx).await?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        audit::record(&mut tx, entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Deletes the record of a loop that was forgotten, and inserts an audit row.
    pub async fn forget_loop(&self, name: &str, entry: &AuditEntry) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        sqlx::query!("DELETE FROM disabled_loops WHERE name = $1", name).execute(&mut tx).await?;
        audit::record(&mut tx, entry).await?;
        tx.commit().await?;
        Ok(())
    }
}
