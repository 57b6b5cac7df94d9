//! The messages about alerts: an outbox whose rows are claimed, sent and marked by any server.
//!
//! A message holds all alerts of one rule that are due for one channel, so that 2,000 failures are one message. Rows that
//! were part of a message stay together: a receiver that got it twice can tell by its id, which no attempt changes.
//!
//! A claim moves the rows' next attempt behind the time that an attempt takes at most, so that another server does not
//! send them too, and so that the rows of a server that was killed are sent by another one.

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::alerts::{AlertSeverity, AlertTarget};
use milvaion_protocol::id::{AlertChannelId, AlertId, AlertRuleId, JobId, OccurrenceId};
use uuid::Uuid;

use super::{severity, states::GROUP_WAIT};
use crate::{
    domain::alert_message::AlertItem,
    store::{Result, Store},
};

/// The most rows of one message.
const MAX_MESSAGE_ROWS: i64 = 2_000;
/// The time after which a claimed message may be sent by another server. Longer than an attempt takes.
const CLAIM_TIME: TimeDelta = TimeDelta::seconds(60);

/// A message that this server has claimed.
#[derive(Clone, Debug)]
pub struct ClaimedMessage {
    /// Identifier, the same for each attempt.
    pub id: Uuid,
    /// The rule.
    pub rule_id: AlertRuleId,
    /// Name of the rule.
    pub rule_name: String,
    /// Severity of the rule.
    pub severity: AlertSeverity,
    /// The channel.
    pub channel_id: AlertChannelId,
    /// Name of the channel.
    pub channel_name: String,
    /// Destination of the channel; none if a newer server has defined it.
    pub target: Option<AlertTarget>,
    /// True if the channel is switched on.
    pub is_enabled: bool,
    /// Number of this attempt, from 1.
    pub attempt: i32,
    /// Time at which the oldest row was inserted.
    pub created_at: DateTime<Utc>,
    /// The alerts, the oldest first.
    pub alerts: Vec<AlertItem>,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// The receiver accepted the message.
    Sent,
    /// The attempt failed; the next one is due at this time.
    Retry {
        /// The error with its remedy.
        error: String,
        /// The time of the next attempt.
        at: DateTime<Utc>,
    },
    /// The message is given up.
    GivenUp {
        /// The error of the last attempt.
        error: String,
    },
}

impl Store {
    /// Claims the message that has been due the longest, except those whose channel another server is claiming from.
    /// Returns `None` if none is due.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](crate::store::StoreError) if PostgreSQL fails; then nothing is claimed.
    pub async fn claim_alert_message(&self, now: DateTime<Utc>) -> Result<Option<ClaimedMessage>> {
        let mut tx = self.pool().begin().await?;
        // The lock of the channel keeps two servers from claiming the parts of one message.
        let head = sqlx::query!(
            r#"SELECT h.rule_id, h.message_id, c.id AS channel_id, c.name, c.target, c.is_enabled
                 FROM (SELECT rule_id, channel_id, message_id, not_before, id FROM alert_deliveries
                        WHERE not_before <= $1 ORDER BY not_before, id LIMIT 100) h
                 JOIN alert_channels c ON c.id = h.channel_id
                ORDER BY h.not_before, h.id LIMIT 1 FOR UPDATE OF c SKIP LOCKED"#,
            now
        )
        .fetch_optional(&mut tx)
        .await?;
        let Some(head) = head else { return Ok(None) };
        let claimed = sqlx::query!(
            r#"WITH due AS (
                   SELECT id FROM alert_deliveries
                    WHERE rule_id = $1 AND channel_id = $2 AND message_id IS NOT DISTINCT FROM $3 AND not_before <= $4
                    ORDER BY not_before, id LIMIT $5 FOR UPDATE SKIP LOCKED
               ),
               claimed AS (
                   UPDATE alert_deliveries SET attempts = attempts + 1, not_before = $6, message_id = coalesce(message_id, $7)
                    WHERE id = ANY (ARRAY (SELECT id FROM due))
                   RETURNING alert_id, attempts, created_at, message_id
               )
               SELECT c.message_id AS "message_id!", c.attempts AS "attempts!", c.created_at AS "created_at!",
                      s.id AS "id!", s.title AS "title!", s.detail AS "detail!", s.job_id, s.job_name, s.occurrence_id,
                      s.count AS "count!", s.first_at AS "first_at!", s.last_at AS "last_at!", s.resolved_at, s.resolution,
                      r.name AS "rule_name!", r.severity AS "severity!"
                 FROM claimed c JOIN alert_states s ON s.id = c.alert_id JOIN alert_rules r ON r.id = s.rule_id
                ORDER BY s.first_at, s.id"#,
            head.rule_id,
            head.channel_id,
            head.message_id,
            // What joins a new message soon is part of it already: an alert that is resolved at once is one message.
            if head.message_id.is_none() { now + GROUP_WAIT } else { now },
            MAX_MESSAGE_ROWS,
            now + CLAIM_TIME,
            AlertId::from_parts(now, rand::random()).0
        )
        .fetch_all(&mut tx)
        .await?;
        tx.commit().await?;
        let Some(first) = claimed.first() else { return Ok(None) };
        let mut message = ClaimedMessage {
            id: first.message_id,
            rule_id: AlertRuleId(head.rule_id),
            rule_name: first.rule_name.clone(),
            severity: severity(&first.severity)?,
            channel_id: AlertChannelId(head.channel_id),
            channel_name: head.name,
            target: serde_json::from_value(head.target).ok(),
            is_enabled: head.is_enabled,
            attempt: claimed.iter().map(|row| row.attempts).max().unwrap_or(1),
            created_at: claimed.iter().map(|row| row.created_at).min().unwrap_or(now),
            alerts: Vec::with_capacity(claimed.len()),
        };
        for row in claimed {
            // An alert that fired and was resolved meanwhile has two rows.
            if message.alerts.last().is_some_and(|last| last.id.0 == row.id) {
                continue;
            }
            message.alerts.push(AlertItem {
                id: AlertId(row.id),
                is_resolved: row.resolved_at.is_some(),
                title: row.title,
                detail: row.detail,
                job_id: row.job_id.map(JobId),
                job_name: row.job_name,
                occurrence_id: row.occurrence_id.map(OccurrenceId),
                count: row.count,
                first_at: row.first_at,
                last_at: row.last_at,
                resolved_at: row.resolved_at,
                resolution: row.resolution,
            });
        }
        Ok(Some(message))
    }

    /// Records the result of an attempt, for the message and for its channel.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](crate::store::StoreError) if PostgreSQL fails; then the message is sent again.
    pub async fn settle_alert_message(
        &self,
        message: &ClaimedMessage,
        result: &DeliveryResult,
        now: DateTime<Utc>,
    ) -> Result<()> {
        let (error, retry_at) = match result {
            DeliveryResult::Sent => (None, None),
            DeliveryResult::Retry { error, at } => (Some(error.as_str()), Some(*at)),
            DeliveryResult::GivenUp { error } => (Some(error.as_str()), None),
        };
        sqlx::query!(
            "WITH settled AS (
                UPDATE alert_deliveries
                   SET not_before = $3, error = coalesce($2, error),
                       sent_at = CASE WHEN $2::text IS NULL THEN $4::timestamptz END,
                       failed_at = CASE WHEN $2 IS NOT NULL AND $3::timestamptz IS NULL THEN $4 END
                 WHERE message_id = $1
             )
             UPDATE alert_channels SET last_error = $2, last_sent_at = CASE WHEN $2 IS NULL THEN $4 ELSE last_sent_at END
              WHERE id = $5",
            message.id,
            error,
            retry_at,
            now,
            message.channel_id.0
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Returns the time at which the next message is due, if there is one.
    pub async fn next_alert_message_at(&self) -> Result<Option<DateTime<Utc>>> {
        Ok(sqlx::query_scalar!("SELECT min(not_before) FROM alert_deliveries WHERE not_before IS NOT NULL")
            .fetch_one(self.pool())
            .await?)
    }
}
