//! The [`AlertBackend`] implementation of [`FakeBackend`]: alerts, rules and channels.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use milvaion_api::{
    alerts::{
        Alert, AlertChannel, AlertChannelRow, AlertCondition, AlertFilter, AlertMessageStatus, AlertRule, AlertRuleRow,
        AlertSeverity, AlertTarget, AlertTestResult, FiringAlerts,
    },
    page::ListPage,
};
use milvaion_app::{
    backend::{AlertBackend, RequestUser},
    error::AppError,
};
use milvaion_protocol::id::{AlertChannelId, AlertId, AlertRuleId};

use super::FakeBackend;
use crate::common::samples;

/// Returns the id of the alert with this number: 1 and 2 fire, 3 is resolved.
pub(crate) fn alert_id(number: u8) -> AlertId {
    AlertId::from_parts(samples::at(0), [100 + number; 10])
}

/// Returns the id of the rule with this number: 1 fires, 2 is muted, 3 is off.
pub(crate) fn rule_id(number: u8) -> AlertRuleId {
    AlertRuleId::from_parts(samples::at(0), [110 + number; 10])
}

/// Returns the id of the channel with this number: 1 is an e-mail channel that rules use, 2 a webhook whose last message
/// failed, 3 a Slack channel that is off.
pub(crate) fn channel_id(number: u8) -> AlertChannelId {
    AlertChannelId::from_parts(samples::at(0), [120 + number; 10])
}

/// The alerts of the installation, and the failure of the next test message.
#[derive(Default)]
pub(crate) struct FakeAlerts {
    alerts: Vec<Alert>,
    rules: Vec<AlertRuleRow>,
    channels: Vec<AlertChannelRow>,
    /// The error of a test message, if the receiver does not accept it.
    pub(crate) test_error: Option<String>,
}

impl FakeAlerts {
    /// Returns alerts, rules and channels in every state.
    pub(crate) fn busy() -> Self {
        Self {
            alerts: vec![alert(1), alert(2), alert(3)],
            rules: vec![rule(1), rule(2), rule(3)],
            channels: vec![channel(1), channel(2), channel(3)],
            test_error: None,
        }
    }

    /// Returns the number of firing alerts.
    pub(crate) fn firing(&self) -> FiringAlerts {
        let number = |severity| {
            let found = self.alerts.iter().filter(|a| a.resolved_at.is_none() && a.severity == severity);
            i64::try_from(found.count()).expect("a few alerts")
        };
        FiringAlerts { critical: number(AlertSeverity::Critical), warning: number(AlertSeverity::Warning) }
    }

    /// Resolves every alert.
    pub(crate) fn resolve(&mut self) {
        for alert in &mut self.alerts {
            alert.resolved_at = Some(samples::at(0));
        }
    }
}

fn alert(number: u8) -> Alert {
    let is_job = number != 2;
    let message = |channel: &str, sent: bool, error: Option<&str>| AlertMessageStatus {
        channel: channel.into(),
        is_resolution: false,
        sent_at: sent.then(|| samples::at(-50)),
        failed_at: None,
        attempts: 3,
        error: error.map(Into::into),
    };
    let messages = if number == 1 {
        vec![message("Team", true, None), message("Pager", false, Some("The receiver answered with the status 500."))]
    } else {
        vec![]
    };
    Alert {
        id: alert_id(number),
        rule_id: rule_id(if number == 2 { 2 } else { 1 }),
        rule_name: if number == 2 { "Queue age" } else { "Failures" }.into(),
        severity: if number == 2 { AlertSeverity::Warning } else { AlertSeverity::Critical },
        title: if is_job { "nightly <b>report</b> failed for good" } else { "Queue of demo/mail waits" }.into(),
        detail: if is_job { "status 500 instead of 200" } else { "" }.into(),
        job_id: is_job.then(samples::job_id),
        job_name: is_job.then(|| "nightly report".into()),
        occurrence_id: is_job.then(|| samples::occurrence_id(0)),
        count: if is_job { 1_234 } else { 1 },
        first_at: samples::at(-60),
        last_at: samples::at(-10),
        resolved_at: (number == 3).then(|| samples::at(-5)),
        resolution: (number == 3).then(|| "An occurrence of the job completed.".into()),
        messages,
    }
}

fn rule(number: u8) -> AlertRuleRow {
    let (name, condition, severity, channels) = match number {
        1 => (
            "Failures",
            AlertCondition::OccurrenceFailed { causes: vec![] },
            AlertSeverity::Critical,
            vec!["Pager".to_owned(), "Team".to_owned()],
        ),
        2 => ("Queue age", AlertCondition::QueueAge { seconds: 90 }, AlertSeverity::Warning, vec![]),
        _ => (
            "Slow",
            AlertCondition::LongRun { times_median: Some(4), limit_seconds: None },
            AlertSeverity::Warning,
            vec![],
        ),
    };
    AlertRuleRow {
        id: rule_id(number),
        version: 3,
        definition: AlertRule {
            name: name.into(),
            condition,
            jobs: if number == 3 { vec!["nightly".into(), "weekly".into()] } else { vec![] },
            tags: if number == 3 { vec!["web".into()] } else { vec![] },
            severity,
            channels,
            is_enabled: number != 3,
        },
        // The cluster's clock is at 30.
        muted_until: match number {
            2 => Some(samples::at(3_600)),
            _ => Some(samples::at(-3_600)),
        },
        firing: i64::from(number == 1),
        last_fired_at: (number == 1).then(|| samples::at(-60)),
        modified_at: samples::at(-86_400),
        modified_by: "ada@example.org".into(),
    }
}

fn channel(number: u8) -> AlertChannelRow {
    let (name, target) = match number {
        1 => ("Team", AlertTarget::Email { to: vec!["a@example.org".into(), "b@example.org".into()] }),
        2 => (
            "Pager",
            AlertTarget::Webhook { url: "https://example.org/hook".into(), signing_secret: Some("PAGER".into()) },
        ),
        _ => ("Chat", AlertTarget::Slack { url_secret: "SLACK_OPS".into() }),
    };
    AlertChannelRow {
        id: channel_id(number),
        version: 5,
        definition: AlertChannel { name: name.into(), target, is_enabled: number != 3 },
        rules: if number == 3 { 0 } else { 1 },
        last_sent_at: (number == 1).then(|| samples::at(-50)),
        last_error: (number == 2).then(|| "The receiver answered with the status 500.".into()),
        modified_at: samples::at(-86_400),
        modified_by: "ada@example.org".into(),
    }
}

fn missing(noun: &str) -> AppError {
    AppError::NotFound(format!("This alert {noun} does not exist or was deleted."))
}

fn changed(noun: &str) -> AppError {
    AppError::Conflict(format!(
        "This alert {noun} was changed in the meantime. Reload the page and repeat your change."
    ))
}

#[async_trait]
impl AlertBackend for FakeBackend {
    async fn alerts(&self, _me: &RequestUser, filter: AlertFilter) -> Result<ListPage<Alert>, AppError> {
        let alerts = self.lock_alerts();
        let fits = |alert: &&Alert| {
            filter.firing.is_none_or(|firing| firing == alert.resolved_at.is_none())
                && filter.rule.is_none_or(|rule| rule == alert.rule_id)
        };
        let rows: Vec<_> = alerts.alerts.iter().filter(fits).cloned().collect();
        match filter.before {
            Some(_) => Ok(ListPage { rows: vec![], next: None }),
            None => Ok(ListPage { next: rows.last().map(|row| row.id.to_string()), rows }),
        }
    }

    async fn alert(&self, _me: &RequestUser, id: AlertId) -> Result<Alert, AppError> {
        let found = self.lock_alerts().alerts.iter().find(|alert| alert.id == id).cloned();
        found.ok_or_else(|| AppError::NotFound("This alert does not exist.".into()))
    }

    async fn alert_rules(&self, _me: &RequestUser) -> Result<Vec<AlertRuleRow>, AppError> {
        Ok(self.lock_alerts().rules.clone())
    }

    async fn alert_rule(&self, _me: &RequestUser, id: AlertRuleId) -> Result<AlertRuleRow, AppError> {
        self.lock_alerts().rules.iter().find(|row| row.id == id).cloned().ok_or_else(|| missing("rule"))
    }

    async fn save_alert_rule(
        &self,
        me: &RequestUser,
        id: Option<AlertRuleId>,
        version: Option<i32>,
        rule: &AlertRule,
    ) -> Result<AlertRuleRow, AppError> {
        rule.check().map_err(AppError::Fields)?;
        let mut row = match id {
            Some(id) => self.alert_rule(me, id).await?,
            None => AlertRuleRow { id: rule_id(9), version: 0, ..self::rule(3) },
        };
        if version.is_some_and(|version| version != row.version) {
            return Err(changed("rule"));
        }
        row.definition = rule.clone();
        let json = serde_json::to_string(rule).expect("JSON");
        self.record(format!("save alert rule {} as {json}", id.map_or_else(|| "new".into(), |id| id.to_string())));
        Ok(row)
    }

    async fn mute_alert_rule(
        &self,
        me: &RequestUser,
        id: AlertRuleId,
        until: Option<DateTime<Utc>>,
    ) -> Result<AlertRuleRow, AppError> {
        if until.is_some_and(|until| until <= samples::at(30)) {
            return Err(AppError::field("until", "enter a time in the future, at most 365 days from now"));
        }
        let mut row = self.alert_rule(me, id).await?;
        row.muted_until = until;
        self.record(format!("mute {} until {until:?}", row.definition.name));
        self.lock_alerts().rules.iter_mut().filter(|known| known.id == id).for_each(|known| *known = row.clone());
        Ok(row)
    }

    async fn delete_alert_rule(
        &self,
        me: &RequestUser,
        id: AlertRuleId,
        version: Option<i32>,
    ) -> Result<String, AppError> {
        let row = self.alert_rule(me, id).await?;
        if version.is_some_and(|version| version != row.version) {
            return Err(changed("rule"));
        }
        self.record(format!("delete alert rule {}", row.definition.name));
        Ok(row.definition.name)
    }

    async fn alert_channels(&self, _me: &RequestUser) -> Result<Vec<AlertChannelRow>, AppError> {
        Ok(self.lock_alerts().channels.clone())
    }

    async fn alert_channel(&self, _me: &RequestUser, id: AlertChannelId) -> Result<AlertChannelRow, AppError> {
        self.lock_alerts().channels.iter().find(|row| row.id == id).cloned().ok_or_else(|| missing("channel"))
    }

    async fn save_alert_channel(
        &self,
        me: &RequestUser,
        id: Option<AlertChannelId>,
        version: Option<i32>,
        channel: &AlertChannel,
    ) -> Result<AlertChannelRow, AppError> {
        channel.check().map_err(AppError::Fields)?;
        if let Some((field, "UNSET")) = channel.target.secret() {
            return Err(AppError::field(field, "this server has no secret UNSET"));
        }
        let row = match id {
            Some(id) => self.alert_channel(me, id).await?,
            None => AlertChannelRow { id: channel_id(2), version: 0, ..self::channel(2) },
        };
        if version.is_some_and(|version| version != row.version) {
            return Err(changed("channel"));
        }
        self.record(format!("save alert channel {}", serde_json::to_string(channel).expect("JSON")));
        Ok(AlertChannelRow { definition: channel.clone(), ..row })
    }

    async fn delete_alert_channel(
        &self,
        me: &RequestUser,
        id: AlertChannelId,
        version: Option<i32>,
    ) -> Result<String, AppError> {
        let row = self.alert_channel(me, id).await?;
        if version.is_some_and(|version| version != row.version) {
            return Err(changed("channel"));
        }
        if row.rules > 0 {
            let name = row.definition.name;
            return Err(AppError::Conflict(format!(
                "One alert rule still uses {name}. Remove it from the rules first."
            )));
        }
        self.record(format!("delete alert channel {}", row.definition.name));
        Ok(row.definition.name)
    }

    async fn test_alert_channel(&self, me: &RequestUser, id: AlertChannelId) -> Result<AlertTestResult, AppError> {
        let row = self.alert_channel(me, id).await?;
        self.record(format!("test alert channel {}", row.definition.name));
        let error = self.lock_alerts().test_error.clone();
        Ok(AlertTestResult { was_accepted: error.is_none(), error })
    }
}
