//! Alerts: the definitions of rules. The modules below hold the channels ([`channels`]), what fires ([`states`]), what the
//! conditions are looked for in ([`picture`]), and the messages ([`deliveries`]).
//!
//! A rule names its channels. The names are those of the channels at the time of reading: the table holds ids, so that a
//! renamed channel stays with its rules.

pub mod channels;
pub mod deliveries;
pub mod picture;
pub mod states;

use chrono::{DateTime, Utc};
use milvaion_api::alerts::{AlertCondition, AlertRule, AlertRuleRow, AlertSeverity, MAX_ALERT_RULES};
use milvaion_protocol::id::{AlertChannelId, AlertRuleId};
use serde_json::Value;
use uuid::Uuid;

use super::{
    Result, Store, StoreError,
    audit::{self, AuditEntry},
    pool::StoreTransaction,
};
use crate::domain::alerting::ActiveRule;

/// The result of saving a rule or a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// It is saved.
    Saved,
    /// It does not exist, or has another version.
    Changed,
    /// There are as many as may exist.
    TooMany,
}

struct RawRule {
    id: Uuid,
    name: String,
    condition: Value,
    jobs: Vec<String>,
    tags: Vec<String>,
    severity: String,
    is_enabled: bool,
    channels: Vec<String>,
    muted_until: Option<DateTime<Utc>>,
    version: i32,
    firing: i64,
    last_fired_at: Option<DateTime<Utc>>,
    modified_at: DateTime<Utc>,
    modified_by: String,
}

impl RawRule {
    /// Converts the row; `None` if a newer server has defined a condition that this version cannot read.
    fn into_row(self) -> Result<Option<AlertRuleRow>> {
        let Ok(condition) = serde_json::from_value::<AlertCondition>(self.condition) else { return Ok(None) };
        let definition = AlertRule {
            name: self.name,
            condition,
            jobs: self.jobs,
            tags: self.tags,
            severity: severity(&self.severity)?,
            channels: self.channels,
            is_enabled: self.is_enabled,
        };
        Ok(Some(AlertRuleRow {
            id: AlertRuleId(self.id),
            version: self.version,
            definition,
            muted_until: self.muted_until,
            firing: self.firing,
            last_fired_at: self.last_fired_at,
            modified_at: self.modified_at,
            modified_by: self.modified_by,
        }))
    }
}

/// Returns the severity of a word in the database.
pub(super) fn severity(word: &str) -> Result<AlertSeverity> {
    AlertSeverity::from_slug(word).ok_or_else(|| StoreError::Corrupt {
        table: "alert_rules",
        column: "severity",
        detail: word.to_owned(),
    })
}

impl Store {
    /// Returns all rules by name, at most 200. A rule with a condition of a newer version is left out.
    pub async fn alert_rules(&self) -> Result<Vec<AlertRuleRow>> {
        self.read_alert_rules(None).await
    }

    /// Returns a rule, or `None` if there is none with this id.
    pub async fn alert_rule(&self, id: AlertRuleId) -> Result<Option<AlertRuleRow>> {
        Ok(self.read_alert_rules(Some(id)).await?.into_iter().next())
    }

    async fn read_alert_rules(&self, id: Option<AlertRuleId>) -> Result<Vec<AlertRuleRow>> {
        let rows = sqlx::query_as!(
            RawRule,
            r#"SELECT r.id, r.name, r.condition, r.jobs, r.tags, r.severity, r.is_enabled, r.muted_until, r.version,
                      r.modified_at, r.modified_by,
                      coalesce((SELECT array_agg(c.name ORDER BY lower(c.name)) FROM alert_rule_channels u
                                  JOIN alert_channels c ON c.id = u.channel_id WHERE u.rule_id = r.id), '{}') AS "channels!",
                      (SELECT count(*) FROM alert_states s WHERE s.rule_id = r.id AND s.resolved_at IS NULL) AS "firing!",
                      (SELECT s.first_at FROM alert_states s WHERE s.rule_id = r.id ORDER BY s.id DESC LIMIT 1)
                          AS last_fired_at
                 FROM alert_rules r WHERE $1::uuid IS NULL OR r.id = $1 ORDER BY lower(r.name) LIMIT $2"#,
            id.map(|id| id.0),
            MAX_ALERT_RULES
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().filter_map(|row| row.into_row().transpose()).collect()
    }

    /// Returns the rules that are switched on.
    pub async fn active_alert_rules(&self) -> Result<Vec<ActiveRule>> {
        let rules = self.alert_rules().await?;
        let enabled = rules.into_iter().filter(|rule| rule.definition.is_enabled);
        Ok(enabled.map(|rule| ActiveRule { id: rule.id, definition: rule.definition }).collect())
    }

    /// Inserts a rule, or replaces it if `replaced` is the version that it still has. Its channels are given by id.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails, if another rule has the name, or if a channel was deleted meanwhile.
    pub async fn save_alert_rule(
        &self,
        id: AlertRuleId,
        replaced: Option<i32>,
        rule: &AlertRule,
        channels: &[AlertChannelId],
        entry: &AuditEntry,
    ) -> Result<SaveOutcome> {
        let mut tx = self.pool().begin().await?;
        let outcome = save_rule(&mut tx, id, replaced, rule, channels, entry).await?;
        if outcome == SaveOutcome::Saved {
            tx.commit().await?;
        }
        Ok(outcome)
    }

    /// Mutes a rule until an instant, or ends its mute. Returns false if the rule does not exist.
    pub async fn mute_alert_rule(
        &self,
        id: AlertRuleId,
        until: Option<DateTime<Utc>>,
        entry: &AuditEntry,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let done =
            sqlx::query!("UPDATE alert_rules SET muted_until = $2 WHERE id = $1", id.0, until).execute(&mut tx).await?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        audit::record(&mut tx, entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Deletes a rule with its alerts, if its version is `version` or no version is given. Returns false if it does not
    /// exist or has another version.
    pub async fn delete_alert_rule(&self, id: AlertRuleId, version: Option<i32>, entry: &AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let done =
            sqlx::query!("DELETE FROM alert_rules WHERE id = $1 AND ($2::int IS NULL OR version = $2)", id.0, version)
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

/// Inserts or replaces a rule in a transaction; see [`Store::save_alert_rule`].
///
/// # Errors
///
/// The same.
pub(super) async fn save_rule(
    tx: &mut StoreTransaction,
    id: AlertRuleId,
    replaced: Option<i32>,
    rule: &AlertRule,
    channels: &[AlertChannelId],
    entry: &AuditEntry,
) -> Result<SaveOutcome> {
    let condition = serde_json::to_value(&rule.condition).unwrap_or_default();
    let saved = match replaced {
        None => {
            let count =
                sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM alert_rules"#).fetch_one(&mut *tx).await?;
            if count >= MAX_ALERT_RULES {
                return Ok(SaveOutcome::TooMany);
            }
            sqlx::query!(
                "INSERT INTO alert_rules (id, name, condition, jobs, tags, severity, is_enabled, modified_at, modified_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                id.0,
                rule.name,
                condition,
                &rule.jobs,
                &rule.tags,
                rule.severity.slug(),
                rule.is_enabled,
                entry.at,
                entry.who
            )
            .execute(&mut *tx)
            .await?
        }
        Some(version) => {
            sqlx::query!(
                "UPDATE alert_rules SET name = $2, condition = $3, jobs = $4, tags = $5, severity = $6, is_enabled = $7,
                        modified_at = $8, modified_by = $9, version = version + 1
                  WHERE id = $1 AND version = $10",
                id.0,
                rule.name,
                condition,
                &rule.jobs,
                &rule.tags,
                rule.severity.slug(),
                rule.is_enabled,
                entry.at,
                entry.who,
                version
            )
            .execute(&mut *tx)
            .await?
        }
    };
    if saved.rows_affected() == 0 {
        return Ok(SaveOutcome::Changed);
    }
    let channels: Vec<Uuid> = channels.iter().map(|channel| channel.0).collect();
    sqlx::query!("DELETE FROM alert_rule_channels WHERE rule_id = $1", id.0).execute(&mut *tx).await?;
    sqlx::query!(
        "INSERT INTO alert_rule_channels (rule_id, channel_id) SELECT DISTINCT $1::uuid, c FROM unnest($2::uuid[]) AS c",
        id.0,
        &channels
    )
    .execute(&mut *tx)
    .await?;
    audit::record(tx, entry).await?;
    Ok(SaveOutcome::Saved)
}
