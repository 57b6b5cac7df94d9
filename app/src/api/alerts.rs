//! Server functions of the alerts: what fires, the rules, and the channels.
//!
//! A form is a set of texts, as a browser posts it. The server converts them, and the errors of its fields have the names
//! that the REST API has for them, so one check serves both. A function that changes something returns its notice as a
//! sentence, so that a script and a plain form post show the same one.

use std::collections::BTreeMap;

use leptos::prelude::*;
use milvaion_api::{
    alerts::{Alert, AlertChannelRow, AlertFilter, AlertRuleRow},
    page::ListPage,
};
use milvaion_protocol::id::{AlertChannelId, AlertRuleId};
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::{codec::JsonText, session::FlashView};
use crate::error::AppError;

/// The value of a checked box.
pub const CHECKED: &str = "on";
/// The lengths of a mute: the value, the label, and the number of hours.
pub const MUTE_CHOICES: [(&str, &str, i64); 4] =
    [("1h", "1 hour", 1), ("8h", "8 hours", 8), ("24h", "24 hours", 24), ("7d", "7 days", 168)];
/// The value of a mute that ends on a chosen day.
pub const MUTE_UNTIL: &str = "until";
/// The number of alerts on the page of a rule.
pub const RULE_HISTORY_ROWS: u32 = 20;

/// The form of a rule as entered. Every field is text; absent fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AlertRuleForm {
    /// The id of the rule to change; empty for a new one.
    pub id: String,
    /// The version that the form shows; empty for a new rule.
    pub version: String,
    /// The name.
    pub name: String,
    /// The kind of the condition.
    pub kind: String,
    /// The numbers of the conditions by their names in JSON. Those of another kind are ignored.
    pub condition: BTreeMap<String, String>,
    /// The checked causes of failures.
    pub causes: BTreeMap<String, String>,
    /// The keys or ids of jobs, separated by commas.
    pub jobs: String,
    /// Tags, separated by commas.
    pub tags: String,
    /// The slug of the severity.
    pub severity: String,
    /// The names of the checked channels by their ids.
    pub channels: BTreeMap<String, String>,
    /// [`CHECKED`]; empty for off.
    pub is_enabled: String,
}

/// The form of a channel as entered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AlertChannelForm {
    /// The id of the channel to change; empty for a new one.
    pub id: String,
    /// The version that the form shows; empty for a new channel.
    pub version: String,
    /// The name.
    pub name: String,
    /// The kind of the destination.
    pub kind: String,
    /// The fields of the destinations by their names in JSON. Those of another kind are ignored.
    pub target: BTreeMap<String, String>,
    /// [`CHECKED`]; empty for off.
    pub is_enabled: String,
}

/// A page of alerts, with the rules that its filter offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertList {
    /// The alerts.
    pub page: ListPage<Alert>,
    /// The id and the name of every rule.
    pub rules: Vec<(AlertRuleId, String)>,
}

/// A rule with its latest alerts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertRuleState {
    /// The rule.
    pub rule: AlertRuleRow,
    /// Its alerts, newest first.
    pub history: ListPage<Alert>,
}

/// Everything that the page of a rule renders from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertRulePage {
    /// The rule; `None` for a new one.
    pub state: Option<AlertRuleState>,
    /// The id and the name of every channel; empty below Operator.
    pub channels: Vec<(AlertChannelId, String)>,
    /// Initial values: those of a new rule, of the rule, or of a rejected post.
    pub form: AlertRuleForm,
    /// Result of a plain form post, if there was one.
    pub flash: FlashView,
}

/// Everything that the page of a channel renders from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertChannelPage {
    /// The channel; `None` for a new one.
    pub channel: Option<AlertChannelRow>,
    /// Initial values: those of a new channel, of the channel, or of a rejected post.
    pub form: AlertChannelForm,
    /// Result of a plain form post, if there was one.
    pub flash: FlashView,
}

/// The result of a test message as a sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertTestReport {
    /// True if the receiver accepted the message.
    pub was_accepted: bool,
    /// The result.
    pub text: String,
}

/// Returns a page of alerts, newest first, and the rules.
///
/// # Errors
///
/// `SignedOut`; `Unavailable` if a service is down.
#[server(input = GetUrl, output = JsonText, endpoint = "alerts")]
pub async fn alerts(#[server(default)] filter: AlertFilter) -> Result<AlertList, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    let page = backend.alerts(&me, filter).await.map_err(super::with_error_status)?;
    let rules = backend.alert_rules(&me).await.map_err(super::with_error_status)?;
    Ok(AlertList { page, rules: rules.into_iter().map(|row| (row.id, row.definition.name)).collect() })
}

/// Returns every rule, ordered by name.
///
/// # Errors
///
/// `SignedOut`; `Unavailable` if a service is down.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_rules")]
pub async fn alert_rules() -> Result<Vec<AlertRuleRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.alert_rules(&me).await.map_err(super::with_error_status)
}

/// Returns a rule with its latest alerts.
///
/// # Errors
///
/// `NotFound` if it is deleted.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_rule")]
pub async fn alert_rule(id: AlertRuleId) -> Result<AlertRuleState, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    let rule = backend.alert_rule(&me, id).await.map_err(super::with_error_status)?;
    let filter = AlertFilter { rule: Some(id), limit: RULE_HISTORY_ROWS, ..AlertFilter::default() };
    let history = backend.alerts(&me, filter).await.map_err(super::with_error_status)?;
    Ok(AlertRuleState { rule, history })
}

/// Loads the page of the rule `id`, or that of a new one.
///
/// # Errors
///
/// `NotFound` if the rule is deleted; `Denied` below Operator for a new one.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_rule_page")]
pub async fn load_alert_rule(id: Option<AlertRuleId>) -> Result<AlertRulePage, AppError> {
    use milvaion_api::permissions::Permission;

    let state = match id {
        Some(id) => Some(alert_rule(id).await?),
        None => None,
    };
    let needed = if id.is_some() { Permission::Read } else { Permission::DefineAlert };
    let (backend, me) = super::authorize(needed).await?;
    let channels = if me.role.allows(Permission::DefineAlert) {
        let rows = backend.alert_channels(&me).await.map_err(super::with_error_status)?;
        rows.into_iter().map(|row| (row.id, row.definition.name)).collect()
    } else {
        Vec::new()
    };
    let flash = backend.take_flash(&super::request()?, RULE_FORM).await?.map(FlashView::from).unwrap_or_default();
    // A flash may hold the values of another rule that was posted in another tab.
    let typed = serde_json::from_value::<AlertRuleForm>(flash.typed.clone()).ok();
    let own = id.map(|id| id.to_string()).unwrap_or_default();
    let form = typed.filter(|form| form.id == own).unwrap_or_else(|| match &state {
        Some(state) => AlertRuleForm::of(&state.rule, &channels),
        None => AlertRuleForm::new_rule(),
    });
    Ok(AlertRulePage { state, channels, form, flash })
}

/// Creates or changes a rule and returns the notice.
///
/// # Errors
///
/// `Fields` for invalid fields; `Conflict` if another user changed the rule meanwhile; `Denied` below Operator.
#[server(output = JsonText, endpoint = "save_alert_rule")]
pub async fn save_alert_rule(form: AlertRuleForm) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    let id = form.id.parse::<AlertRuleId>().ok();
    let result = match form.rule() {
        Ok(rule) => backend.save_alert_rule(&me, id, form.version.parse().ok(), &rule).await,
        Err(error) => Err(error),
    };
    let verb = if id.is_some() { "saved" } else { "created" };
    let result = result.map(|row| format!("The alert rule {} is {verb}.", row.definition.name));
    let notice = result.clone().unwrap_or_default();
    let back = id.map_or_else(|| "/alerts/rules/new".into(), rule_address);
    super::respond(RULE_FORM, result, |_| RULES_ADDRESS.into(), &notice, &back, form).await
}

/// Mutes a rule for one of [`MUTE_CHOICES`] or until the start of a day in UTC, and returns the notice.
///
/// # Errors
///
/// `Fields` for an invalid end; `NotFound` if the rule is deleted; `Denied` below Operator.
#[server(output = JsonText, endpoint = "mute_alert_rule")]
pub async fn mute_alert_rule(
    id: AlertRuleId,
    #[server(default)] length: String,
    #[server(default)] until: String,
) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    let now = backend.cluster_status(&super::request()?).await.map_err(super::with_error_status)?.now;
    let result = match mute_end(now, &length, &until) {
        Ok(until) => backend.mute_alert_rule(&me, id, Some(until)).await,
        Err(error) => Err(error),
    };
    let result = result.map(|row| {
        let until = row.muted_until.map(crate::format::utc).unwrap_or_default();
        format!("The alert rule {} is muted until {until}.", row.definition.name)
    });
    let notice = result.clone().unwrap_or_default();
    let here = rule_address(id);
    super::respond(RULE_FORM, result, |_| here.clone(), &notice, &here, ()).await
}

/// Ends the mute of a rule and returns the notice.
///
/// # Errors
///
/// `NotFound` if the rule is deleted; `Denied` below Operator.
#[server(output = JsonText, endpoint = "unmute_alert_rule")]
pub async fn unmute_alert_rule(id: AlertRuleId) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    let result = backend.mute_alert_rule(&me, id, None).await;
    let result = result.map(|row| format!("The alert rule {} sends messages again.", row.definition.name));
    let notice = result.clone().unwrap_or_default();
    let here = rule_address(id);
    super::respond(RULE_FORM, result, |_| here.clone(), &notice, &here, ()).await
}

/// Deletes a rule with its alerts and returns the notice.
///
/// # Errors
///
/// `Conflict` if the rule has another version; `NotFound` if it is deleted; `Denied` below Operator.
#[server(output = JsonText, endpoint = "delete_alert_rule")]
pub async fn delete_alert_rule(id: AlertRuleId, version: Option<i32>) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    let result = backend.delete_alert_rule(&me, id, version).await;
    let result = result.map(|name| format!("The alert rule {name} is deleted."));
    let notice = result.clone().unwrap_or_default();
    super::respond(RULE_FORM, result, |_| RULES_ADDRESS.into(), &notice, &rule_address(id), ()).await
}

/// Returns every channel, ordered by name.
///
/// # Errors
///
/// `Denied` below Operator.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_channels")]
pub async fn alert_channels() -> Result<Vec<AlertChannelRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    backend.alert_channels(&me).await.map_err(super::with_error_status)
}

/// Loads the page of the channel `id`, or that of a new one.
///
/// # Errors
///
/// `NotFound` if the channel is deleted; `Denied` below Admin.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_channel_page")]
pub async fn load_alert_channel(id: Option<AlertChannelId>) -> Result<AlertChannelPage, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAlertChannels).await?;
    let channel = match id {
        Some(id) => Some(backend.alert_channel(&me, id).await.map_err(super::with_error_status)?),
        None => None,
    };
    let flash = backend.take_flash(&super::request()?, CHANNEL_FORM).await?.map(FlashView::from).unwrap_or_default();
    let typed = serde_json::from_value::<AlertChannelForm>(flash.typed.clone()).ok();
    let own = id.map(|id| id.to_string()).unwrap_or_default();
    let form = typed.filter(|form| form.id == own).unwrap_or_else(|| match &channel {
        Some(channel) => AlertChannelForm::of(channel),
        None => AlertChannelForm { kind: "email".into(), is_enabled: CHECKED.into(), ..AlertChannelForm::default() },
    });
    Ok(AlertChannelPage { channel, form, flash })
}

/// Creates or changes a channel and returns its id.
///
/// # Errors
///
/// `Fields` for invalid fields; `Conflict` if another user changed the channel meanwhile; `Denied` below Admin.
#[server(output = JsonText, endpoint = "save_alert_channel")]
pub async fn save_alert_channel(form: AlertChannelForm) -> Result<AlertChannelId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAlertChannels).await?;
    let id = form.id.parse::<AlertChannelId>().ok();
    let result = match form.channel() {
        Ok(channel) => backend.save_alert_channel(&me, id, form.version.parse().ok(), &channel).await,
        Err(error) => Err(error),
    };
    let notice = channel_saved_notice(id.is_some());
    let back = id.map_or_else(|| "/alerts/channels/new".into(), channel_address);
    let then = |saved: &AlertChannelId| if id.is_some() { CHANNELS_ADDRESS.into() } else { channel_address(*saved) };
    super::respond(CHANNEL_FORM, result.map(|row| row.id), then, notice, &back, form).await
}

/// Deletes a channel that no rule uses and returns the notice.
///
/// # Errors
///
/// `Conflict` while a rule uses it, or if it has another version; `NotFound` if it is deleted; `Denied` below Admin.
#[server(output = JsonText, endpoint = "delete_alert_channel")]
pub async fn delete_alert_channel(id: AlertChannelId, version: Option<i32>) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAlertChannels).await?;
    let result = backend.delete_alert_channel(&me, id, version).await;
    let result = result.map(|name| format!("The alert channel {name} is deleted."));
    let notice = result.clone().unwrap_or_default();
    super::respond(CHANNEL_FORM, result, |_| CHANNELS_ADDRESS.into(), &notice, &channel_address(id), ()).await
}

/// Sends a test message over a channel.
///
/// # Errors
///
/// `NotFound` if the channel is deleted; `Denied` below Admin.
#[server(output = JsonText, endpoint = "test_alert_channel")]
pub async fn test_alert_channel(id: AlertChannelId) -> Result<AlertTestReport, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAlertChannels).await?;
    let report = backend.test_alert_channel(&me, id).await.map(|result| {
        let text = match (result.was_accepted, result.error) {
            (true, _) => "The receiver accepted the test message.".to_owned(),
            (false, error) => format!("The test message was not accepted. {}", error.unwrap_or_default()),
        };
        AlertTestReport { was_accepted: result.was_accepted, text: text.trim_end().to_owned() }
    });
    let report = match report {
        // After a plain form post the page shows it as an error.
        Ok(report) if !report.was_accepted && super::is_plain_form() => Err(AppError::Failed(report.text)),
        report => report,
    };
    let notice = report.as_ref().map(|report| report.text.clone()).unwrap_or_default();
    let here = channel_address(id);
    super::respond(CHANNEL_FORM, report, |_| here.clone(), &notice, &here, ()).await
}

/// Returns the notice of a saved channel.
#[must_use]
pub const fn channel_saved_notice(is_edit: bool) -> &'static str {
    if is_edit { "The alert channel is saved." } else { "The alert channel is created. Send a test to check it." }
}

/// The address of the list of rules.
pub const RULES_ADDRESS: &str = "/alerts/rules";
/// The address of the list of channels.
pub const CHANNELS_ADDRESS: &str = "/alerts/channels";

/// Returns the address of a rule's page.
#[must_use]
pub fn rule_address(id: AlertRuleId) -> String {
    format!("{RULES_ADDRESS}/{id}")
}

/// Returns the address of a channel's page.
#[must_use]
pub fn channel_address(id: AlertChannelId) -> String {
    format!("{CHANNELS_ADDRESS}/{id}")
}

/// The names of the forms in flash messages.
#[cfg(feature = "ssr")]
const RULE_FORM: &str = "alert-rule";
#[cfg(feature = "ssr")]
const CHANNEL_FORM: &str = "alert-channel";

#[cfg(feature = "ssr")]
pub use conversions::mute_end;

#[cfg(feature = "ssr")]
mod conversions {
    use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
    use milvaion_api::{
        alerts::{AlertChannel, AlertCondition, AlertRule, AlertSeverity, AlertTarget},
        failures::FailureCause,
    };

    use super::*;

    /// Returns the end of a mute that starts now: after one of [`MUTE_CHOICES`], or at the start of the day `until`.
    ///
    /// # Errors
    ///
    /// Returns an error if `length` is no choice, or `until` is no day.
    pub fn mute_end(now: DateTime<Utc>, length: &str, until: &str) -> Result<DateTime<Utc>, AppError> {
        if let Some((_, _, hours)) = MUTE_CHOICES.into_iter().find(|(value, _, _)| *value == length) {
            return Ok(now + TimeDelta::hours(hours));
        }
        if length != MUTE_UNTIL {
            return Err(AppError::field("length", "choose how long the rule is muted"));
        }
        let day = NaiveDate::parse_from_str(until.trim(), "%Y-%m-%d")
            .map_err(|_| AppError::field("until", "enter a day such as 2026-12-24"))?;
        Ok(day.and_time(NaiveTime::MIN).and_utc())
    }

    /// Splits a text at commas and line ends.
    fn words(text: &str) -> Vec<String> {
        let words = text.split([',', '\n']).map(str::trim).filter(|word| !word.is_empty());
        words.map(ToOwned::to_owned).collect()
    }

    /// Returns a number; 0, which every range refuses, for another text.
    fn number(texts: &BTreeMap<String, String>, name: &str) -> u32 {
        texts.get(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn optional_number(texts: &BTreeMap<String, String>, name: &str) -> Option<u32> {
        texts.get(name).filter(|text| !text.trim().is_empty()).map(|_| number(texts, name))
    }

    impl AlertRuleForm {
        /// Returns the form of a new rule.
        pub(super) fn new_rule() -> Self {
            let first = AlertCondition::OccurrenceFailed { causes: Vec::new() };
            Self {
                kind: first.kind().into(),
                condition: suggested_numbers(),
                severity: AlertSeverity::default().slug().into(),
                is_enabled: CHECKED.into(),
                ..Self::default()
            }
        }

        /// Returns the form that changes a rule. `channels` are all channels.
        pub(super) fn of(row: &AlertRuleRow, channels: &[(AlertChannelId, String)]) -> Self {
            let AlertRule { name, condition, jobs, tags, severity, channels: chosen, is_enabled } = &row.definition;
            let mut numbers = suggested_numbers();
            let mut causes = BTreeMap::new();
            let mut set = |name: &str, value: String| {
                numbers.insert(name.to_owned(), value);
            };
            match condition {
                AlertCondition::OccurrenceFailed { causes: chosen } => {
                    causes = chosen.iter().map(|cause| (cause.as_str().to_owned(), CHECKED.to_owned())).collect();
                }
                AlertCondition::FailureRate { percent, window_minutes, minimum_runs } => {
                    set("percent", percent.to_string());
                    set("windowMinutes", window_minutes.to_string());
                    set("minimumRuns", minimum_runs.to_string());
                }
                AlertCondition::LongRun { times_median, limit_seconds } => {
                    let text = |number: &Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
                    set("timesMedian", text(times_median));
                    set("limitSeconds", text(limit_seconds));
                }
                AlertCondition::LateStart { seconds }
                | AlertCondition::NoLiveWorker { seconds }
                | AlertCondition::QueueAge { seconds } => set("seconds", seconds.to_string()),
                AlertCondition::Misfire {}
                | AlertCondition::LostRun {}
                | AlertCondition::AutoDisabled {}
                | AlertCondition::WorkerGone {}
                | AlertCondition::DeadLetter {}
                | AlertCondition::ServiceUnhealthy {} => {}
            }
            let chosen = channels.iter().filter(|(_, name)| chosen.contains(name));
            Self {
                id: row.id.to_string(),
                version: row.version.to_string(),
                name: name.clone(),
                kind: condition.kind().into(),
                condition: numbers,
                causes,
                jobs: jobs.join(", "),
                tags: tags.join(", "),
                severity: severity.slug().into(),
                channels: chosen.map(|(id, name)| (id.to_string(), name.clone())).collect(),
                is_enabled: if *is_enabled { CHECKED.into() } else { String::new() },
            }
        }

        /// Converts the texts to a rule, whose values the backend checks.
        pub(super) fn rule(&self) -> Result<AlertRule, AppError> {
            let severity = AlertSeverity::from_slug(&self.severity)
                .ok_or_else(|| AppError::field("severity", "choose a severity"))?;
            Ok(AlertRule {
                name: self.name.trim().to_owned(),
                condition: self.condition()?,
                jobs: words(&self.jobs),
                tags: words(&self.tags),
                severity,
                channels: self.channels.values().cloned().collect(),
                is_enabled: !self.is_enabled.is_empty(),
            })
        }

        fn condition(&self) -> Result<AlertCondition, AppError> {
            let number = |name: &str| number(&self.condition, name);
            Ok(match self.kind.as_str() {
                "occurrence_failed" => AlertCondition::OccurrenceFailed {
                    causes: FailureCause::ALL
                        .into_iter()
                        .filter(|cause| self.causes.contains_key(cause.as_str()))
                        .collect(),
                },
                "failure_rate" => AlertCondition::FailureRate {
                    percent: number("percent"),
                    window_minutes: number("windowMinutes"),
                    minimum_runs: number("minimumRuns"),
                },
                "long_run" => AlertCondition::LongRun {
                    times_median: optional_number(&self.condition, "timesMedian"),
                    limit_seconds: optional_number(&self.condition, "limitSeconds"),
                },
                "late_start" => AlertCondition::LateStart { seconds: number("seconds") },
                "misfire" => AlertCondition::Misfire {},
                "lost_run" => AlertCondition::LostRun {},
                "auto_disabled" => AlertCondition::AutoDisabled {},
                "no_live_worker" => AlertCondition::NoLiveWorker { seconds: number("seconds") },
                "worker_gone" => AlertCondition::WorkerGone {},
                "queue_age" => AlertCondition::QueueAge { seconds: number("seconds") },
                "dead_letter" => AlertCondition::DeadLetter {},
                "service_unhealthy" => AlertCondition::ServiceUnhealthy {},
                _ => return Err(AppError::field("kind", "choose a condition")),
            })
        }
    }

    /// Returns the numbers that a form suggests.
    fn suggested_numbers() -> BTreeMap<String, String> {
        let numbers = [
            ("percent", "50"),
            ("windowMinutes", "60"),
            ("minimumRuns", "4"),
            ("timesMedian", "3"),
            ("seconds", "300"),
        ];
        numbers.into_iter().map(|(name, number)| (name.to_owned(), number.to_owned())).collect()
    }

    impl AlertChannelForm {
        /// Returns the form that changes a channel.
        pub(super) fn of(row: &AlertChannelRow) -> Self {
            let fields: Vec<(&str, String)> = match &row.definition.target {
                AlertTarget::Email { to } => vec![("to", to.join("\n"))],
                AlertTarget::Webhook { url, signing_secret } => {
                    vec![("url", url.clone()), ("signingSecret", signing_secret.clone().unwrap_or_default())]
                }
                AlertTarget::Slack { url_secret } => vec![("urlSecret", url_secret.clone())],
            };
            Self {
                id: row.id.to_string(),
                version: row.version.to_string(),
                name: row.definition.name.clone(),
                kind: row.definition.target.kind().into(),
                target: fields.into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
                is_enabled: if row.definition.is_enabled { CHECKED.into() } else { String::new() },
            }
        }

        /// Converts the texts to a channel, whose values the backend checks.
        pub(super) fn channel(&self) -> Result<AlertChannel, AppError> {
            let text = |name: &str| self.target.get(name).map(|text| text.trim().to_owned()).unwrap_or_default();
            let target = match self.kind.as_str() {
                "email" => AlertTarget::Email { to: words(&text("to")) },
                "webhook" => AlertTarget::Webhook {
                    url: text("url"),
                    signing_secret: Some(text("signingSecret")).filter(|name| !name.is_empty()),
                },
                "slack" => AlertTarget::Slack { url_secret: text("urlSecret") },
                _ => return Err(AppError::field("kind", "choose a kind")),
            };
            Ok(AlertChannel { name: self.name.trim().to_owned(), target, is_enabled: !self.is_enabled.is_empty() })
        }
    }
}

#[cfg(all(test, feature = "ssr"))]
mod tests {
    use chrono::{DateTime, Utc};
    use milvaion_api::{
        alerts::{AlertCondition, AlertRule, AlertSeverity, AlertTarget},
        failures::FailureCause,
    };

    use super::*;

    fn row(condition: AlertCondition) -> AlertRuleRow {
        AlertRuleRow {
            id: AlertRuleId::default(),
            version: 3,
            definition: AlertRule {
                name: "Late".into(),
                condition,
                jobs: vec!["nightly".into(), "weekly".into()],
                tags: vec!["web".into()],
                severity: AlertSeverity::Critical,
                channels: vec!["Ops".into()],
                is_enabled: false,
            },
            muted_until: None,
            firing: 0,
            last_fired_at: None,
            modified_at: DateTime::UNIX_EPOCH,
            modified_by: "ada@example.org".into(),
        }
    }

    #[test]
    fn form_of_every_condition_is_read_back() {
        let seconds = 90;
        for condition in [
            AlertCondition::OccurrenceFailed { causes: vec![] },
            AlertCondition::OccurrenceFailed { causes: vec![FailureCause::TimedOut, FailureCause::Lost] },
            AlertCondition::FailureRate { percent: 20, window_minutes: 5, minimum_runs: 2 },
            AlertCondition::LongRun { times_median: None, limit_seconds: Some(60) },
            AlertCondition::LongRun { times_median: Some(4), limit_seconds: None },
            AlertCondition::LateStart { seconds },
            AlertCondition::Misfire {},
            AlertCondition::LostRun {},
            AlertCondition::AutoDisabled {},
            AlertCondition::NoLiveWorker { seconds },
            AlertCondition::WorkerGone {},
            AlertCondition::QueueAge { seconds },
            AlertCondition::DeadLetter {},
            AlertCondition::ServiceUnhealthy {},
        ] {
            let row = row(condition);
            let channels = [(AlertChannelId::default(), "Ops".to_owned())];
            assert_eq!(AlertRuleForm::of(&row, &channels).rule(), Ok(row.definition));
        }
    }

    #[test]
    fn text_that_is_no_number_is_refused_by_the_check() {
        let mut form = AlertRuleForm { name: "Rate".into(), kind: "failure_rate".into(), ..AlertRuleForm::new_rule() };
        form.condition.insert("percent".into(), "half".into());
        let errors = form.rule().expect("a rule").check().expect_err("a percentage from 1 to 100");
        assert_eq!(errors[0].field, "condition.percent");
        let unknown = AlertRuleForm { kind: "doom".into(), ..form };
        assert_eq!(unknown.rule(), Err(AppError::field("kind", "choose a condition")));
    }

    #[test]
    fn recipients_are_lines_and_an_empty_secret_is_none() {
        let form = |kind: &str, fields: &[(&str, &str)]| AlertChannelForm {
            name: " Ops ".into(),
            kind: kind.into(),
            target: fields.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
            ..AlertChannelForm::default()
        };
        let mail = form("email", &[("to", "a@example.org\r\n\r\nb@example.org\r\n")]).channel().expect("a channel");
        assert_eq!(mail.target, AlertTarget::Email { to: vec!["a@example.org".into(), "b@example.org".into()] });
        assert_eq!((mail.name.as_str(), mail.is_enabled), ("Ops", false));
        let url = "https://example.org/hook";
        let hook = form("webhook", &[("url", url), ("signingSecret", " ")]).channel().expect("a channel");
        assert_eq!(hook.target, AlertTarget::Webhook { url: url.into(), signing_secret: None });
    }

    #[test]
    fn mute_ends_after_a_length_or_at_the_start_of_a_day() {
        let at = |text: &str| text.parse::<DateTime<Utc>>().expect("an instant");
        let now = at("2026-11-21T14:02:30Z");
        assert_eq!(mute_end(now, "8h", "2027-01-01"), Ok(at("2026-11-21T22:02:30Z")));
        assert_eq!(mute_end(now, MUTE_UNTIL, " 2026-12-24 "), Ok(at("2026-12-24T00:00:00Z")));
        assert_eq!(mute_end(now, "", ""), Err(AppError::field("length", "choose how long the rule is muted")));
        assert!(mute_end(now, MUTE_UNTIL, "soon").is_err());
    }
}
