//! What fires: alerts are inserted, counted, resolved and announced here.
//!
//! A statement that changes alerts also inserts the messages about the change, in its transaction. A crash therefore
//! loses neither. Two servers that evaluate at once are harmless: an event is deleted by one of them, a rule has one alert
//! for each group key at a time, and an alert is announced once.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::{
    alerts::{Alert, AlertFilter, AlertMessageStatus, FiringAlerts},
    failures::FailureCause,
    page::{self, ListPage},
};
use milvaion_protocol::id::{AlertId, AlertRuleId, JobId, OccurrenceId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::severity;
use crate::{
    domain::alerting::{ActiveRule, AlertEvent, AlertJob, Finding, match_events},
    store::{Result, Store, StoreError, pool::StoreTransaction},
};

/// The most events that one transaction applies the rules to.
pub const EVENT_BATCH: i64 = 5_000;
/// The most alerts of one rule that fire at once. Further causes are counted in one alert.
pub const MAX_FIRING_PER_RULE: usize = 1_000;
/// The group key of the alert that counts further causes.
const OTHERS_KEY: &str = "others";
/// The time after which an alert about events that have no end is resolved.
pub const QUIET_TIME: TimeDelta = TimeDelta::minutes(15);
/// The time after which an alert about a background task is resolved if no server has found it again.
pub const SERVICE_QUIET_TIME: TimeDelta = TimeDelta::minutes(2);
/// The time for which resolved alerts are kept.
pub const ALERT_RETENTION: TimeDelta = TimeDelta::days(90);
/// The time from the begin of an alert to its message, in which further alerts join the message.
pub const GROUP_WAIT: TimeDelta = TimeDelta::seconds(10);
/// The least time between two messages of a rule over one channel.
pub const GROUP_INTERVAL: TimeDelta = TimeDelta::seconds(60);
/// The most alerts that one statement announces, or that one condition resolves at once; the next tick continues.
const CHANGE_BATCH: i64 = 1_000;
/// The most alerts that one call examines for their resolution. Each costs some look-ups.
const EXAMINED_BATCH: i64 = 500;

/// A position among the firing alerts; the default is before the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlertPosition {
    rule_id: Uuid,
    group_key: String,
}

/// The effect of applying rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AlertChanges {
    /// Events that were taken.
    pub events: usize,
    /// Alerts that began to fire.
    pub started: usize,
    /// Alerts that were resolved.
    pub resolved: usize,
}

impl std::ops::AddAssign for AlertChanges {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.started += other.started;
        self.resolved += other.resolved;
    }
}

impl Store {
    /// Takes at most [`EVENT_BATCH`] events and applies rules to them.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then the events are still there.
    pub async fn apply_alert_events(&self, rules: &[ActiveRule], now: DateTime<Utc>) -> Result<AlertChanges> {
        let mut tx = self.pool().begin().await?;
        let rows = sqlx::query!(
            r#"WITH taken AS (
                   DELETE FROM alert_events WHERE id = ANY (ARRAY (
                       SELECT id FROM alert_events ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
                   RETURNING *
               )
               SELECT t.id AS "id!", t.kind AS "kind!", t.at AS "at!", t.job_id, t.job_name, t.occurrence_id, t.cause,
                      t.subject, t.detail, j.key, j.tags AS "tags?"
                 FROM taken t LEFT JOIN LATERAL (SELECT key, tags FROM jobs j WHERE j.id = t.job_id OFFSET 0) j ON true
                ORDER BY t.id"#,
            EVENT_BATCH
        )
        .fetch_all(&mut tx)
        .await?;
        let events: Vec<AlertEvent> = rows
            .into_iter()
            .map(|row| AlertEvent {
                kind: row.kind,
                at: row.at,
                job: row.job_id.map(|id| AlertJob {
                    id: JobId(id),
                    name: row.job_name.unwrap_or_default(),
                    key: row.key,
                    tags: row.tags.unwrap_or_default(),
                }),
                occurrence_id: row.occurrence_id.map(OccurrenceId),
                cause: row.cause.as_deref().and_then(FailureCause::parse),
                subject: row.subject,
                detail: row.detail.unwrap_or_default(),
            })
            .collect();
        if events.is_empty() {
            return Ok(AlertChanges::default());
        }
        let findings = match_events(rules, &events);
        let started = fire(&mut tx, findings, now).await?;
        tx.commit().await?;
        Ok(AlertChanges { events: events.len(), started, resolved: 0 })
    }

    /// Makes the alerts of lasting conditions equal to what was found: fires new ones, and resolves those of `rules` that
    /// were not found.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then nothing changed.
    pub async fn apply_alert_conditions(
        &self,
        rules: &[AlertRuleId],
        findings: Vec<Finding>,
        now: DateTime<Utc>,
    ) -> Result<AlertChanges> {
        let mut tx = self.pool().begin().await?;
        let ids: Vec<Uuid> = rules.iter().map(|id| id.0).collect();
        let firing = sqlx::query!(
            "SELECT id, rule_id, group_key FROM alert_states WHERE rule_id = ANY($1) AND resolved_at IS NULL
              ORDER BY id FOR UPDATE",
            &ids
        )
        .fetch_all(&mut tx)
        .await?;
        let found: HashSet<(Uuid, &str)> =
            findings.iter().map(|finding| (finding.rule_id.0, finding.group_key.as_str())).collect();
        let is_over = |rule: Uuid, key: &str| key != OTHERS_KEY && !found.contains(&(rule, key));
        let over = firing.iter().filter(|alert| is_over(alert.rule_id, &alert.group_key));
        let over: Vec<(Uuid, &'static str)> =
            over.take(CHANGE_BATCH as usize).map(|alert| (alert.id, "The condition is over.")).collect();
        let resolved = resolve(&mut tx, &over, now).await?;
        let started = fire(&mut tx, findings, now).await?;
        tx.commit().await?;
        Ok(AlertChanges { events: 0, started, resolved })
    }

    /// Fires or refreshes alerts without resolving others: each server reports its own background tasks.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then nothing changed.
    pub async fn report_alerts(&self, findings: Vec<Finding>, now: DateTime<Utc>) -> Result<AlertChanges> {
        let mut tx = self.pool().begin().await?;
        let started = fire(&mut tx, findings, now).await?;
        tx.commit().await?;
        Ok(AlertChanges { events: 0, started, resolved: 0 })
    }

    /// Resolves alerts about events whose consequence is over, and alerts of rules that were switched off. Examines the next
    /// 500 firing alerts behind `after`, and moves it behind them; after the last alert it begins anew.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then nothing changed.
    pub async fn resolve_alerts(&self, after: &mut AlertPosition, now: DateTime<Utc>) -> Result<AlertChanges> {
        let mut tx = self.pool().begin().await?;
        // In the order of the index of firing alerts.
        let examined = sqlx::query!(
            "SELECT id, rule_id, group_key FROM alert_states
              WHERE resolved_at IS NULL AND (rule_id, group_key) > ($1::uuid, $2::text)
              ORDER BY rule_id, group_key LIMIT $3",
            after.rule_id,
            after.group_key,
            EXAMINED_BATCH
        )
        .fetch_all(&mut tx)
        .await?;
        let ids: Vec<Uuid> = examined.iter().map(|alert| alert.id).collect();
        let is_full = i64::try_from(examined.len()).is_ok_and(|count| count == EXAMINED_BATCH);
        let last = examined.into_iter().next_back().filter(|_| is_full);
        let next =
            last.map(|alert| AlertPosition { rule_id: alert.rule_id, group_key: alert.group_key }).unwrap_or_default();
        let over = sqlx::query!(
            r#"SELECT s.id, o.reason AS "reason!"
                 FROM alert_states s JOIN alert_rules r ON r.id = s.rule_id
                CROSS JOIN LATERAL (
                      SELECT CASE
                      WHEN NOT r.is_enabled THEN 'The rule was switched off.'
                      WHEN s.group_key = 'others' AND s.last_at >= $1::timestamptz - $2::interval THEN NULL
                      WHEN s.group_key = 'others' THEN 'It did not happen again for 15 minutes.'
                      WHEN s.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = s.job_id)
                          THEN 'The job was deleted.'
                      WHEN r.condition ->> 'kind' = 'occurrence_failed' AND EXISTS (
                               SELECT 1 FROM (SELECT status FROM history h
                                               WHERE h.job_id = s.job_id AND h.filed_at > s.last_at
                                               ORDER BY h.id DESC LIMIT 50) h
                                WHERE h.status = 'completed')
                          THEN 'An occurrence of the job has completed.'
                      WHEN r.condition ->> 'kind' = 'occurrence_failed' AND NOT EXISTS (
                               SELECT 1 FROM failed_occurrences f
                                WHERE f.job_id = s.job_id AND f.failed_at >= s.first_at AND f.resolved_at IS NULL)
                          THEN 'The failures are resolved.'
                      WHEN r.condition ->> 'kind' = 'auto_disabled'
                               AND EXISTS (SELECT 1 FROM jobs j WHERE j.id = s.job_id AND j.auto_disabled_at IS NULL)
                          THEN 'The job is enabled again.'
                      WHEN r.condition ->> 'kind' = 'dead_letter' AND NOT EXISTS (
                               SELECT 1 FROM dead_letters d WHERE d.received_at >= s.first_at AND d.resolved_at IS NULL)
                          THEN 'The dead letters are resolved.'
                      WHEN r.condition ->> 'kind' IN ('misfire', 'lost_run') AND s.last_at < $1 - $2
                          THEN 'It did not happen again for 15 minutes.'
                      WHEN r.condition ->> 'kind' = 'service_unhealthy' AND s.last_at < $1 - $3::interval
                          THEN 'The background task works again, or its server has stopped.'
                      END AS reason OFFSET 0) o
                WHERE s.id = ANY($4) AND s.resolved_at IS NULL AND o.reason IS NOT NULL
                ORDER BY s.id FOR UPDATE OF s SKIP LOCKED"#,
            now,
            interval(QUIET_TIME),
            interval(SERVICE_QUIET_TIME),
            &ids
        )
        .fetch_all(&mut tx)
        .await?;
        *after = next;
        if over.is_empty() {
            return Ok(AlertChanges::default());
        }
        let over: Vec<(Uuid, &str)> = over.iter().map(|alert| (alert.id, alert.reason.as_str())).collect();
        let resolved = resolve(&mut tx, &over, now).await?;
        tx.commit().await?;
        Ok(AlertChanges { resolved, ..AlertChanges::default() })
    }

    /// Inserts the messages about alerts that fire and were not announced, except those of muted rules and of rules
    /// without channels. Returns the number of messages.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then nothing changed.
    pub async fn announce_alerts(&self, now: DateTime<Utc>) -> Result<u64> {
        let done = sqlx::query!(
            "WITH fresh AS (
                SELECT s.id, s.rule_id FROM alert_states s JOIN alert_rules r ON r.id = s.rule_id
                 WHERE s.resolved_at IS NULL AND NOT s.is_announced AND (r.muted_until IS NULL OR r.muted_until <= $1)
                   AND EXISTS (SELECT 1 FROM alert_rule_channels u JOIN alert_channels c ON c.id = u.channel_id
                                WHERE u.rule_id = s.rule_id AND c.is_enabled)
                 ORDER BY s.id LIMIT $4 FOR UPDATE OF s SKIP LOCKED
             ),
             announced AS (
                UPDATE alert_states SET is_announced = true WHERE id = ANY (ARRAY (SELECT id FROM fresh))
             )
             INSERT INTO alert_deliveries (id, alert_id, rule_id, channel_id, is_resolution, created_at, not_before)
             SELECT gen_random_uuid(), f.id, f.rule_id, c.id, false, $1, greatest($1 + $2::interval, (
                        SELECT max(d.sent_at) + $3::interval FROM alert_deliveries d
                         WHERE d.rule_id = f.rule_id AND d.channel_id = c.id AND d.sent_at IS NOT NULL))
               FROM fresh f JOIN alert_rule_channels u ON u.rule_id = f.rule_id
               JOIN alert_channels c ON c.id = u.channel_id AND c.is_enabled",
            now,
            interval(GROUP_WAIT),
            interval(GROUP_INTERVAL),
            CHANGE_BATCH
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }

    /// Returns the number of alerts that fire.
    pub async fn firing_alerts(&self) -> Result<FiringAlerts> {
        let row = sqlx::query!(
            r#"SELECT count(*) FILTER (WHERE r.severity = 'critical') AS "critical!",
                      count(*) FILTER (WHERE r.severity = 'warning') AS "warning!"
                 FROM alert_states s JOIN alert_rules r ON r.id = s.rule_id WHERE s.resolved_at IS NULL"#
        )
        .fetch_one(self.pool())
        .await?;
        Ok(FiringAlerts { critical: row.critical, warning: row.warning })
    }

    /// Returns a page of alerts, newest first.
    pub async fn alerts(&self, filter: &AlertFilter) -> Result<ListPage<Alert>> {
        let limit = page::effective_limit(filter.limit);
        let mut rows = self.read_alerts(None, filter, i64::from(limit) + 1).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = rows.last().filter(|_| more).map(|alert| alert.id.to_string());
        Ok(ListPage { rows, next })
    }

    /// Returns an alert, or `None` if there is none with this id.
    pub async fn alert(&self, id: AlertId) -> Result<Option<Alert>> {
        Ok(self.read_alerts(Some(id), &AlertFilter::default(), 1).await?.into_iter().next())
    }

    async fn read_alerts(&self, id: Option<AlertId>, filter: &AlertFilter, limit: i64) -> Result<Vec<Alert>> {
        let rows = sqlx::query!(
            r#"SELECT s.*, r.name AS rule_name, r.severity,
                      coalesce((SELECT jsonb_agg(jsonb_build_object(
                                    'channel', c.name, 'isResolution', d.is_resolution, 'sentAt', d.sent_at,
                                    'failedAt', d.failed_at, 'attempts', d.attempts, 'error', d.error)
                                    ORDER BY d.is_resolution, lower(c.name))
                                  FROM alert_deliveries d JOIN alert_channels c ON c.id = d.channel_id
                                 WHERE d.alert_id = s.id), '[]') AS "messages!"
                 FROM alert_states s JOIN alert_rules r ON r.id = s.rule_id
                WHERE ($1::uuid IS NULL OR s.id = $1) AND ($2::boolean IS NULL OR (s.resolved_at IS NULL) = $2)
                  AND ($3::uuid IS NULL OR s.rule_id = $3) AND ($4::uuid IS NULL OR s.id < $4)
                ORDER BY s.id DESC LIMIT $5"#,
            id.map(|id| id.0),
            filter.firing,
            filter.rule.map(|id| id.0),
            filter.before.map(|id| id.0),
            limit
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                let messages = Vec::<AlertMessageStatus>::deserialize(row.messages).map_err(|error| {
                    StoreError::Corrupt { table: "alert_deliveries", column: "error", detail: error.to_string() }
                })?;
                Ok(Alert {
                    id: AlertId(row.id),
                    rule_id: AlertRuleId(row.rule_id),
                    rule_name: row.rule_name,
                    severity: severity(&row.severity)?,
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
                    messages,
                })
            })
            .collect()
    }
}

/// Fires alerts, or counts what was found in those that fire already. Returns the number of new ones.
async fn fire(tx: &mut StoreTransaction, findings: Vec<Finding>, now: DateTime<Utc>) -> Result<usize> {
    if findings.is_empty() {
        return Ok(0);
    }
    let mut findings = bounded(tx, findings).await?;
    // In one order, so that two servers cannot wait for each other.
    findings.sort_by(|a, b| (a.rule_id, &a.group_key).cmp(&(b.rule_id, &b.group_key)));
    let ids: Vec<Uuid> = findings.iter().map(|_| AlertId::from_parts(now, rand::random()).0).collect();
    let rules: Vec<Uuid> = findings.iter().map(|finding| finding.rule_id.0).collect();
    let keys: Vec<&str> = findings.iter().map(|finding| finding.group_key.as_str()).collect();
    let titles: Vec<String> = findings.iter().map(|finding| clip(&finding.title, 500)).collect();
    let details: Vec<String> = findings.iter().map(|finding| clip(&finding.detail, 2_000)).collect();
    let jobs: Vec<Option<Uuid>> = findings.iter().map(|finding| finding.job.as_ref().map(|(id, _)| id.0)).collect();
    let names: Vec<Option<&str>> =
        findings.iter().map(|finding| finding.job.as_ref().map(|(_, name)| name.as_str())).collect();
    let occurrences: Vec<Option<Uuid>> = findings.iter().map(|finding| finding.occurrence_id.map(|id| id.0)).collect();
    let counts: Vec<i64> = findings.iter().map(|finding| finding.count).collect();
    let first: Vec<DateTime<Utc>> = findings.iter().map(|finding| finding.first_at).collect();
    let last: Vec<DateTime<Utc>> = findings.iter().map(|finding| finding.last_at).collect();
    let is_new: Vec<bool> = sqlx::query_scalar!(
        // A rule that was deleted meanwhile has no alerts.
        r#"INSERT INTO alert_states AS s
                  (id, rule_id, group_key, title, detail, job_id, job_name, occurrence_id, count, first_at, last_at)
           SELECT f.* FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::text[],
                                  $8::uuid[], $9::bigint[], $10::timestamptz[], $11::timestamptz[])
                           AS f (id, rule_id, group_key, title, detail, job_id, job_name, occurrence_id, count, first_at, last_at)
            WHERE f.rule_id IN (SELECT id FROM alert_rules WHERE id = ANY($2) FOR KEY SHARE)
           ON CONFLICT (rule_id, group_key) WHERE resolved_at IS NULL DO UPDATE
              -- A lasting condition is one event, however often it is found.
              SET count = CASE WHEN (SELECT r.condition ->> 'kind' FROM alert_rules r WHERE r.id = s.rule_id)
                                    = ANY (ARRAY['occurrence_failed', 'misfire', 'lost_run', 'auto_disabled', 'dead_letter'])
                               THEN s.count + excluded.count ELSE s.count END,
                  last_at = greatest(s.last_at, excluded.last_at), detail = excluded.detail,
                  occurrence_id = coalesce(excluded.occurrence_id, s.occurrence_id)
           RETURNING (xmax = 0) AS "is_new!""#,
        &ids,
        &rules,
        &keys as &[&str],
        &titles,
        &details,
        &jobs as &[Option<Uuid>],
        &names as &[Option<&str>],
        &occurrences as &[Option<Uuid>],
        &counts,
        &first,
        &last
    )
    .fetch_all(tx)
    .await?;
    Ok(is_new.into_iter().filter(|is_new| *is_new).count())
}

/// Folds the findings of a rule with too many firing alerts into one.
async fn bounded(tx: &mut StoreTransaction, findings: Vec<Finding>) -> Result<Vec<Finding>> {
    let rules: Vec<Uuid> = findings.iter().map(|finding| finding.rule_id.0).collect();
    let rows = sqlx::query!(
        "SELECT rule_id, group_key FROM alert_states WHERE rule_id = ANY($1) AND resolved_at IS NULL",
        &rules
    )
    .fetch_all(tx)
    .await?;
    let mut firing: HashMap<Uuid, HashSet<String>> = HashMap::new();
    for row in rows {
        firing.entry(row.rule_id).or_default().insert(row.group_key);
    }
    let mut kept = Vec::with_capacity(findings.len());
    let mut others: HashMap<AlertRuleId, Finding> = HashMap::new();
    for finding in findings {
        let keys = firing.entry(finding.rule_id.0).or_default();
        if keys.contains(&finding.group_key) || keys.len() < MAX_FIRING_PER_RULE {
            keys.insert(finding.group_key.clone());
            kept.push(finding);
            continue;
        }
        let folded = others.entry(finding.rule_id).or_insert_with(|| Finding {
            group_key: OTHERS_KEY.into(),
            title: format!("More than {MAX_FIRING_PER_RULE} alerts of this rule fire"),
            job: None,
            count: 0,
            ..finding.clone()
        });
        folded.count += finding.count;
        folded.last_at = folded.last_at.max(finding.last_at);
        folded.detail = format!("The latest: {}. {}", finding.title, finding.detail);
    }
    kept.extend(others.into_values());
    Ok(kept)
}

/// Resolves alerts, and inserts the messages about it for those that were announced. Returns their number.
async fn resolve(tx: &mut StoreTransaction, over: &[(Uuid, &str)], now: DateTime<Utc>) -> Result<usize> {
    if over.is_empty() {
        return Ok(0);
    }
    let (ids, reasons): (Vec<Uuid>, Vec<&str>) = over.iter().copied().unzip();
    let resolved = sqlx::query_scalar!(
        r#"WITH over AS (SELECT * FROM unnest($1::uuid[], $2::text[]) AS o (id, reason)),
           resolved AS (
               UPDATE alert_states s SET resolved_at = $3, resolution = o.reason FROM over o
                WHERE s.id = o.id AND s.resolved_at IS NULL
               RETURNING s.id, s.rule_id, s.is_announced
           ),
           told AS (
               -- Over the channels that got the first message, even if the rule was changed meanwhile.
               INSERT INTO alert_deliveries (id, alert_id, rule_id, channel_id, is_resolution, created_at, not_before)
               SELECT gen_random_uuid(), r.id, r.rule_id, c.id, true, $3, $3 + $4::interval
                 FROM resolved r JOIN alert_deliveries d ON d.alert_id = r.id AND NOT d.is_resolution
                 JOIN alert_channels c ON c.id = d.channel_id AND c.is_enabled
                WHERE r.is_announced AND NOT EXISTS (
                      SELECT 1 FROM alert_rules u WHERE u.id = r.rule_id AND u.muted_until > $3)
           )
           SELECT count(*) AS "count!" FROM resolved"#,
        &ids,
        &reasons as &[&str],
        now,
        interval(GROUP_WAIT)
    )
    .fetch_one(tx)
    .await?;
    Ok(usize::try_from(resolved).unwrap_or_default())
}

/// Converts a time to PostgreSQL's type.
pub(super) fn interval(time: TimeDelta) -> sqlx::postgres::types::PgInterval {
    sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: time.num_microseconds().unwrap_or(i64::MAX) }
}

fn clip(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}
