//! Alert channels: the destinations of messages. A channel names its secrets and contains none.

use chrono::{DateTime, Utc};
use milvaion_api::alerts::{AlertChannel, AlertChannelRow, MAX_ALERT_CHANNELS};
use milvaion_protocol::id::AlertChannelId;
use serde_json::Value;
use uuid::Uuid;

use super::SaveOutcome;
use crate::store::{
    Result, Store,
    audit::{self, AuditEntry},
};

struct RawChannel {
    id: Uuid,
    name: String,
    target: Value,
    is_enabled: bool,
    version: i32,
    rules: i64,
    last_sent_at: Option<DateTime<Utc>>,
    last_error: Option<String>,
    modified_at: DateTime<Utc>,
    modified_by: String,
}

impl RawChannel {
    /// Converts the row; `None` if a newer server has defined a destination that this version cannot read.
    fn into_row(self) -> Option<AlertChannelRow> {
        let target = serde_json::from_value(self.target).ok()?;
        Some(AlertChannelRow {
            id: AlertChannelId(self.id),
            version: self.version,
            definition: AlertChannel { name: self.name, target, is_enabled: self.is_enabled },
            rules: self.rules,
            last_sent_at: self.last_sent_at,
            last_error: self.last_error,
            modified_at: self.modified_at,
            modified_by: self.modified_by,
        })
    }
}

impl Store {
    /// Returns all channels by name, at most 50. A channel with a destination of a newer version is left out.
    pub async fn alert_channels(&self) -> Result<Vec<AlertChannelRow>> {
        self.read_alert_channels(None).await
    }

    /// Returns a channel, or `None` if there is none with this id.
    pub async fn alert_channel(&self, id: AlertChannelId) -> Result<Option<AlertChannelRow>> {
        Ok(self.read_alert_channels(Some(id)).await?.into_iter().next())
    }

    async fn read_alert_channels(&self, id: Option<AlertChannelId>) -> Result<Vec<AlertChannelRow>> {
        let rows = sqlx::query_as!(
            RawChannel,
            r#"SELECT c.*, (SELECT count(*) FROM alert_rule_channels u WHERE u.channel_id = c.id) AS "rules!"
                 FROM alert_channels c WHERE $1::uuid IS NULL OR c.id = $1 ORDER BY lower(c.name) LIMIT $2"#,
            id.map(|id| id.0),
            MAX_ALERT_CHANNELS
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().filter_map(RawChannel::into_row).collect())
    }

    /// Inserts a channel, or replaces it if `replaced` is the version that it still has. Messages that wait for another
    /// attempt are tried again at once.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](crate::store::StoreError) if PostgreSQL fails, or if another channel has the name.
    pub async fn save_alert_channel(
        &self,
        id: AlertChannelId,
        replaced: Option<i32>,
        channel: &AlertChannel,
        entry: &AuditEntry,
    ) -> Result<SaveOutcome> {
        let mut tx = self.pool().begin().await?;
        let target = serde_json::to_value(&channel.target).unwrap_or_default();
        let saved = match replaced {
            None => {
                let count = sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM alert_channels"#)
                    .fetch_one(&mut tx)
                    .await?;
                if count >= MAX_ALERT_CHANNELS {
                    return Ok(SaveOutcome::TooMany);
                }
                sqlx::query!(
                    "INSERT INTO alert_channels (id, name, target, is_enabled, modified_at, modified_by)
                     VALUES ($1, $2, $3, $4, $5, $6)",
                    id.0,
                    channel.name,
                    target,
                    channel.is_enabled,
                    entry.at,
                    entry.who
                )
                .execute(&mut tx)
                .await?
            }
            Some(version) => {
                sqlx::query!(
                "UPDATE alert_channels SET name = $2, target = $3, is_enabled = $4, modified_at = $5, modified_by = $6,
                            version = version + 1, last_error = NULL
                      WHERE id = $1 AND version = $7",
                id.0,
                channel.name,
                target,
                channel.is_enabled,
                entry.at,
                entry.who,
                version
            )
                .execute(&mut tx)
                .await?
            }
        };
        if saved.rows_affected() == 0 {
            return Ok(SaveOutcome::Changed);
        }
        sqlx::query!(
            "UPDATE alert_deliveries SET not_before = $2 WHERE channel_id = $1 AND not_before > $2",
            id.0,
            entry.at
        )
        .execute(&mut tx)
        .await?;
        audit::record(&mut tx, entry).await?;
        tx.commit().await?;
        Ok(SaveOutcome::Saved)
    }

    /// Deletes a channel that no rule uses, if its version is `version` or no version is given. Returns false if a rule
    /// uses it, if it does not exist or has another version.
    pub async fn delete_alert_channel(
        &self,
        id: AlertChannelId,
        version: Option<i32>,
        entry: &AuditEntry,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let done = sqlx::query!(
            "DELETE FROM alert_channels
              WHERE id = $1 AND ($2::int IS NULL OR version = $2)
                AND NOT EXISTS (SELECT 1 FROM alert_rule_channels WHERE channel_id = $1)",
            id.0,
            version
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
}
