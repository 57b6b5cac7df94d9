//! Alert rules and channels: save, mute, delete, and the test of a channel.

use std::collections::HashSet;

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::{
    alerts::{
        ALERT_SECRET_VARIABLE, AlertChannel, AlertChannelRow, AlertRule, AlertRuleRow, AlertSeverity, AlertTestResult,
        MAX_ALERT_CHANNELS, MAX_ALERT_RULES, MAX_MUTE_DAYS,
    },
    events::LiveEvent,
    requests::FieldError,
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::{AlertChannelId, AlertId, AlertRuleId};
use serde_json::json;

use crate::{
    clock::Clock,
    domain::alert_message::{AlertItem, AlertMessage},
    live::Hub,
    notify::Notifier,
    store::{Store, StoreError, alerts::SaveOutcome, audit::AuditEntry},
};

/// The commands that change alert rules and channels.
#[derive(Clone, Debug)]
pub struct AlertCommands {
    /// The PostgreSQL store.
    pub store: Store,
    /// The server's clock.
    pub clock: Clock,
    /// The live events for browsers.
    pub hub: Hub,
    /// The sender of messages, for tests of channels.
    pub notifier: Notifier,
}

impl AlertCommands {
    /// Returns a rule.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if it does not exist.
    pub async fn rule(&self, id: AlertRuleId) -> Result<AlertRuleRow, AppError> {
        let found = self.store.alert_rule(id).await?;
        found.ok_or_else(|| AppError::NotFound("This alert rule does not exist or was deleted.".into()))
    }

    /// Creates a rule, or replaces rule `id` if its version is still `version`; without a version, whatever it is.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid fields, and `Conflict` if the rule was changed in the meantime.
    pub async fn save_rule(
        &self,
        me: &RequestUser,
        id: Option<AlertRuleId>,
        version: Option<i32>,
        rule: &AlertRule,
    ) -> Result<AlertRuleRow, AppError> {
        let (rule, channels) = checked_rule(rule, &self.store.alert_channels().await?).map_err(AppError::Fields)?;
        let before = match id {
            Some(id) => Some(self.rule(id).await?),
            None => None,
        };
        let replaced = before.as_ref().map(|before| version.unwrap_or(before.version));
        let key = id.unwrap_or_else(|| self.clock.alert_rule_id());
        let action = if id.is_some() { "alert_rule.update" } else { "alert_rule.create" };
        let entry = self
            .entry(me, action, format!("alert_rule:{key}"))
            .change(before.map(|before| json!(before.definition)), Some(json!(rule)));
        let saved = self.store.save_alert_rule(key, replaced, &rule, &channels, &entry).await;
        require_saved(saved, "alert rule", MAX_ALERT_RULES, "alert_rules_name_key")?;
        self.publish();
        self.rule(key).await
    }

    /// Mutes a rule until an instant, or ends its mute.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for an instant that is past or more than 365 days away, and `NotFound`.
    pub async fn mute(
        &self,
        me: &RequestUser,
        id: AlertRuleId,
        until: Option<DateTime<Utc>>,
    ) -> Result<AlertRuleRow, AppError> {
        let now = self.clock.now();
        if until.is_some_and(|until| until <= now || until > now + TimeDelta::days(MAX_MUTE_DAYS)) {
            let message = format!("enter a time in the future, at most {MAX_MUTE_DAYS} days from now");
            return Err(AppError::field("until", message));
        }
        let action = if until.is_some() { "alert_rule.mute" } else { "alert_rule.unmute" };
        let entry = self.entry(me, action, format!("alert_rule:{id}")).change(None, Some(json!({ "until": until })));
        if !self.store.mute_alert_rule(id, until, &entry).await? {
            return self.rule(id).await;
        }
        self.publish();
        self.rule(id).await
    }

    /// Deletes a rule with its alerts, if its version is `version` or no version is given. Returns its name.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, and `Conflict` if it has another version.
    pub async fn delete_rule(
        &self,
        me: &RequestUser,
        id: AlertRuleId,
        version: Option<i32>,
    ) -> Result<String, AppError> {
        let before = self.rule(id).await?;
        let entry = self
            .entry(me, "alert_rule.delete", format!("alert_rule:{id}"))
            .change(Some(json!(before.definition)), None);
        if !self.store.delete_alert_rule(id, version, &entry).await? {
            return Err(changed("alert rule"));
        }
        self.publish();
        Ok(before.definition.name)
    }

    /// Returns a channel.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if it does not exist.
    pub async fn channel(&self, id: AlertChannelId) -> Result<AlertChannelRow, AppError> {
        let found = self.store.alert_channel(id).await?;
        found.ok_or_else(|| AppError::NotFound("This alert channel does not exist or was deleted.".into()))
    }

    /// Creates a channel, or replaces channel `id`, as [`save_rule`](Self::save_rule) does.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid fields and for a secret that this server does not have, and `Conflict` if the channel
    /// was changed in the meantime.
    pub async fn save_channel(
        &self,
        me: &RequestUser,
        id: Option<AlertChannelId>,
        version: Option<i32>,
        channel: &AlertChannel,
    ) -> Result<AlertChannelRow, AppError> {
        let channel = AlertChannel { name: channel.name.trim().to_owned(), ..channel.clone() };
        channel.check().map_err(AppError::Fields)?;
        if let Some((field, name)) = channel.target.secret()
            && !self.notifier.has_secret(name)
        {
            let message = format!(
                "this server has no secret {name}: set {ALERT_SECRET_VARIABLE}{name} in the environment of every server, \
                 or add a file {name} to its ALERT_SECRETS_DIR"
            );
            return Err(AppError::Fields(vec![FieldError::new(field, message)]));
        }
        let before = match id {
            Some(id) => Some(self.channel(id).await?),
            None => None,
        };
        let replaced = before.as_ref().map(|before| version.unwrap_or(before.version));
        let key = id.unwrap_or_else(|| self.clock.alert_channel_id());
        let action = if id.is_some() { "alert_channel.update" } else { "alert_channel.create" };
        let entry = self
            .entry(me, action, format!("alert_channel:{key}"))
            .change(before.map(|before| json!(before.definition)), Some(json!(channel)));
        let saved = self.store.save_alert_channel(key, replaced, &channel, &entry).await;
        require_saved(saved, "alert channel", MAX_ALERT_CHANNELS, "alert_channels_name_key")?;
        self.publish();
        self.channel(key).await
    }

    /// Deletes a channel that no rule uses, if its version is `version` or no version is given. Returns its name.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, and `Conflict` if a rule uses it or it has another version.
    pub async fn delete_channel(
        &self,
        me: &RequestUser,
        id: AlertChannelId,
        version: Option<i32>,
    ) -> Result<String, AppError> {
        let before = self.channel(id).await?;
        let entry = self
            .entry(me, "alert_channel.delete", format!("alert_channel:{id}"))
            .change(Some(json!(before.definition)), None);
        if !self.store.delete_alert_channel(id, version, &entry).await? {
            let now = self.channel(id).await?;
            if now.rules == 0 {
                return Err(changed("alert channel"));
            }
            let (rules, verb) = if now.rules == 1 { ("One alert rule", "uses") } else { ("Alert rules", "use") };
            return Err(AppError::Conflict(format!(
                "{rules} still {verb} {}. Remove it from the rules first.",
                now.definition.name
            )));
        }
        self.publish();
        Ok(before.definition.name)
    }

    /// Sends a test message over a channel, whether it is switched on or not.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the channel does not exist.
    pub async fn test_channel(&self, me: &RequestUser, id: AlertChannelId) -> Result<AlertTestResult, AppError> {
        let channel = self.channel(id).await?;
        let now = self.clock.now();
        let alert = AlertItem {
            id: AlertId::default(),
            is_resolved: false,
            title: format!("Test of the alert channel {}", channel.definition.name),
            detail: format!("{} sent this test. Nothing is wrong.", me.name),
            job_id: None,
            job_name: None,
            occurrence_id: None,
            count: 1,
            first_at: now,
            last_at: now,
            resolved_at: None,
            resolution: None,
        };
        let message = AlertMessage {
            id: AlertId::from_parts(now, rand::random()).0,
            rule_id: AlertRuleId::default(),
            rule_name: "Test".into(),
            severity: AlertSeverity::Warning,
            alerts: vec![alert],
            omitted: 0,
            url: self.notifier.dashboard_url().map(str::to_owned),
            is_test: true,
        };
        let sent = self.notifier.send(&channel.definition.target, &message, now).await;
        let error = sent.err().map(|error| error.reason);
        let entry = self
            .entry(me, "alert_channel.test", format!("alert_channel:{id}"))
            .change(None, Some(json!({ "wasAccepted": error.is_none() })));
        self.store.audit(&entry).await?;
        Ok(AlertTestResult { was_accepted: error.is_none(), error })
    }

    fn entry(&self, me: &RequestUser, action: &'static str, object: String) -> AuditEntry {
        AuditEntry::new(self.clock.now(), &me.email, action, object).from(me.address.map(|address| address.to_string()))
    }

    fn publish(&self) {
        self.hub.publish(self.clock.now(), vec![LiveEvent::Alerts]);
    }
}

/// Returns a rule as it is stored, and the ids of its channels.
///
/// # Errors
///
/// Returns one error per invalid field, with the names in JSON.
pub(super) fn checked_rule(
    rule: &AlertRule,
    channels: &[AlertChannelRow],
) -> Result<(AlertRule, Vec<AlertChannelId>), Vec<FieldError>> {
    let mut rule = rule.clone();
    rule.name = rule.name.trim().to_owned();
    for values in [&mut rule.jobs, &mut rule.tags, &mut rule.channels] {
        for value in values.iter_mut() {
            *value = value.trim().to_owned();
        }
        let mut seen = HashSet::new();
        values.retain(|value| seen.insert(value.clone()));
    }
    rule.check()?;
    let id_of = |name: &String| {
        let found = channels.iter().find(|channel| channel.definition.name == *name);
        found.map(|channel| channel.id).ok_or_else(|| {
            let message = format!("there is no alert channel {name:?}: create it first, or correct the name");
            vec![FieldError::new("channels", message)]
        })
    };
    let ids = rule.channels.iter().map(id_of).collect::<Result<_, _>>()?;
    Ok((rule, ids))
}

/// Converts the result of a save.
fn require_saved(
    saved: Result<SaveOutcome, StoreError>,
    noun: &str,
    limit: i64,
    name_constraint: &str,
) -> Result<(), AppError> {
    match saved {
        Ok(SaveOutcome::Saved) => Ok(()),
        Ok(SaveOutcome::Changed) => Err(changed(noun)),
        Ok(SaveOutcome::TooMany) => Err(AppError::Conflict(format!(
            "There are {limit} {noun}s, which is the limit. Delete those that are not used."
        ))),
        Err(error) if error.constraint() == Some(name_constraint) => {
            Err(AppError::field("name", format!("another {noun} has this name: choose a different one")))
        }
        Err(error) if error.constraint() == Some("alert_rule_channels_channel_id_fkey") => {
            Err(AppError::field("channels", "one of these channels was deleted meanwhile: choose another one"))
        }
        Err(error) => Err(error.into()),
    }
}

fn changed(noun: &str) -> AppError {
    AppError::Conflict(format!("This {noun} was changed in the meantime. Reload the page and repeat your change."))
}
